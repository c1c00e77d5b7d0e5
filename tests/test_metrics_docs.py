"""The documents and examples about metrics name what the collectors have."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.http.metrics import BrokerCollector
from rmq.namesrv.metrics import NamesrvCollector
from rmq.runtime.http.metrics import HISTOGRAM, Family

ROOT = Path(__file__).resolve().parent.parent
ALERTS = ROOT / "etc" / "prometheus-alerts.yml"

_EXPRESSION = re.compile(r"^ +expr: (.+)$", re.MULTILINE)
_SERIES = re.compile(r"(rocketmq_\w+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\bby \(([^)]*)\)")
#: labels that Prometheus adds, or that all metrics of a broker have
_COMMON = {"job", "instance", "le", "cluster", "node_type", "node_id"}


def families() -> dict[str, Family]:
    return {found.name: found for found in [*NamesrvCollector.families(), *BrokerCollector.families()]}


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert isinstance(module, ModuleType)
    return module


def mistakes(text: str) -> Iterator[str]:
    """Yield what alert rules name and collectors do not have: metrics, labels."""
    known = families()
    for expression in _EXPRESSION.findall(text):
        labels: set[str] = set(_COMMON)
        for name, matchers in _SERIES.findall(expression):
            base = re.sub(r"_(bucket|count|sum)$", "", name)
            found = known.get(name) or known.get(base)
            if found is None or (found.name != name) != (found.kind == HISTOGRAM):
                yield f"no metric {name}"
                continue
            labels |= set(found.labels)
            for label in re.findall(r"(\w+) *(?:=~|!~|!=|=)", matchers):
                if label not in {*found.labels, *_COMMON}:
                    yield f"{name} has no label {label}"
        for group in _BY.findall(expression):
            yield from (f"no label {label}" for label in map(str.strip, group.split(",")) if label not in labels)


class DocumentTests(SynchronousTestCase):
    def test_tables(self) -> None:
        """docs/metrics.md is up to date; `python docs/make_metrics.py` makes it so."""
        made = script(ROOT / "docs" / "make_metrics.py")
        self.assertEqual(made.PATH.read_text("utf-8"), made.text())

    def test_names(self) -> None:
        """No name stands twice in a role, counters end in _total and nothing else does, help is one sentence."""
        for role in (NamesrvCollector, BrokerCollector):
            found = role.families()
            self.assertEqual(len({each.name for each in found}), len(found))
            for each in found:
                self.assertEqual(each.name.endswith("_total"), each.kind == "counter", each.name)
                self.assertRegex(each.name, r"^rocketmq_[a-z0-9_]+$")
                self.assertRegex(each.help, r"^[A-Z0-9][^\n|]+\.$")


class AlertTests(SynchronousTestCase):
    def test_alerts_name_what_there_is(self) -> None:
        """Every metric and every label in the alert rules exists."""
        text = ALERTS.read_text("utf-8")
        self.assertEqual(list(mistakes(text)), [])
        self.assertGreater(len(_EXPRESSION.findall(text)), 15)
        names = re.findall(r"- alert: (\w+)", text)
        self.assertEqual(len(names), len(set(names)))

    def test_the_check_can_fail(self) -> None:
        """Wrong names, labels and parts of histograms are each found."""
        for wrong in (
            "rocketmq_store_faild == 1",
            'rocketmq_broker_role{rolle="SLAVE"}',
            "sum by (topc) (rocketmq_consumer_lag_messages)",
            "rocketmq_store_flush_latency > 1",
            "rocketmq_store_failed_bucket > 1",
        ):
            self.assertEqual(len(list(mistakes(f"      expr: {wrong}\n"))), 1, wrong)
