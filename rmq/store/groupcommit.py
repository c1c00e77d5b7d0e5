"""Those who wait until the log has reached an offset, on disk or on a slave."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import attrs

from rmq.store.messages import PutStatus


class Waiter(Protocol):
    """Who waits for the fate of what it has put: a Deferred, or something that costs less."""

    def callback(self, status: PutStatus, /) -> object:
        """Take the answer; called once."""


@attrs.define(eq=False)
class GroupCommitRequest:
    """
    Somebody who waits for ``next_offset``; ``done`` is called once, with the status.

    Java: CommitLog.GroupCommitRequest
    """

    next_offset: int
    deadline_ms: int
    done: Waiter


class CommitWaits:
    """
    Waiting requests in the order of the log, so one offset answers all that lie before it.

    The queue only decides who is answered; whoever calls :meth:`reached`, :meth:`expired` or :meth:`take_all` calls
    ``done`` of the requests returned (:func:`answer`), after they have left the queue. Bounded by ``limit`` requests:
    :attr:`full` tells a caller to refuse before it appends.

    Java: GroupCommitService, GroupTransferService (without their loops)
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._waiting: deque[GroupCommitRequest] = deque()
        self._limit = limit

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """True when ``limit`` requests wait."""
        return len(self._waiting) >= self._limit

    @property
    def next_deadline_ms(self) -> int | None:
        """The deadline of the oldest request; later ones may be earlier only after a step of the clock."""
        return self._waiting[0].deadline_ms if self._waiting else None

    @property
    def last_offset(self) -> int:
        """The highest offset that anybody waits for; -1 when nobody does."""
        return self._waiting[-1].next_offset if self._waiting else -1

    def add(self, request: GroupCommitRequest) -> None:
        """Queue a request; offsets never fall."""
        assert request.next_offset >= self.last_offset, "requests come in the order of the log"
        self._waiting.append(request)

    def reached(self, offset: int) -> list[GroupCommitRequest]:
        """Remove and return, oldest first, all requests for ``offset`` or less."""
        waiting = self._waiting
        done = []
        while waiting and waiting[0].next_offset <= offset:
            done.append(waiting.popleft())
        return done

    def expired(self, now_ms: int) -> list[GroupCommitRequest]:
        """Remove and return, oldest first, all requests whose deadline is ``now_ms`` or earlier."""
        waiting = self._waiting
        done = []
        while waiting and waiting[0].deadline_ms <= now_ms:
            done.append(waiting.popleft())
        return done

    def take_all(self) -> list[GroupCommitRequest]:
        """Remove and return all requests."""
        done = list(self._waiting)
        self._waiting.clear()
        return done

    def fail_all(self, status: PutStatus) -> None:
        """Answer everybody with ``status``."""
        answer(self.take_all(), status)


def answer(requests: list[GroupCommitRequest], status: PutStatus) -> None:
    """Tell those whose requests have left their queue."""
    for request in requests:
        request.done.callback(status)
