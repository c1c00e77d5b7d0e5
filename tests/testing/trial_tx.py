"""`rmq.tx` with real sockets, under trial: ``trial tests.testing.trial_tx``."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from tests.testing import bodies


class TxTests(TestCase):
    """Each body, and then a clean reactor."""

    timeout = 60

    def setUp(self) -> None:
        from twisted.internet import reactor

        self.reactor: Any = reactor

    def test_first_send_comes_soon(self) -> Deferred[float]:
        return Deferred.fromCoroutine(bodies.first_send_comes_soon(self.reactor))

    def test_retries_and_dead_letters(self) -> Deferred[None]:
        return Deferred.fromCoroutine(bodies.retries_and_dead_letters(self.reactor))

    def test_transactions_and_pulls(self) -> Deferred[None]:
        return Deferred.fromCoroutine(bodies.transactions_and_pulls(self.reactor))

    def test_faults_in_process(self) -> Deferred[None]:
        return Deferred.fromCoroutine(bodies.faults_in_process(self.reactor))

    def test_what_is_delayed_now(self) -> Deferred[None]:
        return Deferred.fromCoroutine(bodies.what_is_delayed_now(self.reactor))
