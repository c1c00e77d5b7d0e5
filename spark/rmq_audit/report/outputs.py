"""The result for other programs: JUnit XML for CI, and a text file for Prometheus' node exporter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from rmq_audit.driver.findings import INVARIANTS, Finding, Verdict
from rmq_audit.report.rules import FAILED, SKIPPED, UNREAD


def to_junit(report: Mapping[str, Any]) -> str:
    """
    Return JUnit XML of a JSON report: one test case an invariant.

    Findings of severity ERROR and worse fail their case, what could not be read is an error, warnings are output; what
    was not checked is skipped and says why.
    """
    sides = [side for side in (report["master"], report["slave"]) if side is not None]
    stores = " ".join(side["path"] for side in sides)
    return document(suite_of(f"rmq-audit {report['command']}", stores, report["invariants"], report))


def document(root: ElementTree.Element) -> str:
    """Return an element as an XML file."""
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def suite_of(
    name: str, classname: str, rules: Sequence[Mapping[str, Any]], report: Mapping[str, Any]
) -> ElementTree.Element:
    """
    Return a test suite with a case for each row of ``rules``; findings, seconds and the time of begin are the report's.
    """
    states = [one["state"] for one in rules]
    suite = ElementTree.Element(
        "testsuite",
        name=_legal(name),
        tests=str(len(rules)),
        failures=str(states.count(FAILED)),
        errors=str(states.count(UNREAD)),
        skipped=str(states.count(SKIPPED)),
        time=f"{report['seconds']:.3f}",
        timestamp=report["started_at"],
    )
    findings: dict[str, list[Mapping[str, Any]]] = {}
    for one in report["findings"]:
        findings.setdefault(one["invariant"], []).append(one)
    for rule in rules:
        invariant = rule["invariant"]
        text = f"{invariant} {INVARIANTS[invariant][0]}"
        case = ElementTree.SubElement(suite, "testcase", classname=_legal(classname), name=text, time="0.000")
        _say(case, rule, findings.get(invariant, []))
    return suite


def _say(case: ElementTree.Element, rule: Mapping[str, Any], ones: Sequence[Mapping[str, Any]]) -> None:
    """Write into a test case what became of its rule; findings beyond those that the report holds are counted."""
    texts = [_text(one) for one in ones]
    if rule["findings"] > len(ones):
        texts.append(f"{rule['findings'] - len(ones)} findings are not in the report")
    tag = {FAILED: "failure", UNREAD: "error"}.get(rule["state"])
    if rule["state"] == SKIPPED:
        ElementTree.SubElement(case, "skipped", message=_legal(rule["why"]))
    elif tag is not None:
        ElementTree.SubElement(case, tag, message=_legal(texts[0])).text = _legal("\n\n".join(texts))
    elif texts:
        ElementTree.SubElement(case, "system-out").text = _legal("\n\n".join(texts))


def to_prometheus(report: Mapping[str, Any], finished_at: float) -> str:
    """Return a JSON report as metrics; ``finished_at`` are seconds of the epoch, so that an old file shows its age."""
    manifest = report["master"]["manifest"]
    name = manifest["broker_name"] if manifest is not None else None
    return "\n".join(metrics([(str(name or report["master"]["path"]), report)], finished_at)) + "\n"


def metrics(reports: Iterable[tuple[str, Mapping[str, Any]]], finished_at: float) -> Iterator[str]:
    """Yield the lines of the metrics of reports, each under the name of its broker."""
    ones = [({"broker": name, "command": report["command"]}, report) for name, report in reports]
    status = "Exit status of the last audit, see rmq-audit --help."
    yield from _family("rmq_audit_exit_status", status, [(pair, report["exit_status"]) for pair, report in ones])
    verdicts = [
        (pair | {"verdict": one.value}, int(one.value == report["verdict"])) for pair, report in ones for one in Verdict
    ]
    yield from _family("rmq_audit_verdict", "1 for the verdict of the last audit, 0 for all others.", verdicts)
    complete = [(pair, int(report["coverage"]["complete"])) for pair, report in ones]
    yield from _family("rmq_audit_complete", "1 when everything was read and compared.", complete)
    finished = [(pair, finished_at) for pair, _ in ones]
    yield from _family("rmq_audit_finished_timestamp_seconds", "Time at which the last audit ended.", finished)
    seconds = [(pair, report["seconds"]) for pair, report in ones]
    yield from _family("rmq_audit_duration_seconds", "Duration of the last audit.", seconds)
    sides = [
        (pair | {"side": side}, report["coverage"][side])
        for pair, report in ones
        for side in ("master", "slave")
        if report["coverage"][side] is not None
    ]
    for member, text in (("bytes_read", "Bytes of the log that were read."), ("records", "Records found.")):
        yield from _family(f"rmq_audit_{member}", text, [(side, coverage[member]) for side, coverage in sides])
    found = [sample for pair, report in ones for sample in _counted(pair, report["findings"])]
    yield from _family("rmq_audit_findings", "Findings of the last audit.", found)


def _counted(labels: Mapping[str, str], findings: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, str], float]]:
    kinds = Counter((one["invariant"], one["severity"], one["state"]) for one in findings)
    return [
        ({**labels, "invariant": invariant, "severity": severity, "state": state}, count)
        for (invariant, severity, state), count in sorted(kinds.items())
    ]


def cluster_metrics(report: Mapping[str, Any], finished_at: float, findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the lines of the metrics of a cluster as a whole; ``findings`` are all, of which a report holds some."""
    cluster = {"cluster": report["cluster"] or "-"}
    refused = sum(one["refused"] is not None for one in report["pairs"])
    for name, text, value in (
        ("exit_status", "Exit status of the last audit of the cluster.", report["exit_status"]),
        ("complete", "1 when everything of the cluster was read.", int(report["complete"])),
        ("finished_timestamp_seconds", "Time at which the last audit of the cluster ended.", finished_at),
        ("pairs_refused", "Pairs that could not be audited at all.", refused),
    ):
        yield from _family(f"rmq_audit_cluster_{name}", text, [(cluster, value)])
    counted = _counted(cluster, (one.to_json() for one in findings))
    yield from _family("rmq_audit_cluster_findings", "Findings of the cluster, each once.", counted)


def _family(name: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels.items())
        yield f"{name}{{{inside}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _text(one: Mapping[str, Any]) -> str:
    parts = [f"{one['severity']} on {one['replica']}"]
    if one["topic"] is not None:
        parts.append(f"topic {one['topic']} queue {one['queue_id']} offset {one['queue_offset_from']}")
    if one["phy_from"] is not None:
        parts.append(f"physical offset {one['phy_from']}")
    if one["derived_from"] is not None:
        parts.append(f"follows from {one['derived_from']}")
    return f"{', '.join(parts)}: {one['detail']}"


def _legal(text: str) -> str:
    """Return the text without what XML cannot hold."""
    return "".join(
        char if char in "\t\n" or (char >= " " and not "\ud800" <= char <= "\udfff" and char < "\ufffe") else "?"
        for char in text
    )
