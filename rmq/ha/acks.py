"""Who holds the log up to where, and who waits for which offset until when."""

from __future__ import annotations

import attrs
from twisted.internet.defer import Deferred

from rmq.store.groupcommit import CommitWaits, GroupCommitRequest, answer
from rmq.store.messages import PutStatus


@attrs.define
class SlaveAck:
    """What one live connection has acknowledged."""

    host: str
    #: everything below is in the slave's memory
    offset: int
    #: where its copy begins when it joined empty; bytes before are not missed
    start_offset: int
    #: where its copy begins: it acknowledges what lies before without having it
    copy_start: int
    #: False from the moment another connection of the same host joined until the next report on this one
    heard: bool = True
    #: where the log ended when another connection joined last: an acknowledgement beyond it proves that this one lives
    doubted_to: int = -1

    @property
    def is_proven(self) -> bool:
        """True when this connection and all younger ones are known to be different slaves."""
        return self.offset > self.doubted_to


class Acks:
    """
    The acknowledgements of live connections that began with a valid report.

    A slave has no name on the wire. Two connections may be two slaves, or one slave that came back, perhaps from
    another address, before the loss of its first connection was noticed. So when a connection joins, the older ones
    count no more towards a quorum until they acknowledge bytes that were appended since: only a connection that lives
    can. Waiting for them makes sense all the same, but for those of the same host, which must report again first.

    Java: HAService#isSlaveOK, GroupTransferService
    """

    def __init__(self, *, need: int, max_lag_bytes: int) -> None:
        #: how many slaves must hold a message before its producer is told so
        self.need = need
        self._max_lag_bytes = max_lag_bytes
        self._slaves: dict[int, SlaveAck] = {}

    def __len__(self) -> int:
        return len(self._slaves)

    def __contains__(self, connection: int) -> bool:
        return connection in self._slaves

    def join(self, connection: int, host: str, offset: int, *, start_offset: int, end: int) -> None:
        """Count a connection whose first report was valid; the log ends at ``end`` now."""
        for slave in self._slaves.values():
            slave.doubted_to = end
            if slave.host == host:
                slave.heard = False
        self._slaves[connection] = SlaveAck(host, offset, start_offset, 0 if offset else start_offset)

    def report(self, connection: int, offset: int) -> int:
        """Take a later report and return the one before; one below its predecessor changes nothing."""
        slave = self._slaves[connection]
        before = slave.offset
        slave.offset = max(before, offset)
        slave.heard = True
        return before

    def leave(self, connection: int) -> None:
        """Forget a connection, also one that never joined."""
        self._slaves.pop(connection, None)

    def reached(self) -> int:
        """Return the offset below which ``need`` slaves hold everything, -1 when there are not so many."""
        offsets = sorted((slave.offset for slave in self._counted()), reverse=True)
        return offsets[self.need - 1] if len(offsets) >= self.need else -1

    @property
    def copies_start(self) -> int:
        """Behind this offset every slave that counts has what it acknowledges."""
        return max((slave.copy_start for slave in self._counted()), default=0)

    def holds(self, next_offset: int) -> bool:
        """Tell whether ``need`` slaves hold the record that ends at ``next_offset``."""
        return sum(slave.copy_start < next_offset <= slave.offset for slave in self._counted()) >= self.need

    def healthy(self, next_offset: int) -> bool:
        """Tell whether ``need`` slaves are so near to ``next_offset`` that waiting for them makes sense."""
        near = (slave for slave in self._slaves.values() if slave.heard or self.need == 1)
        return sum(self._is_near(slave, next_offset) for slave in near) >= self.need

    def is_near(self, connection: int, next_offset: int) -> bool:
        """Tell whether waiting for this one makes sense; not for one that never joined."""
        slave = self._slaves.get(connection)
        return slave is not None and self._is_near(slave, next_offset)

    def _is_near(self, slave: SlaveAck, next_offset: int) -> bool:
        return next_offset - max(slave.offset, slave.start_offset) < self._max_lag_bytes

    def _counted(self) -> list[SlaveAck]:
        if self.need == 1:
            # For the furthest of all it does not matter whether two of them are the same slave.
            return list(self._slaves.values())
        return [slave for slave in self._slaves.values() if slave.is_proven]


class ReplicaWaits:
    """
    Puts that wait for slaves, completed by offset and never by a loop.

    Every request is answered exactly once: when enough slaves hold it, at its own deadline, when the last slave that
    it could wait for is gone, or at the stop.
    """

    def __init__(self, acks: Acks) -> None:
        self.acks = acks
        self._waits = CommitWaits()
        #: requests that reached their deadline
        self.timeouts = 0

    def __len__(self) -> int:
        return len(self._waits)

    def wait(self, next_offset: int, deadline_ms: int) -> PutStatus | Deferred[PutStatus]:
        """Return PUT_OK or SLAVE_NOT_AVAILABLE when that is clear at once, else a Deferred."""
        if self.acks.reached() >= next_offset:
            return PutStatus.PUT_OK
        if not self.acks.healthy(next_offset):
            return PutStatus.SLAVE_NOT_AVAILABLE
        if self._waits.full:
            # So many producers wait that no later one can expect an answer in time.
            self.timeouts += 1
            return PutStatus.FLUSH_SLAVE_TIMEOUT
        done: Deferred[PutStatus] = Deferred()
        self._waits.add(GroupCommitRequest(next_offset, deadline_ms, done))
        return done

    @property
    def next_deadline_ms(self) -> int | None:
        """When :meth:`expire` has something to do; None while nobody waits."""
        return self._waits.next_deadline_ms

    def advance(self) -> None:
        """
        Answer all that enough slaves hold by now.

        A slave that came back empty begins with the last segment: nobody may be told that it has what lies before.
        """
        if not len(self._waits):
            return
        done = self._waits.reached(self.acks.reached())
        if done and done[0].next_offset <= self.acks.copies_start:
            missed = [request for request in done if not self.acks.holds(request.next_offset)]
            self.timeouts += len(missed)
            answer(missed, PutStatus.FLUSH_SLAVE_TIMEOUT)
            done = [request for request in done if request not in missed]
        answer(done, PutStatus.PUT_OK)

    def expire(self, now_ms: int) -> None:
        """Answer those whose deadline has come."""
        late = self._waits.expired(now_ms)
        self.timeouts += len(late)
        answer(late, PutStatus.FLUSH_SLAVE_TIMEOUT)

    def fail_all(self, status: PutStatus) -> None:
        """Answer everybody with ``status``."""
        self._waits.fail_all(status)
