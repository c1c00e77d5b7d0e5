"""Classes of damage: what one does to a pair, what the audit must say of it, and whether it did."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import attrs
from rmq_audit.driver.audit import Result
from rmq_audit.driver.consumers import Earlier
from rmq_audit.driver.findings import Finding

from tests.spark.corruptor.specimen import Specimen, Stored


class NotHere(Exception):
    """The pair has nothing that could be damaged in this way; the text says what is missing."""


@attrs.frozen(kw_only=True)
class Expected:
    """
    One finding that must be there and follow from no other.

    ``invariant`` and ``blame`` may be several, joined by ``|``. ``blame`` None: the class does not say; ``undecided``:
    the audit must not guess. ``message`` binds message id, topic, queue and offset too.
    """

    invariant: str
    phy: int | None = None
    blame: str | None = None
    replica: str | None = None
    field: str | None = None
    message: Stored | None = None
    count: int | None = None
    topic: str | None = None
    queue_offset: int | None = None

    def matches(self, found: Finding, *, blame: bool = True) -> bool:
        pairs = [
            (self.phy, found.phy_from),
            (self.replica, found.replica),
            (self.field, found.field),
            (self.count, found.count),
            (self.topic, found.topic),
            (self.queue_offset, found.queue_offset_from),
        ]
        if blame and self.blame is not None and found.blame not in self.blame.split("|"):
            return False
        if self.message is not None:
            # a side whose topic or offset is damaged cannot name them
            if self.field not in ("topic", "queueOffset", "queueId"):
                pairs += [(self.message.topic, found.topic), (self.message.queue_id, found.queue_id)]
                pairs.append((self.message.queue_offset, found.queue_offset_from))
            pairs.append((self.message.message_id, found.sample_msg_ids[0] if found.sample_msg_ids else ""))
        fits = all(wanted is None or wanted == got for wanted, got in pairs)
        return fits and found.invariant in self.invariant.split("|")


@attrs.frozen
class Plan:
    """
    What was planted: the findings that must be there, and what to audit with.

    ``acked`` is a table of acknowledged sends, ``index_slots`` what the operator says of the index files, ``earlier``
    what consumers had consumed at a look before. ``routes`` is a dump of NameServers: then the pair is a cluster.
    ``meanwhile`` does the damage between two rounds of watch, and the second one is judged.
    """

    expected: Sequence[Expected]
    acked: str | None = None
    index_slots: int | None = None
    earlier: Earlier | None = None
    routes: str | None = None
    meanwhile: Callable[[], object] | None = None
    #: causes that may be there besides: what damage does to its surroundings is not always foreseen
    tolerated: Callable[[Finding], bool] = lambda found: False


Plant = Callable[[Specimen, random.Random], Plan]


@attrs.frozen
class DefectClass:
    """``verdicts`` are those that are right; the first is the usual one."""

    name: str
    verdicts: tuple[str, ...]
    exit_status: int
    plant: Plant


CLASSES: dict[str, DefectClass] = {}

STATUS = {
    "MISROUTED": 2,
    "DIVERGED": 2,
    "DIFFERENT": 2,
    "DAMAGED": 2,
    "AHEAD": 2,
    "INCOMPLETE": 3,
    "LAGGING": 1,
    "CONSISTENT": 0,
}


def defect(*verdicts: str, warns: bool = False) -> Callable[[Plant], Plant]:
    """Register a class under the function's name; ``warns``: CONSISTENT with exit status 1."""

    def add(plant: Plant) -> Plant:
        name = plant.__name__
        assert name not in CLASSES, name
        CLASSES[name] = DefectClass(name, verdicts, 1 if warns else STATUS[verdicts[0]], plant)
        return plant

    return add


@attrs.frozen
class Outcome:
    """What an audit said, of a pair, of a cluster, or of a round of watch."""

    verdict: str
    exit_status: int
    findings: Sequence[Finding]


def outcome_of(result: Result) -> Outcome:
    return Outcome(result.verdict.value, result.exit_status, result.findings)


#: what is said of a legal difference: one side deleted, or never got, what the other still has at its begin
REMARKS = frozenset({"RP-BEGIN"})


@attrs.frozen
class Judgement:
    """``found``: all that was planted is named as a cause; ``blamed``: with the right side; ``wrong``: what is not."""

    found: bool
    blamed: bool
    wrong: list[str]


def judge(result: Outcome, one: DefectClass, plan: Plan) -> Judgement:
    """Hold a result against the plan: verdict, everything expected, and no cause besides."""
    wrong = []
    found = blamed = True
    if result.verdict not in one.verdicts or result.exit_status != one.exit_status:
        wrong.append(f"verdict {result.verdict}, exit status {result.exit_status}")
    left = [each for each in result.findings if each.derived_from is None and each.invariant not in REMARKS]
    for expected in plan.expected:
        matching = [each for each in left if expected.matches(each)]
        if not matching:
            blamed = False
            matching = [each for each in left if expected.matches(each, blame=False)]
            found = found and bool(matching)
            wrong.append(f"wrong blame, {expected}: {matching[0]}" if matching else f"missed {expected}")
        if matching:
            left.remove(matching[0])
    wrong += [f"unexplained {each}" for each in left if not plan.tolerated(each)]
    return Judgement(found, found and blamed, wrong)


#: topics that producers send to, in the stores of these tests
PLAIN_TOPICS = ("topic-", "traps", "Pairs")


def is_plain(one: Stored) -> bool:
    return one.topic.startswith(PLAIN_TOPICS) and not one.topic.endswith("-long") and one.owned


def some_message(pair: Specimen, chance: random.Random, *, least_body: int = 20, v4: bool = False) -> Stored:
    """
    Return a plain message with others of its queue before and after it, and with other messages around it.

    ``v4``: its addresses are IPv4, so the fields behind them lie where they usually do.
    """
    first: dict[tuple[str, int], int] = {}
    for one in pair.stored:
        if one.owned:
            first.setdefault(one.queue, one.queue_offset)
    chosen = [
        one
        for one in pair.stored[20:-20]
        if is_plain(one)
        and least_body <= one.body_size < 700
        and first[one.queue] < one.queue_offset
        and one.queue_offset < pair.next_offset[one.queue] - 1
        and (not v4 or one.body_at - one.phy == 88)
    ]
    return chance.choice(chosen)


def differs(one: Stored, field: str, blame: str) -> Expected:
    return Expected(invariant="RP-DIFF", phy=one.phy, blame=blame, field=field, message=one, count=1)
