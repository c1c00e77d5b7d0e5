"""
The messages of one queue that a consumer has in hand, and the offset that it may commit.

Java: ProcessQueue
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rmq.client.types import ReceivedMessage


class ProcessQueue:
    """
    Messages from their pull until they are done, by queue offset; pulls add them in the order of offsets.

    ``next_offset`` is where the next pull begins. ``commit_offset`` is the lowest offset that is not done.
    """

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self._in_hand: dict[int, ReceivedMessage] = {}
        self._last = next_offset - 1
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._in_hand)

    @property
    def commit_offset(self) -> int:
        for offset in self._in_hand:
            return offset
        return self.next_offset

    @property
    def span(self) -> int:
        """The distance of the lowest and the highest offset in hand."""
        return self._last - self.commit_offset + 1 if self._in_hand else 0

    @property
    def oldest(self) -> ReceivedMessage | None:
        """The message with the lowest offset in hand."""
        for message in self._in_hand.values():
            return message
        return None

    def put(self, messages: Collection[ReceivedMessage], next_offset: int) -> None:
        """Add what a pull brought; the next one begins at ``next_offset``."""
        for message in messages:
            self._in_hand[message.queue_offset] = message
            self.held_bytes += len(message.record.body)
            self._last = message.queue_offset
        self.next_offset = next_offset

    def holds(self, message: ReceivedMessage) -> bool:
        """Whether the message is in hand: neither done nor forgotten."""
        return self._in_hand.get(message.queue_offset) is message

    def done(self, messages: Iterable[ReceivedMessage]) -> int:
        """Remove messages that are acknowledged, or that the broker has taken back; return how many were in hand."""
        before = len(self._in_hand)
        for message in messages:
            if self.holds(message):
                del self._in_hand[message.queue_offset]
                self.held_bytes -= len(message.record.body)
        return before - len(self._in_hand)

    def clear(self, next_offset: int) -> None:
        """Forget what is in hand and go on at ``next_offset``: a seek or a reset."""
        self._in_hand.clear()
        self.held_bytes = 0
        self.next_offset = next_offset
