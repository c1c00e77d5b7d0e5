"""Groups and their members: who hears of whom."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.sessions import (
    COALESCE_S,
    MAX_DIFFERENCES,
    MEMBER_EXPIRY_MS,
    ChangeNotices,
    ConsumerGroup,
    ConsumerGroups,
    Member,
    ProducerGroups,
)
from rmq.wire.api.common import SubscriptionData
from rmq.wire.command import RemotingCommand


class Link:
    """The far end of a connection: remembers what it was told."""

    def __init__(self, name: str) -> None:
        self.peer = name
        self.is_open = True
        self.told: list[str] = []

    def oneway(self, contract: Any, header: Any, body: Any) -> bool:
        self.told.append(f"{contract.code} {header.consumer_group}")
        return True

    def invoke(self, contract: Any, header: Any, body: Any, *, timeout_ms: float) -> Deferred[Any]:
        return succeed(None)

    def request(self, command: RemotingCommand, *, timeout_ms: float) -> Deferred[RemotingCommand]:
        return succeed(command)

    def close(self, reason: str) -> None:
        self.is_open = False


def member(link: Link, *, at_ms: int = 0, client_id: str | None = None) -> Member:
    return Member(
        channel=link, client_id=client_id or f"id-{link.peer}", language="JAVA", version=409, last_heard_ms=at_ms
    )


def topic(name: str, version: int = 1, expression: str = "*") -> SubscriptionData:
    return SubscriptionData(topic=name, sub_version=version, sub_string=expression)


class DifferenceTests(SynchronousTestCase):
    """Where members of a group subscribe to different things."""

    def setUp(self) -> None:
        self.group = ConsumerGroup(name="G")

    def beat(self, name: str, *subscriptions: SubscriptionData) -> list[str]:
        found = self.group.differences(name, subscriptions)
        self.group.refresh(member(Link(name), client_id=name))
        self.group.subscribe(subscriptions)
        return found

    def test_each_once(self) -> None:
        """The heartbeat that makes a difference returns it; those that follow, of either member, do not."""
        self.assertEqual(self.beat("c1", topic("T", 1, "A || B"), topic("%RETRY%G")), [])
        self.assertEqual(
            self.beat("c2", topic("T", 2, "B||A"), topic("U", 2)), ["topic U: c2 subscribes to *, the group to nothing"]
        )
        for _ in range(3):
            self.assertEqual(self.beat("c1", topic("T", 1, "A || B")), [])
            self.assertEqual(self.beat("c2", topic("T", 2, "A||B"), topic("U", 2)), [])
        self.assertEqual(
            self.beat("c3", topic("T", 3, "C"), topic("U")), ["topic T: c3 subscribes to C, the group to A || B"]
        )
        self.assertEqual(self.beat("c1", topic("T", 1, "A || B"), topic("U")), [])
        sql = SubscriptionData(topic="T", sub_version=4, sub_string="a > 1", expression_type="SQL92")
        self.assertEqual(self.beat("c2", sql, topic("U")), ["topic T: c2 subscribes to SQL92 a > 1, the group to C"])

    def test_alone(self) -> None:
        """A client that is alone in its group may change what it subscribes to."""
        self.assertEqual(self.beat("c1", topic("T", 1, "A")), [])
        self.assertEqual(self.beat("c1", topic("T", 2, "B"), topic("U")), [])

    def test_bound(self) -> None:
        """A group says so many differences at most while it has members."""
        self.beat("c1", topic("T"))
        found = [self.beat("c2", topic("T", n, str(n))) for n in range(2, MAX_DIFFERENCES + 10)]
        self.assertEqual([len(one) for one in found], [1] * MAX_DIFFERENCES + [0] * 8)


class Groups(ConsumerGroups):
    """Consumer groups with a short way to send a heartbeat."""

    def beat(
        self, link: Link, *subscriptions: SubscriptionData, group: str = "G", at_ms: int = 0
    ) -> ConsumerGroup | None:
        return self.register(
            group,
            member(link, at_ms=at_ms),
            subscriptions,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
        )


def groups() -> tuple[Groups, list[str]]:
    changed: list[str] = []
    return Groups(changed=lambda group: changed.append(group.name), offline=lambda name: None), changed


class ConsumerGroupTests(SynchronousTestCase):
    def test_contradicting_members(self) -> None:
        """Of two members with the same version of a subscription the first one counts; a newer version replaces it."""
        table, _ = groups()
        group = table.beat(Link("a"), topic("T", 2, "A"))
        assert group is not None
        table.beat(Link("b"), topic("T", 2, "B"))
        self.assertEqual(group.subscriptions["T"].sub_string, "A")
        table.beat(Link("b"), topic("T", 3, "B"))
        self.assertEqual(group.subscriptions["T"].sub_string, "B")

    def test_how_a_group_consumes(self) -> None:
        """consumerConnection and the metrics show how a group consumes by its latest heartbeat, not by the defaults."""
        table, _ = groups()
        for kinds in (
            ("CONSUME_ACTIVELY", "BROADCASTING", "CONSUME_FROM_TIMESTAMP"),
            ("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET"),
        ):
            names = ("consume_type", "message_model", "consume_from_where")
            table.register("G", member(Link("a")), [], **dict(zip(names, kinds, strict=True)))
            group = table.find("G")
            assert group is not None
            self.assertEqual((group.consume_type, group.message_model, group.consume_from_where), kinds)

    def test_a_newcomer_changes_the_group_once(self) -> None:
        """The first heartbeat of a connection is a change, the next ones are not."""
        table, _ = groups()
        link = Link("a")
        self.assertIsNotNone(table.beat(link, topic("T")))
        self.assertIsNone(table.beat(link, topic("T")))
        self.assertIsNotNone(table.beat(Link("b"), topic("T")))

    def test_members_are_listed_once(self) -> None:
        """A client that has two connections for a moment is one member of the group."""
        table, _ = groups()
        first, second = Link("a"), Link("a")
        table.beat(first)
        table.beat(second)
        group = table.find("G")
        assert group is not None
        self.assertEqual((group.client_ids, len(group.members)), (["id-a"], 2))

    def test_subscriptions(self) -> None:
        """A heartbeat brings and takes topics; a known topic changes with a newer version only, and silently."""
        table, _ = groups()
        link = Link("a")
        table.beat(link, topic("T", 5, "A"))
        group = table.find("G")
        assert group is not None
        self.assertIsNone(table.beat(link, topic("T", 4, "old")))
        self.assertEqual(group.subscriptions["T"].sub_string, "A")
        self.assertIsNone(table.beat(link, topic("T", 6, "new")))
        self.assertEqual(group.subscriptions["T"].sub_string, "new")
        self.assertIsNotNone(table.beat(link, topic("T", 6), topic("U")))
        self.assertIsNotNone(table.beat(link, topic("U")))
        self.assertEqual(list(group.subscriptions), ["U"])

    def test_heartbeat_without_subscriptions(self) -> None:
        """A 5.x heartbeat that leaves them out keeps them."""
        table, _ = groups()
        link = Link("a")
        table.beat(link, topic("T"))
        again = table.register(
            "G",
            member(link),
            None,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
        )
        self.assertIsNone(again)
        self.assertEqual(table.subscribers("T"), ["G"])

    def test_leaving(self) -> None:
        """Who leaves is gone at once; the last one takes the group along."""
        table, _ = groups()
        a, b = Link("a"), Link("b")
        table.beat(a)
        table.beat(b)
        left = table.unregister("G", a)
        assert left is not None
        self.assertEqual(left.client_ids, ["id-b"])
        self.assertIsNone(table.unregister("G", a))
        table.unregister("G", b)
        self.assertIsNone(table.find("G"))

    def test_lost_connection_leaves_every_group(self) -> None:
        """The other members of each group hear of a lost connection."""
        table, changed = groups()
        link = Link("a")
        table.beat(link, group="G")
        table.beat(link, group="H")
        table.beat(Link("b"), group="I")
        table.channel_closed(link)
        self.assertEqual((changed, table.names()), (["G", "H"], ["I"]))

    def test_silence(self) -> None:
        """A member that says nothing for two minutes is gone, and not a millisecond earlier."""
        table, changed = groups()
        table.beat(Link("a"), at_ms=0)
        table.beat(Link("b"), at_ms=1)
        self.assertEqual(table.expire(MEMBER_EXPIRY_MS), [])
        self.assertEqual([gone.client_id for gone in table.expire(MEMBER_EXPIRY_MS + 1)], ["id-a"])
        self.assertEqual(changed, ["G"])


class ProducerGroupTests(SynchronousTestCase):
    def test_members(self) -> None:
        """Producers come with a heartbeat and go with their connection, their word or their silence."""
        table = ProducerGroups()
        a, b, c = Link("a"), Link("b"), Link("c")
        for link in (a, b, c):
            table.register("P", member(link, at_ms=5 if link is c else 0))
        table.unregister("P", a)
        table.channel_closed(b)
        self.assertEqual([each.client_id for each in table.members("P")], ["id-c"])
        self.assertEqual(table.expire(MEMBER_EXPIRY_MS + 5), [])
        self.assertEqual([each.client_id for each in table.expire(MEMBER_EXPIRY_MS + 6)], ["id-c"])
        self.assertEqual(table.table(), {})


class ChangeNoticeTests(SynchronousTestCase):
    def group(self, *links: Link) -> ConsumerGroup:
        return ConsumerGroup(name="G", members={link: member(link) for link in links})

    def test_now(self) -> None:
        """All members hear of a change, the newcomer too; a closing connection is left alone."""
        a, b, gone = Link("a"), Link("b"), Link("gone")
        gone.is_open = False
        ChangeNotices(Clock(), enabled=True).now(self.group(a, b, gone))
        self.assertEqual((a.told, b.told, gone.told), (["40 G"], ["40 G"], []))

    def test_many_changes_are_one_notice(self) -> None:
        """A hundred members that leave at once are one notice for those who stay."""
        clock = Clock()
        notices = ChangeNotices(clock, enabled=True)
        stays = Link("a")
        group = self.group(stays)
        for _ in range(100):
            notices.soon(group)
        self.assertEqual(stays.told, [])
        clock.advance(0)
        self.assertEqual(stays.told, ["40 G"])
        notices.soon(group)
        clock.advance(COALESCE_S)
        self.assertEqual(stays.told, ["40 G", "40 G"])

    def test_many_newcomers_are_two_notices(self) -> None:
        """The first newcomer is told at once; those who come soon after it, once, and then all is quiet."""
        clock = Clock()
        notices = ChangeNotices(clock, enabled=True)
        links = [Link(str(number)) for number in range(100)]
        for number in range(len(links)):
            notices.now(self.group(*links[: number + 1]))
        self.assertEqual([link.told for link in links], [["40 G"], *[[]] * 99])
        clock.advance(COALESCE_S)
        self.assertEqual([link.told for link in links], [["40 G"] * 2, *[["40 G"]] * 99])
        clock.advance(COALESCE_S)
        self.assertEqual(clock.getDelayedCalls(), [])
        self.assertEqual(links[1].told, ["40 G"])

    def test_switched_off(self) -> None:
        """notifyConsumerIdsChangedEnable=false tells nobody."""
        clock = Clock()
        notices = ChangeNotices(clock, enabled=False)
        link = Link("a")
        notices.now(self.group(link))
        notices.soon(self.group(link))
        clock.advance(1)
        self.assertEqual((link.told, clock.getDelayedCalls()), ([], []))

    def test_stop(self) -> None:
        """After the stop nothing is left to run."""
        clock = Clock()
        notices = ChangeNotices(clock, enabled=True)
        for _ in range(2):
            notices.soon(self.group(Link("a")))
        notices.stop()
        notices.now(self.group(Link("a")))
        self.assertEqual(clock.getDelayedCalls(), [])


class ManyConnectionsTests(SynchronousTestCase):
    def test_producers_that_share_a_client_id(self) -> None:
        """A client is found by its id on the connection that registered last, whatever groups and connections leave."""
        producers, old, new = ProducerGroups(), Link("old"), Link("new")
        for group in ("A", "B"):
            producers.register(group, member(old, client_id="c"))
        latest = member(new, client_id="c")
        producers.register("A", latest)
        self.assertIs(producers.find_client("c"), latest)
        self.assertTrue(producers.has("A", latest))
        producers.channel_closed(new)
        found = producers.find_client("c")
        assert found is not None
        self.assertIs(found.channel, old)
        producers.unregister("B", old)
        self.assertIsNotNone(producers.find_client("c"))
        producers.channel_closed(old)
        self.assertIsNone(producers.find_client("c"))
        self.assertEqual((producers.table(), producers._clients, producers._of), ({}, {}, {}))

    def test_a_connection_with_another_client_id(self) -> None:
        """A connection that says another client id than before is found by the new one only."""
        producers, link = ProducerGroups(), Link("a")
        producers.register("A", member(link, client_id="c1"))
        producers.register("A", member(link, client_id="c2"))
        self.assertIsNone(producers.find_client("c1"))
        self.assertIsNotNone(producers.find_client("c2"))

    def test_a_lost_connection_costs_its_own_groups(self) -> None:
        """A connection that closes leaves the groups that it was in, and no other group is looked at."""

        class Watched(dict[str, Any]):
            asked = 0

            def get(self, *args: Any) -> Any:
                self.asked += 1
                return super().get(*args)

        changed: list[str] = []
        consumers = ConsumerGroups(changed=lambda group: changed.append(group.name), offline=lambda name: None)
        producers, links = ProducerGroups(), [Link(str(number)) for number in range(200)]
        consumers._groups, producers._groups = Watched(), Watched()
        for number, link in enumerate(links):
            producers.register(f"P{number}", member(link))
            consumers.register(f"G{number}", member(link), [], consume_type="", message_model="", consume_from_where="")
        consumers._groups.asked = producers._groups.asked = 0
        for link in links:
            producers.channel_closed(link)
            consumers.channel_closed(link)
        self.assertLessEqual(producers._groups.asked, 200)
        self.assertLessEqual(consumers._groups.asked, 200)
        self.assertEqual(changed, [f"G{number}" for number in range(200)])
        self.assertEqual((consumers.names(), consumers._of, producers._of), ([], {}, {}))
