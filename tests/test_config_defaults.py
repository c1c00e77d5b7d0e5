"""The defaults of all configuration keys."""

from __future__ import annotations

import types
from typing import get_args, get_type_hints

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.config import CONFIG_CLASSES as BROKER_CLASSES
from rmq.namesrv.config import CONFIG_CLASSES as NAMESRV_CLASSES


class DefaultTests(SynchronousTestCase):
    def test_defaults_have_their_type(self) -> None:
        """A key that nobody set has a value of its kind, not its own help text, which would count as switched on."""
        seen = 0
        for each in {*BROKER_CLASSES, *NAMESRV_CLASSES}:
            hints = get_type_hints(each)
            for field in attrs.fields(each):
                hint = hints[field.name]
                kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
                default = field.default
                if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
                    default = default.factory()
                if default is not attrs.NOTHING:
                    self.assertIn(type(default), kinds, f"{each.__name__}.{field.name}")
                    seen += 1
        self.assertGreater(seen, 100)
