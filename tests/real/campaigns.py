"""What only ``RMQ_CAMPAIGN=1`` runs (``tox -e matrix``): the same with another peer, or for longer."""

from __future__ import annotations

import pytest

from tests.needs import IS_CAMPAIGN

#: the mark of a test, or of one of its parameters, that a campaign runs and the long suite leaves out
CAMPAIGN = pytest.mark.skipif(not IS_CAMPAIGN, reason="RMQ_CAMPAIGN: only a campaign has time for it")


def campaign_only(value: object) -> object:
    """Return ``value`` as a parameter that only a campaign runs."""
    return pytest.param(value, marks=CAMPAIGN)
