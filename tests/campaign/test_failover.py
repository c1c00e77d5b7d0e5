"""A pair that fails over by itself, through the faults of further seeds."""

from __future__ import annotations

from unittest import TestCase

from tests.sim.failover import FaultsOfSeeds


class SeedTests(FaultsOfSeeds, TestCase):
    seeds = range(2, 6)
