"""Long polls: pulls that wait for a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from twisted.logger import Logger

from rmq.remoting.responders import MAX_COLLECTED_BYTES
from rmq.store.dispatch import Units, numbered

#: how often the table is checked for deadlines
TICK_S = 1.0
#: how often a waiting pull is woken by any new message, matching or not.  Java: PullRequestHoldService#run
SWEEP_MS = 5_000
#: queues that are looked at, and pulls that are woken, in one turn of the reactor
QUEUES_AT_ONCE, WAKE_AT_ONCE = 2000, 500
#: limits of waiting pulls and of the memory for what they subscribe to; others are answered at once
MAX_HELD, MAX_HELD_BYTES = 100_000, 64 << 20


@attrs.define(eq=False, kw_only=True)
class HeldPull:
    """
    One pull without a message.

    ``deadline_ms`` is steady time. ``matches(tags_code)`` is True if a new message may match the filter.
    ``wake(pull)`` is called exactly once; it returns the answer, to be written to ``channel``, or None when it writes
    that itself or there is none.
    """

    topic: str
    queue_id: int
    from_offset: int
    deadline_ms: int
    channel: Any
    matches: Callable[[int], bool] | None
    wake: Callable[[Any], bytes | None]
    #: memory for its subscription and ``matches``, where no other pull shares them
    size_bytes: int = 0


class LongPolls:
    """
    The table of waiting pulls by queue. Whatever ends the wait, ``wake`` is called exactly once.

    Java: PullRequestHoldService, ManyPullRequest
    """

    _log = Logger()

    def __init__(self, max_offset: Callable[[str, int], int], *, limit: int = MAX_HELD) -> None:
        self._max_offset = max_offset
        self._limit = limit
        self._queues: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._channels: dict[object, set[HeldPull]] = {}
        self._count = self._bytes = 0
        self._swept_ms: int | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def queues(self) -> Mapping[tuple[str, int], object]:
        """The queues with waiting pulls; a live table."""
        return self._queues

    def hold(self, pull: HeldPull) -> bool:
        """Add ``pull``; False when the table is full and the caller must answer it."""
        if self._count >= self._limit or self._bytes + pull.size_bytes > MAX_HELD_BYTES:
            self._log.warn(
                "{count} pulls wait, with {size_bytes} bytes of subscriptions; further pulls are answered at once, "
                "the limits are {limit} and {limit_bytes} bytes",
                count=self._count,
                size_bytes=self._bytes,
                limit=self._limit,
                limit_bytes=MAX_HELD_BYTES,
            )
            return False
        self._queues.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._channels.setdefault(pull.channel, set()).add(pull)
        self._count += 1
        self._bytes += pull.size_bytes
        return True

    def arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int | None) -> None:
        """
        A message is readable: ``max_offset`` is the queue's new end; ``tags_code`` None wakes whatever the filter.

        Java: PullRequestHoldService#notifyMessageArriving
        """
        held = self._queues.get((topic, queue_id))
        if held is None:
            return
        woken = [
            pull
            for pull in held
            if max_offset > pull.from_offset and (tags_code is None or pull.matches is None or pull.matches(tags_code))
        ]
        if woken:
            self._wake(woken)

    def arrived_together(self, units: Units) -> None:
        """Do as :meth:`arrived` for all messages of ``units``, with one write for each channel."""
        queues = self._queues
        woken: list[HeldPull] = []
        for queue, more, _ in units:
            held = queues.get(queue.key)
            if held is None:
                continue
            for pull in held:
                if queue.end > pull.from_offset and (
                    pull.matches is None
                    or any(end > pull.from_offset and pull.matches(code) for end, code in numbered(queue, more))
                ):
                    woken.append(pull)
        if woken:
            self._wake(woken)

    def tick(self, now_ms: int) -> Iterator[None]:
        """
        Wake pulls whose deadline has passed; every SWEEP_MS also those whose queue has grown. In slices.

        The table may change between slices.
        """
        due = [pull for held in self._queues.values() for pull in held if pull.deadline_ms <= now_ms]
        for start in range(0, len(due), WAKE_AT_ONCE):
            self._wake([pull for pull in due[start : start + WAKE_AT_ONCE] if self._holds(pull)])
            yield
        if self._swept_ms is None or now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            queues = list(self._queues)
            for start in range(0, len(queues), QUEUES_AT_ONCE):
                for topic, queue_id in queues[start : start + QUEUES_AT_ONCE]:
                    self.arrived(topic, queue_id, self._max_offset(topic, queue_id), None)
                yield

    def topic_deleted(self, topic: str) -> None:
        """Wake every pull of a deleted topic; each is refused."""
        self._wake([pull for (name, _), held in self._queues.items() if name == topic for pull in held])

    def channel_closed(self, channel: object) -> None:
        """Forget the pulls of a lost connection."""
        self._wake(list(self._channels.get(channel, ())))

    def stop(self) -> None:
        """End every wait."""
        self._wake([pull for held in self._queues.values() for pull in held])

    def _wake(self, pulls: list[HeldPull]) -> None:
        """Remove all first: an answer may add or remove pulls. A channel gets its answers in one write."""
        for pull in pulls:
            self._take_out(pull)
        answers: dict[Any, list[bytes]] = {}
        collected = 0
        for pull in pulls:
            try:
                answer = pull.wake(pull)
            except Exception as error:  # noqa: BLE001 - costs this connection, not the other ones that wait
                self._log.failure("a held pull of topic {topic} could not be answered", topic=pull.topic)
                pull.channel.close(f"internal error: {error}")
                continue
            if answer is not None:
                answers.setdefault(pull.channel, []).append(answer)
                collected += len(answer)
                if collected >= MAX_COLLECTED_BYTES:
                    _write(answers)
                    answers, collected = {}, 0
        _write(answers)

    def _holds(self, pull: HeldPull) -> bool:
        return pull in self._queues.get((pull.topic, pull.queue_id), ())

    def _take_out(self, pull: HeldPull) -> None:
        key = (pull.topic, pull.queue_id)
        held = self._queues[key]
        del held[pull]
        if not held:
            del self._queues[key]
        mine = self._channels[pull.channel]
        mine.discard(pull)
        if not mine:
            del self._channels[pull.channel]
        self._count -= 1
        self._bytes -= pull.size_bytes


def _write(answers: dict[Any, list[bytes]]) -> None:
    for channel, frames in answers.items():
        channel.write(b"".join(frames))
