"""Which client of a group may consume which queue in order."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from rmq.wire.api.common import MessageQueue

#: a lock that its holder does not renew ends after this.  Java: RebalanceLockManager REBALANCE_LOCK_MAX_LIVE_TIME
LOCK_LIFE_MS = 60_000
#: locks of all groups together; at the limit no client gets another one
MAX_LOCKS = 1_000_000


@attrs.define
class _Lock:
    client_id: str
    renewed_ms: int


@attrs.define
class QueueLocks:
    """
    Locks by group and queue. They survive a lost connection until they expire; all times are steady.

    Java: RebalanceLockManager
    """

    _groups: dict[str, dict[MessageQueue, _Lock]] = attrs.field(factory=dict, init=False)
    _count: int = attrs.field(default=0, init=False)

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Return those of ``queues`` that ``client_id`` holds now, newly or again."""
        locks = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                if self._count >= MAX_LOCKS:
                    continue
                self._count += 1
                locks[queue] = _Lock(client_id, now_ms)
            elif lock.client_id == client_id or now_ms - lock.renewed_ms > LOCK_LIFE_MS:
                lock.client_id, lock.renewed_ms = client_id, now_ms
            else:
                continue
            held.append(queue)
        if not locks:
            del self._groups[group]
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of ``queues`` that ``client_id`` holds."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._groups.pop(group, None)

    def expire(self, now_ms: int) -> None:
        """Remove expired locks."""
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, lock in locks.items() if now_ms - lock.renewed_ms > LOCK_LIFE_MS]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._groups[group]
