"""Acknowledged offsets per slave, and puts that wait for a quorum."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from rmq.store.groupcommit import OffsetWaiters
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
    reported: bool = True
    #: where the log ended when another connection joined last: an acknowledgement beyond it proves that this one lives
    doubted_to: int = -1
    #: its id, where a controller elects the master
    broker_id: int | None = None

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
        #: the quorum: how many slaves must hold a message before its producer gets PUT_OK
        self.need = need
        #: a slave that lags so much or more is out of sync (haSlaveFallbehindMax)
        self.max_lag_bytes = max_lag_bytes
        self._slaves: dict[int, SlaveAck] = {}

    def __len__(self) -> int:
        return len(self._slaves)

    def __contains__(self, connection: int) -> bool:
        return connection in self._slaves

    def join(
        self, connection: int, host: str, offset: int, *, start_offset: int, end: int, broker_id: int | None = None
    ) -> None:
        """Count a connection whose first report was valid; the log ends at ``end`` now."""
        for slave in self._slaves.values():
            slave.doubted_to = end
            if slave.host == host:
                slave.reported = False
        self._slaves[connection] = SlaveAck(
            host, offset, start_offset, 0 if offset else start_offset, broker_id=broker_id
        )

    def report(self, connection: int, offset: int) -> int:
        """Take a later report and return the one before; one below its predecessor changes nothing."""
        slave = self._slaves[connection]
        before = slave.offset
        slave.offset = max(before, offset)
        slave.reported = True
        return before

    def leave(self, connection: int) -> None:
        """Forget a connection, also one that never joined."""
        self._slaves.pop(connection, None)

    @property
    def is_short(self) -> bool:
        """True when too few slaves are connected: no put can be answered with PUT_OK."""
        return len(self._slaves) < self.need

    def quorum_offset(self) -> int:
        """Return the offset below which a quorum of slaves holds everything, -1 when there are too few slaves."""
        offsets = sorted((slave.offset for slave in self._counted()), reverse=True)
        return offsets[self.need - 1] if len(offsets) >= self.need else -1

    @property
    def copies_start(self) -> int:
        """After this offset every slave that counts has what it acknowledges."""
        return max((slave.copy_start for slave in self._counted()), default=0)

    def holds(self, next_offset: int) -> bool:
        """Return True when a quorum of slaves holds the record that ends at ``next_offset``."""
        return sum(slave.copy_start < next_offset <= slave.offset for slave in self._counted()) >= self.need

    def is_quorum_in_sync(self, next_offset: int) -> bool:
        """Return True when a quorum of slaves lags less than haSlaveFallbehindMax behind ``next_offset``."""
        slaves = (slave for slave in self._slaves.values() if slave.reported or self.need == 1)
        return sum(self._in_sync(slave, next_offset) for slave in slaves) >= self.need

    def is_in_sync(self, connection: int, next_offset: int) -> bool:
        """Return True when this slave lags less than haSlaveFallbehindMax; False for one that never joined."""
        slave = self._slaves.get(connection)
        return slave is not None and self._in_sync(slave, next_offset)

    def _in_sync(self, slave: SlaveAck, next_offset: int) -> bool:
        return next_offset - max(slave.offset, slave.start_offset) < self.max_lag_bytes

    def _counted(self) -> list[SlaveAck]:
        if self.need == 1:
            # For the furthest of all it does not matter whether two of them are the same slave.
            return list(self._slaves.values())
        return [slave for slave in self._slaves.values() if slave.is_proven]


#: a quorum of no slave holds everything
EVERYTHING = 2**63 - 1


class MemberAcks(Acks):
    """
    Where a controller elects the master: not a number of slaves counts, but each broker of the SyncStateSet.

    ``required`` are these brokers without the master itself. Of two connections of one broker the newer one counts.

    Java: AutoSwitchHAService, with allAckInSyncStateSet
    """

    def __init__(self, *, max_lag_bytes: int) -> None:
        super().__init__(need=1, max_lag_bytes=max_lag_bytes)
        self.required: frozenset[int] = frozenset()

    @property
    def members(self) -> dict[int, SlaveAck]:
        """The newest connection of each broker."""
        return {slave.broker_id: slave for slave in self._slaves.values() if slave.broker_id is not None}

    @property
    def is_short(self) -> bool:
        return not self.required <= self.members.keys()

    def quorum_offset(self) -> int:
        if self.is_short:
            return -1
        return min((slave.offset for slave in self._counted()), default=EVERYTHING)

    def holds(self, next_offset: int) -> bool:
        slaves = self._counted()
        return not self.is_short and all(slave.copy_start < next_offset <= slave.offset for slave in slaves)

    def is_quorum_in_sync(self, next_offset: int) -> bool:
        return not self.is_short and all(self._in_sync(slave, next_offset) for slave in self._counted())

    def caught_up(self, offset: int) -> Iterable[int]:
        """Return the brokers that hold everything below ``offset``."""
        return [broker_id for broker_id, slave in self.members.items() if slave.offset >= offset]

    def _counted(self) -> list[SlaveAck]:
        return [slave for broker_id, slave in self.members.items() if broker_id in self.required]


class ReplicaWaits:
    """
    Puts that wait for slaves: completed when enough slaves hold them, at their deadline, or by :meth:`fail_all`.

    Java: GroupTransferService
    """

    def __init__(self, clock: IReactorTime, acks: Acks) -> None:
        self.acks = acks
        self._waiters = OffsetWaiters(clock, timeout=PutStatus.FLUSH_SLAVE_TIMEOUT)
        #: puts that were refused because too many waited
        self._overflows = 0

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def timeouts(self) -> int:
        """Puts that were answered with FLUSH_SLAVE_TIMEOUT before the stop."""
        return self._waiters.timeouts + self._overflows

    def wait(self, next_offset: int, deadline_ms: int) -> PutStatus | Deferred[PutStatus]:
        """Return PUT_OK or SLAVE_NOT_AVAILABLE when that is clear at once, else a Deferred."""
        if self.acks.quorum_offset() >= next_offset:
            return PutStatus.PUT_OK
        if not self.acks.is_quorum_in_sync(next_offset):
            return PutStatus.SLAVE_NOT_AVAILABLE
        if self._waiters.is_full:
            # So many producers wait that no later one can expect an answer in time.
            self._overflows += 1
            return PutStatus.FLUSH_SLAVE_TIMEOUT
        done: Deferred[PutStatus] = Deferred()
        self._waiters.add(next_offset, deadline_ms, done)
        return done

    def advance(self) -> None:
        """
        Complete all puts that enough slaves hold by now.

        A slave that joined empty acknowledges the segments before its copy without having them: puts there time out.
        """
        if len(self._waiters):
            copies_start = self.acks.copies_start
            self._waiters.reached(
                self.acks.quorum_offset(), self.acks.holds if self._waiters.first_offset <= copies_start else None
            )

    def fail_all(self, status: PutStatus) -> None:
        """Complete all puts with ``status``."""
        self._waiters.fail_all(status)

    def stop(self, status: PutStatus) -> None:
        """Complete all puts with ``status`` and leave no timer behind."""
        self._waiters.stop(status)
