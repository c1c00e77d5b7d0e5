"""
Which member of a consumer group gets which queue; equal to Java's results, so that mixed groups agree.

Java: AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle, AllocateMessageQueueConsistentHash,
AllocateMachineRoomNearby, AllocateMessageQueueByConfig
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from rmq.wire.api.common import MessageQueue

#: (group, own client id, all queues in order, all client ids in order) -> own queues
Strategy = Callable[[str, str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]

_POINTS_OF_A_MEMBER = 10


def java_order(text: str) -> bytes:
    """Return a sort key that orders like Java's ``String.compareTo``: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def in_order(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queues as every member sorts them.  Java: MessageQueue#compareTo"""
    return sorted(queues, key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id))


def average(group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Blocks of neighbouring queues, the first members get one more.  Java: AllocateMessageQueueAveragely"""
    if me not in members:
        return []
    index = members.index(me)
    size, more = divmod(len(queues), len(members))
    start = index * size + min(index, more)
    return list(queues[start : start + size + (index < more)])


def average_by_circle(
    group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """One queue after the other to one member after the other.  Java: AllocateMessageQueueAveragelyByCircle"""
    return list(queues[members.index(me) :: len(members)]) if me in members else []


def consistent_hash(group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """A ring of ten points for each member.  Java: AllocateMessageQueueConsistentHash, ConsistentHashRouter"""
    if me not in members:
        return []
    ring = {_hash(f"{member}-{point}"): member for member in members for point in range(_POINTS_OF_A_MEMBER)}
    points = sorted(ring)
    mine = []
    for queue in queues:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        if ring[points[bisect_left(points, _hash(text)) % len(points)]] == me:
            mine.append(queue)
    return mine


def nearby(inner: Strategy, broker_room: Callable[[MessageQueue], str], member_room: Callable[[str], str]) -> Strategy:
    """
    Queues go to members of their own room, shared by ``inner``; those of a room without members go to all.

    ``broker_room`` and ``member_room`` name the room of a queue and of a client id.  Java: AllocateMachineRoomNearby
    """

    def allocate(group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if me not in members:
            return []
        rooms: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            rooms.setdefault(broker_room(queue), []).append(queue)
        mine: list[MessageQueue] = []
        for room in sorted(rooms, key=java_order):
            there = [member for member in members if member_room(member) == room]
            if me in there or not there:
                mine += inner(group, me, rooms[room], there or members)
        return mine

    return allocate


def by_config(own: Iterable[MessageQueue]) -> Strategy:
    """Return a strategy that always gives this member the same queues.  Java: AllocateMessageQueueByConfig"""
    queues = list(own)
    return lambda group, me, all_queues, members: list(queues)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()[:4], "big")


AVERAGE: Strategy = average
AVERAGE_BY_CIRCLE: Strategy = average_by_circle
CONSISTENT_HASH: Strategy = consistent_hash
