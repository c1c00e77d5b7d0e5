"""The page for a browser: what it draws and lists comes from the stores, is bounded, and is escaped."""

from __future__ import annotations

import json
import random
import re
from html import escape
from typing import Any

import attrs
import pytest
from rmq_audit.driver.audit import Options, Result, check, compare
from rmq_audit.driver.consumers import Committed
from rmq_audit.driver.queues import Bounds
from rmq_audit.engine.engines import Engine, LocalEngine
from rmq_audit.engine.state import RememberingEngine, State
from rmq_audit.report.charts import MAX_LAGS, lags
from rmq_audit.report.html import MAX_DETAILED, to_html
from rmq_audit.report.pair import Run, to_json
from rmq_audit.report.pictures import (
    MAX_GROUPS,
    MAX_QUEUES,
    MAX_TOPICS,
    MAX_WINDOWS,
    Lag,
    Timeline,
    lag_of,
    pictures_of,
    timeline_of,
)
from rmq_audit.worker.tally import MAX_COUNTS, SPAN_MS, Tally, tallies
from rmq_audit.worker.work import MASTER, SLAVE

from rmq.store import layout
from rmq.wire import record
from tests.spark.cases import EngineCase, FolderCase
from tests.spark.support import as_json
from tests.spark.synthetic import MadeStore, Pair, Stored, make_store

SPAN_S = SPAN_MS // 1000


def page_of(result: Result) -> str:
    told: dict[str, Any] = {
        "run_id": "r1",
        "started_at": "2026-11-22T00:00:00+00:00",
        "seconds": 1.5,
        "engine": "local",
    }
    return to_html(to_json(result, Run(**told)), pictures_of(result))


def spread_store(seed: int, messages: int, step_ms: int) -> MadeStore:
    """A store of two topics whose messages are ``step_ms`` apart."""
    chance, store = random.Random(seed), MadeStore()
    for number in range(messages):
        store.now_ms += step_ms - 1
        store.put(f"orders-{number % 3 == 0:d}", number % 2, chance.randbytes(40))
    return store


class PageCase(FolderCase):
    def compare(self, pair: Pair, engine: Engine | None = None, **options: Any) -> Result:
        how = Options(**{"chunk_bytes": 4096, "split_bytes": 8192, **options})
        return compare(str(pair.master), str(pair.slave), engine or LocalEngine(1), how)

    def acked(self, ones: list[Stored]) -> str:
        rows = [one.acked_row() for one in ones]
        path = self.folder / "acked.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)


class FieldTests(PageCase):
    def test_all_fields_that_differ(self) -> None:
        """A record with four wrong fields on the slave: each is named with both values, in JSON and page."""
        store = MadeStore()
        for number in range(40):
            store.put("orders", 0, b"body %d" % number, properties="color\x01red\x02")
        pair = Pair(self.folder, store)
        one = pair.made.stored[20]
        pair.write(pair.slave, one.phy + 12, (3).to_bytes(4, "big"))  # queueId
        pair.write(pair.slave, one.phy + 48, bytes((10, 0, 0, 9)))  # bornHost
        pair.flip(pair.slave, one.body_at)  # b -> c
        at = pair.read(pair.slave, one.phy, one.size).index(b"red")
        pair.write(pair.slave, one.phy + at, b"bad")
        result = self.compare(pair)
        (found,) = (found for found in result.findings if found.invariant == "RP-DIFF")
        told = {values["field"]: (values["master"], values["slave"]) for values in found.differing_fields}
        crcs = [record.body_crc(text) for text in (b"body 20", b"cody 20")]
        self.assertEqual(
            told,
            {
                "queueId": ("0", "3"),
                "bornHost": ("10.0.0.1:10911", "10.0.0.9:10911"),
                "body": (f"7 bytes, crc {crcs[0]}: body 20", f"7 bytes, crc {crcs[1]}: cody 20"),
                "property color": ("red", "bad"),
            },
        )
        page = page_of(result)
        for left, right in told.values():
            self.assertIn(f"<td><code>{left}</code></td>", page)
            self.assertIn(f"<td><code>{right}</code></td>", page)

    def test_a_property_that_one_side_lacks(self) -> None:
        """It is absent there, which is another thing than empty."""
        store = MadeStore()
        for _ in range(5):
            store.put("orders", 0, b"x", properties="k\x01<b>\x02")
        pair = Pair(self.folder, store)
        one = store.stored[2]
        at = pair.read(pair.slave, one.phy, one.size).index(b"k\x01<b>")
        pair.write(pair.slave, one.phy + at, b"j")
        result = self.compare(pair)
        told = [values for found in result.findings for values in found.differing_fields]
        self.assertEqual(
            told,
            [
                {"field": "property k", "master": "<b>", "slave": None},
                {"field": "property j", "master": None, "slave": "<b>"},
            ],
        )
        page = page_of(result)
        self.assertIn("&lt;b&gt;", page)
        self.assertNotIn("<b>&lt;", page)
        self.assertNotIn("<code><b>", page)

    def test_a_damaged_length_does_not_make_every_field_wrong(self) -> None:
        """The side that is no record any more is read by the layout of the one that is."""
        pair = Pair(self.folder, make_store(4, 200))
        one = next(one for one in pair.made.stored[80:] if one.body_size > 100)
        pair.write(pair.slave, one.body_at - 4, (one.body_size + 1).to_bytes(4, "big"))
        result = self.compare(pair)
        found = next(found for found in result.findings if found.phy_from == one.phy and found.differing_fields)
        self.assertEqual([values["field"] for values in found.differing_fields], ["bodyLength"])

    def test_remembered_with_the_answer(self) -> None:
        """A second run out of the state says the same of the fields."""
        pair = Pair(self.folder, make_store(4, 200))
        pair.flip(pair.slave, pair.made.stored[90].phy + 15)
        folder = str(self.folder / "state")
        told = []
        for _ in range(2):
            state = State(folder, now_ns=lambda: 1 << 62).open()
            told.append(as_json(self.compare(pair, RememberingEngine(LocalEngine(1), state))))
            self.assertEqual(state.use.tasks_reused > 0, len(told) == 2)
            state.close(finished=True)
        self.assertEqual(told[0], told[1])
        self.assertTrue(any(one["differing_fields"] for one in told[1]))


class TimelineTests(PageCase):
    def drawn(self, result: Result) -> Timeline:
        drawn = timeline_of(result)
        assert drawn is not None
        return drawn

    def test_counts_are_those_of_the_stores(self) -> None:
        """Records by store time, of both sides and of each topic; the slave's end where its log ends."""
        pair = Pair(self.folder, spread_store(1, 300, 9_000))
        pair.cut(pair.slave, pair.made.stored[200].phy)
        drawn = self.drawn(self.compare(pair))
        self.assertEqual([strip.topic for strip in drawn.strips], ["", "orders-0", "orders-1"])
        whole = drawn.strips[0]
        assert whole.slave is not None
        self.assertEqual((sum(whole.master), sum(whole.slave)), (300, 200))
        self.assertEqual([sum(strip.master) for strip in drawn.strips[1:]], [200, 100])
        windows = -(-300 * 9 // SPAN_S)
        self.assertIn(len(whole.master), (windows, windows + 1))
        self.assertEqual((whole.acked, whole.lost), (None, None))
        self.assertLessEqual(max(whole.master), SPAN_S // 9 + 1)
        first = next(at for at, count in enumerate(whole.slave) if count != whole.master[at])
        self.assertEqual(sum(whole.slave[first + 1 :]), 0)

    def test_the_same_for_any_splits(self) -> None:
        """Splits of another size, and a kernel of another kind, give the same picture."""
        pair = Pair(self.folder, spread_store(3, 300, 400_000))
        pictures = {str(pictures_of(self.compare(pair, split_bytes=size))) for size in (4096, 1 << 14, 1 << 26)}
        self.assertEqual(len(pictures), 1)

    def test_acknowledged_and_lost(self) -> None:
        """Sends are counted when they were stored; what is not there, by its neighbours' times, and is drawn red."""
        pair = Pair(self.folder, spread_store(2, 200, 12_000))
        ones = list(pair.made.stored)
        for at in range(100, 110):
            ones[at] = attrs.evolve(ones[at], message_id=f"gone-{at}")
        result = self.compare(pair, acked=self.acked(ones))
        drawn = self.drawn(result)
        whole = drawn.strips[0]
        assert whole.acked is not None and whole.lost is not None
        self.assertEqual((sum(whole.acked), sum(whole.lost)), (190, 10))
        begin = next(at for at, count in enumerate(whole.lost) if count)
        when = drawn.begin_ms + begin * drawn.span_ms
        stored_ms = 1_790_000_000_000 + 100 * 12_000
        self.assertLess(abs(when - stored_ms), 10 * 60_000)
        page = page_of(result)
        self.assertIn("200 acknowledged, <b>10 of these lost</b>", page)
        self.assertIn('class="cl"', page)
        self.assertNotIn("No table of acknowledged sends", page)
        self.assertIn("No table of acknowledged sends", page_of(self.compare(pair)))

    def test_bounded(self) -> None:
        """Two years are as many bars as two hours; one wrong clock does not squeeze all others into one bar."""
        pair = Pair(self.folder, spread_store(5, 300, 2 * 86_400_000))
        drawn = self.drawn(self.compare(pair))
        self.assertLessEqual(len(drawn.strips[0].master), MAX_WINDOWS + 1)
        self.assertEqual(sum(drawn.strips[0].master), 300)
        store = spread_store(6, 300, 9_000)
        store.now_ms = 2_000_000_000_000
        store.put("orders-1", 0, b"late")
        result = self.compare(Pair(self.folder / "late", store))
        drawn = self.drawn(result)
        self.assertEqual((sum(drawn.strips[0].master), drawn.outside), (300, 1))
        self.assertGreater(len(drawn.strips[0].master), 40)
        self.assertIn("1 records have store times far off", page_of(result))

    def test_many_topics(self) -> None:
        """The greatest topics are drawn, the others counted; one that lost something is drawn however small it is."""
        store = MadeStore()
        for number in range(MAX_TOPICS + 5):
            for _ in range(number + 2):
                store.put(f"t{number}", 0, b"x")
        pair = Pair(self.folder, store)
        ones = [one if one.topic != "t0" else attrs.evolve(one, message_id="gone") for one in store.stored]
        result = self.compare(pair, acked=self.acked(ones))
        drawn = self.drawn(result)
        self.assertEqual((len(drawn.strips), drawn.topics_left_out), (1 + MAX_TOPICS, 5))
        self.assertEqual([strip.topic for strip in drawn.strips[:3]], ["", "t0", f"t{MAX_TOPICS + 4}"])
        self.assertIn("5 more topics", page_of(result))

    def test_windows_widen(self) -> None:
        """A split of very many topics and windows reports a bounded number of counts, and loses none."""
        counts = {(f"t{at % 50}", at): 2 for at in range(20_000)}
        made = tallies(counts)
        self.assertLessEqual(len(made), MAX_COUNTS)
        self.assertEqual(sum(one.records for one in made), 40_000)
        self.assertEqual({one.span_ms % SPAN_MS for one in made}, {0})
        self.assertGreater(made[0].span_ms, SPAN_MS)


class LagTests(PageCase):
    def test_bytes_and_seconds(self) -> None:
        """How far a slave is behind, in bytes and by the last messages' times; negative when it is ahead."""
        pair = Pair(self.folder, spread_store(1, 100, 2_500))
        self.assertEqual(lag_of(self.compare(pair)), pictures_of(self.compare(pair)).lag)
        lag = lag_of(self.compare(pair))
        assert lag is not None
        self.assertEqual((lag.size_bytes, lag.seconds), (0, 0.0))
        cut = pair.made.stored[80].phy
        pair.cut(pair.slave, cut)
        result = self.compare(pair)
        lag = lag_of(result)
        assert lag is not None
        self.assertEqual((lag.size_bytes, lag.seconds), (pair.made.end - cut, 50.0))
        self.assertIn("bytes behind, 50.0 s by store time", page_of(result))
        pair.master, pair.slave = pair.slave, pair.master
        ahead = self.compare(pair)
        lag = lag_of(ahead)
        assert lag is not None
        self.assertEqual((lag.size_bytes, lag.seconds), (cut - pair.made.end, -50.0))
        self.assertIn("bytes AHEAD", page_of(ahead))

    def test_many_pairs(self) -> None:
        """Of three hundred pairs the greatest lags are drawn, and before them those that are not known."""
        pairs = [(f"broker-{at}", Lag(size_bytes=at, seconds=None)) for at in range(MAX_LAGS + 312)]
        drawn = "\n".join(lags([*pairs, ("broker-x", None)]))
        names = re.findall(r"broker-\w+", drawn)
        last = MAX_LAGS + 311
        self.assertEqual((names[:3], len(names)), (["broker-x", f"broker-{last}", f"broker-{last - 1}"], MAX_LAGS))
        self.assertIn("313 more pairs", drawn)

    def test_where_to_look(self) -> None:
        """What a slave lacks is to be looked at on its master, what it has wrong on itself."""
        pair = Pair(self.folder, spread_store(1, 100, 2_500))
        pair.flip(pair.slave, pair.made.stored[20].body_at)
        pair.cut(pair.slave, pair.made.stored[80].phy)
        page = page_of(self.compare(pair))
        wrong, behind = pair.made.stored[20].phy, pair.made.stored[80].phy
        self.assertIn(escape(f'load("{pair.slave}").where("phy_offset = {wrong}")'), page)
        self.assertIn(escape(f'load("{pair.master}").where("phy_offset = {behind}")'), page)

    def test_unknown_where_an_end_was_not_read(self) -> None:
        """A last segment that cannot be read leaves the lag unknown, not zero."""
        pair = Pair(self.folder, spread_store(1, 1200, 10))
        name = sorted((pair.slave / layout.COMMIT_LOG_DIR).iterdir())[-1]
        name.unlink()
        name.mkdir()
        result = self.compare(pair)
        self.assertIsNone(lag_of(result))
        self.assertIn("lag not known", page_of(result))


class QueueTests(PageCase):
    def test_bounds_and_consumers(self) -> None:
        """Each queue's offsets on both sides, and how far each group is behind; what differs stands first."""
        pair = Pair(self.folder, spread_store(1, 90, 10))
        pair.cut(pair.slave, pair.made.stored[-1].phy)
        last = pair.made.stored[-1]
        text = f'{{"offsetTable":{{"{last.topic}@slow<b>":{{{last.queue_id}:{last.queue_offset - 4}}}}}}}'
        (pair.master / "config" / "consumerOffset.json").write_text(text)
        result = self.compare(pair)
        pictures = pictures_of(result)
        first = pictures.queues[0]
        end = last.queue_offset + 1
        self.assertEqual((first.topic, first.queue_id), (last.topic, last.queue_id))
        self.assertEqual(first.sides, {MASTER: Bounds(0, end), SLAVE: Bounds(0, end - 1)})
        self.assertEqual([len(set(bar.sides.values())) for bar in pictures.queues], [2, 1, 1, 1])
        page = page_of(result)
        self.assertIn(f"slow&lt;b&gt; at {end - 5}, 5 behind", page)
        self.assertIn(f"master 0 to {end}<br>slave 0 to {end - 1}", page)

    def test_bounded(self) -> None:
        """Of very many queues and groups a page shows those worth a look and counts the rest."""
        pair = Pair(self.folder, spread_store(1, 30, 10))
        result = self.compare(pair)
        bounds = {(f"t{at}", 0): Bounds(0, 1000) for at in range(MAX_QUEUES + 312)}
        result.queues = {MASTER: dict(bounds), SLAVE: dict(bounds)}
        result.queues[SLAVE]["t200", 0] = Bounds(0, 999)
        result.consumers = {MASTER: [Committed(f"g{at:05}", "t100", 0, at) for at in range(20_000)]}
        pictures = pictures_of(result)
        self.assertEqual([bar.topic for bar in pictures.queues[:2]], ["t200", "t100"])
        self.assertEqual((len(pictures.queues), len(pictures.queues[1].consumers)), (MAX_QUEUES, MAX_GROUPS))
        page = page_of(result)
        self.assertIn("312 more queues", page)
        self.assertIn("19\u202f997 more groups", page)
        self.assertLess(len(page), 100_000)


class BoundTests(PageCase):
    def test_names_are_escaped_and_cut(self) -> None:
        """A topic may be called anything by whoever wrote the bytes: it is text on the page, and not too long."""
        pair = Pair(self.folder, spread_store(1, 30, 10))
        result = self.compare(pair)
        evil = "<script>alert(1)</script>" + "x" * 5000
        result.queues = {side: {(evil, 0): Bounds(0, 5)} for side in (MASTER, SLAVE)}
        result.consumers = {MASTER: [Committed(evil, evil, 0, 3)]}
        tally = Tally(topic=evil, begin_ms=1_790_000_000_000 // SPAN_MS * SPAN_MS, span_ms=SPAN_MS, records=3)
        result.master.scans = [attrs.evolve(result.master.scans[0], tally=[tally]), *result.master.scans[1:]]
        page = page_of(result)
        self.assertNotIn("<script", page)
        self.assertIn("&lt;script&gt;", page)
        self.assertNotIn("x" * 100, page)

    def test_many_findings(self) -> None:
        """Two thousand findings are a page that opens: the worst in full, the rest counted."""
        pair = Pair(self.folder, make_store(2, 300))
        for one in pair.made.stored[40:60]:
            pair.flip(pair.slave, one.phy + 15)
        result = self.compare(pair)
        found = next(found for found in result.findings if found.differing_fields)
        result.findings = [attrs.evolve(found, finding_id=str(at), derived_from=None) for at in range(2000)]
        page = page_of(result)
        self.assertEqual(page.count('<div class="f '), MAX_DETAILED)
        self.assertIn(f"{2000 - MAX_DETAILED:,} more".replace(",", "\u202f"), page)
        self.assertLess(len(page), 2_000_000)

    def test_a_store_alone(self) -> None:
        """The page of check has one side: no lag, no map, no second row."""
        pair = Pair(self.folder, make_store(2, 120))
        page = page_of(check(str(pair.master), LocalEngine(1), Options()))
        self.assertNotIn("slave", re.sub("<style>.*?</style>", "", page, flags=re.DOTALL))
        self.assertIn("Timeline", page)
        self.assertIn("Queues and consumers", page)


@pytest.mark.spark
@pytest.mark.campaign
class SparkPageTests(EngineCase, PageCase):
    def test_the_same_as_local(self) -> None:
        """Tasks of Spark bring back the same fields, times and counts as the local engine: the page is the same."""
        pair = Pair(self.folder, spread_store(7, 300, 9_000))
        pair.flip(pair.slave, pair.made.stored[90].phy + 15)
        pair.flip(pair.slave, pair.made.stored[91].body_at)
        pair.cut(pair.slave, pair.made.stored[250].phy)
        ones = list(pair.made.stored)
        ones[50] = attrs.evolve(ones[50], message_id="gone")
        acked = self.acked(ones)
        local, spark = self.compare(pair, acked=acked), self.compare(pair, self.engine, acked=acked)
        self.assertEqual(pictures_of(spark), pictures_of(local))
        self.assertEqual(as_json(spark), as_json(local))
        self.assertEqual(page_of(spark), page_of(local))
        self.assertEqual(sum(bool(one.differing_fields) for one in spark.findings), 2)
