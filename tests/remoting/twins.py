"""
Two servers that live through the same history, one with lanes and one without: whatever they answer is compared.

The packages' own histories draw the requests and changes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting.responders import ResponderTable
from rmq.wire.command import RemotingCommand, encode_command
from tests.remoting.peer import LeanTransport, Peer, one_turn

PEERS = 4
#: steps of the history that a failure shows
SHOWN = 40


class Twins:
    """The connections to both servers, the first of which has lanes; each of ``peers`` is one connection to each."""

    def __init__(self, test: SynchronousTestCase, seed: int, services: Sequence[Any]) -> None:
        self._test = test
        self._seed = seed
        self.chance = random.Random(seed)
        self.services = services
        self.history: list[str] = []
        self._opaque = 0
        self._ports = 40_000
        remove_lanes(services[1].responders)
        self.peers = [self.connect(number) for number in range(PEERS)]

    def services_of(self, number: int) -> Sequence[Any]:
        """Return the two services that a peer is connected to."""
        return self.services

    def connect(self, number: int) -> list[Peer]:
        self._ports += 1
        peers = []
        for service in self.services_of(number):
            clock = Clock()
            clock.seconds = service.clock.seconds  # type: ignore[method-assign]
            peer = Peer(service.responders, clock=clock, transport=LeanTransport(port=self._ports))
            peer.ask(105, topic="T")  # the first bytes of a connection take the ordinary way
            peers.append(peer)
        return peers

    def reconnect(self, number: int) -> None:
        for service, peer in zip(self.services_of(number), self.peers[number], strict=True):
            peer.lose()
            service._channel_closed(peer.channel, "")
        self.peers[number] = self.connect(number)
        self.history.append(f"reconnect {number}")

    def encode(self, number: int, command: RemotingCommand) -> bytes:
        """Return the frame of a request of a peer, with a new opaque."""
        self._opaque += 1
        command.opaque = self._opaque
        self.history.append(f"{number}: {command.code} {command.ext_fields} {(command.body or b'')[:400]!r}")
        return encode_command(command)

    def deliver(self, *frames: tuple[int, bytes]) -> None:
        """Send frames of peers (their numbers) in one turn; those of one peer in one chunk."""
        chunks: dict[int, bytes] = {}
        for number, frame in frames:
            chunks[number] = chunks.get(number, b"") + frame
        pieces = list(chunks.items())
        order = one_turn([(self.peers[number][0], data) for number, data in pieces])
        for number, data in (pieces[index] for index in order):
            self.peers[number][1].send(data)

    def compare(self) -> list[RemotingCommand]:
        """Return the answers that have come, which are the same on both sides."""
        found = []
        for number, peers in enumerate(self.peers):
            # notices overtake the answers of their read
            left, right = (sorted(peer.received(), key=_order) for peer in peers)
            if list(map(encode_command, left)) != list(map(encode_command, right)):
                self.same(left, right, f"answers to peer {number}")
                self.same([*map(encode_command, left)], [*map(encode_command, right)], f"answers to peer {number}")
            found += left
        return found

    def same(self, left: object, right: object, what: str) -> None:
        """Fail, with the seed and the last steps, unless both servers have this in common."""
        if left != right:
            history = "\n".join(self.history[-SHOWN:])
            self._test.fail(
                f"RMQ_SEED={self._seed}: {what} differ\n{history}\nlanes: {left!r}\nwithout: {right!r}"[-9000:]
            )


def remove_lanes(table: ResponderTable) -> None:
    table._lanes.clear()
    table.refuse({})


def _order(command: RemotingCommand) -> tuple[bool, int, int]:
    return command.is_response, command.opaque, command.code
