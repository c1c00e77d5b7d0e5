"""The documents and examples about metrics name what the collectors have."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.http.metrics import BrokerCollector
from rmq.namesrv.metrics import NamesrvCollector
from rmq.runtime.http.metrics import DROPPED, HISTOGRAM, Family

ROOT = Path(__file__).resolve().parent.parent
ALERTS = ROOT / "etc" / "prometheus-alerts.yml"
DASHBOARD = ROOT / "etc" / "grafana-dashboard.json"

#: in one line, or in a block of deeper lines
_EXPRESSION = re.compile(r"^( +)expr: (?:\|\n((?:\1 +.+\n)+)|(.+)$)", re.MULTILINE)
_SERIES = re.compile(r"(rocketmq_\w+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\bby \(([^)]*)\)")
_LEGEND = re.compile(r"\{\{(\w+)\}\}")
#: what the labels of the targets and of buckets are called
_TARGET = {"job", "instance", "le"}
#: labels that all metrics of a broker have
_BROKER = {"cluster", "node_type", "node_id"}


def families() -> dict[str, tuple[Family, set[str]]]:
    """Return all metrics by name, each with the labels that its series have in Prometheus."""
    known = {found.name: (found, {*found.labels, *_TARGET}) for found in [*NamesrvCollector.families(), DROPPED]}
    known |= {found.name: (found, {*found.labels, *_TARGET, *_BROKER}) for found in BrokerCollector.families()}
    return known


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert isinstance(module, ModuleType)
    return module


def mistakes(expressions: Iterable[str]) -> Iterator[str]:
    """Yield what expressions name and collectors do not have: metrics, labels."""
    known = families()
    for expression in expressions:
        labels = set(_TARGET)
        for name, matchers in _SERIES.findall(expression):
            base = re.sub(r"_(bucket|count|sum)$", "", name)
            found, own = known.get(name) or known.get(base) or (None, set())
            if found is None or (found.name != name) != (found.kind == HISTOGRAM):
                yield f"no metric {name}"
                continue
            labels |= own
            for label in re.findall(r"(\w+) *(?:=~|!~|!=|=)", matchers):
                if label not in own:
                    yield f"{name} has no label {label}"
        for group in _BY.findall(expression):
            yield from (f"no label {label}" for label in map(str.strip, group.split(",")) if label not in labels)


def legend_mistakes(expression: str, legend: str) -> Iterator[str]:
    """Yield the labels of a legend that the series of its expression do not have."""
    if grouped := _BY.findall(expression):
        labels = {label.strip() for group in grouped for label in group.split(",")}
    else:
        labels = set(_TARGET).union(*(families()[name][1] for name, _ in _SERIES.findall(expression)))
    yield from (f"no label {label} in {legend}" for label in _LEGEND.findall(legend) if label not in labels)


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
        expressions = [block or line for _, block, line in _EXPRESSION.findall(text)]
        self.assertEqual(list(mistakes(expressions)), [])
        names = re.findall(r"- alert: (\w+)", text)
        self.assertEqual((len(expressions), expressions.count("|")), (len(names), 0))
        self.assertEqual(len(names), len(set(names)))

    def test_the_check_can_fail(self) -> None:
        """Wrong names, labels and parts of histograms are each found."""
        for wrong in (
            "rocketmq_store_faild == 1",
            'rocketmq_broker_role{rolle="SLAVE"}',
            "sum by (topc) (rocketmq_consumer_lag_messages)",
            "rocketmq_store_flush_latency > 1",
            "rocketmq_store_failed_bucket > 1",
            "sum by (cluster) (rocketmq_namesrv_topics)",
        ):
            self.assertEqual(len(list(mistakes([wrong]))), 1, wrong)
        self.assertEqual(
            list(legend_mistakes("sum by (topic) (rocketmq_messages_in_total)", "{{topic}} {{group}}")),
            ["no label group in {{topic}} {{group}}"],
        )


class DashboardTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.dashboard = json.loads(DASHBOARD.read_text("utf-8"))
        self.panels = [panel for panel in self.dashboard["panels"] if panel["type"] != "row"]

    def test_panels_name_what_there_is(self) -> None:
        """Every metric and label that a panel, a legend or a variable of the dashboard names exists."""
        targets = [target for panel in self.panels for target in panel["targets"]]
        self.assertGreater(len(targets), 30)
        self.assertEqual(list(mistakes(target["expr"] for target in targets)), [])
        for target in targets:
            self.assertEqual(list(legend_mistakes(target["expr"], target.get("legendFormat", ""))), [])
        variables = {each["name"]: each["query"] for each in self.dashboard["templating"]["list"]}
        asked = [re.fullmatch(r"label_values\((.+), (\w+)\)", query) for query in variables.values()]
        found = [f"sum by ({match[2]}) ({match[1]})" for match in asked if match is not None]
        self.assertEqual(len(found), 2)
        self.assertEqual(list(mistakes(found)), [])
        used = set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text("utf-8")))
        self.assertEqual(used - {"__rate_interval", "__all"}, set(variables))

    def test_layout(self) -> None:
        """Panels have titles of their own and do not cover each other."""
        places = [panel["gridPos"] for panel in self.dashboard["panels"]]
        cells = [
            (x, y)
            for at in places
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        self.assertEqual(len(cells), len(set(cells)))
        self.assertLess(max(x for x, _ in cells), 24)
        for key in ("id", "title"):
            self.assertEqual(len({panel[key] for panel in self.dashboard["panels"]}), len(places))
