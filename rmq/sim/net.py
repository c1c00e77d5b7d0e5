"""
The simulated network: who reaches whom, how fast, in what pieces.

Each direction between two machines is on its own: it may be slow (``clog``) or blocked (``block``); both together are a
partition. TCP keeps its promises: bytes arrive in order or not at all, a blocked direction stalls until it is open
again or until the sender gives up, a machine without power answers nothing, one whose process is gone resets.
"""

from __future__ import annotations

import zlib
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
from twisted.internet.base import DelayedCall

from rmq.sim.world import World

if TYPE_CHECKING:
    from rmq.sim.node import Node, Process
    from rmq.sim.transport import SimPort, SimTransport

LOOPBACK = ("127.0.0.1", "localhost")

FIRST_EPHEMERAL_PORT = 32768
#: what may be in the sockets and on the wire of one direction of one connection
WINDOW_BYTES = 256 * 1024
#: waits between the attempts of a dial that nobody answers
DIAL_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@attrs.define(kw_only=True)
class NetConditions:
    """How the network is; ranges are drawn from for every piece or connection."""

    latency_s: tuple[float, float] = (0.0001, 0.002)
    #: a blocked sender gives up after a time from this range
    give_up_s: tuple[float, float] = (15.0, 120.0)
    #: the part of writes that is cut into tiny pieces
    shredded: float = 0.1
    tiny_bytes: int = 40
    piece_bytes: int = 64 * 1024


class SimNet:
    """All directions, and the connections over them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.conditions = NetConditions()
        self.rng = world.rng_for("net")
        self.connections: dict[SimTransport, None] = {}
        self._nodes: dict[str, Node] = {}
        self._blocked: dict[tuple[str, str], int] = {}
        self._clogged: dict[tuple[str, str], float] = {}
        self._pipes: dict[Pipe, None] = {}
        self._made = 0
        self._ports: dict[str, int] = {}

    def add(self, node: Node) -> None:
        self._nodes[node.address] = node

    def address_of(self, host: str, seen_from: Node) -> str | None:
        """Return the address that ``host`` (address, loopback or node name) means to ``seen_from``."""
        if host in LOOPBACK:
            return seen_from.address
        if host in self._nodes:
            return host
        node = self.world.nodes.get(host)
        return None if node is None else node.address

    def node_at(self, address: str) -> Node:
        return self._nodes[address]

    # -- faults

    def block(self, src: Node, dst: Node) -> None:
        """Let nothing through from ``src`` to ``dst``; the other direction stays as it is. Blocks are counted."""
        self.world.note("net block", src.name, dst.name)
        way = src.address, dst.address
        self._blocked[way] = self._blocked.get(way, 0) + 1

    def unblock(self, src: Node, dst: Node) -> None:
        """Take back one block; with the last one what was held arrives."""
        self.world.note("net unblock", src.name, dst.name)
        way = src.address, dst.address
        blocks = self._blocked.pop(way, 0)
        if blocks > 1:
            self._blocked[way] = blocks - 1
        else:
            self.kick()

    def partition(self, one: Node, other: Node) -> None:
        self.block(one, other)
        self.block(other, one)

    def heal(self) -> None:
        """Open every direction and end every slowness."""
        self.world.note("net heal")
        self._blocked.clear()
        self._clogged.clear()
        self.kick()

    def clog(self, src: Node, dst: Node, seconds: float) -> None:
        """Add ``seconds`` to the latency from ``src`` to ``dst``; 0 ends it."""
        self.world.note("net clog", src.name, dst.name, seconds)
        self._clogged[src.address, dst.address] = seconds

    def reset_between(self, one: Node, other: Node) -> None:
        """Reset all connections between two machines, as a firewall that lost its table does."""
        self.world.note("net reset", one.name, other.name)
        for transport in list(self.connections):
            if transport.process.node is one and transport.remote_address == other.address:
                transport.reset()
                if transport.remote is not None:
                    transport.remote.reset()

    # -- what transports and nodes ask

    def blocked(self, src: str, dst: str) -> bool:
        return (src, dst) in self._blocked

    def latency_s(self, src: str, dst: str) -> float:
        if src == dst:
            return 0.00005
        least, most = self.conditions.latency_s
        latency_s = least + (most - least) * self.rng.random()
        return latency_s + self._clogged.get((src, dst), 0.0) if self._clogged else latency_s

    def pieces(self, data: bytes) -> list[bytes]:
        """Cut ``data`` as the wire might."""
        rng, conditions = self.rng, self.conditions
        if len(data) > 1 and rng.random() < conditions.shredded:
            # A few tiny pieces, then the rest: whole megabytes in forties would only cost time.
            cuts = [0]
            for _ in range(rng.randrange(1, 6)):
                cuts.append(min(len(data), cuts[-1] + rng.randrange(1, conditions.tiny_bytes)))
            head = [data[start:end] for start, end in pairwise(cuts) if end > start]
            data = data[cuts[-1] :]
        else:
            head = []
        size = conditions.piece_bytes
        if 0 < len(data) <= size:
            head.append(data)
            return head
        return head + [data[start : start + size] for start in range(0, len(data), size)]

    def ephemeral_port(self, node: Node) -> int:
        """Return a port of ``node`` that nothing else has."""
        self._ports[node.address] = port = self._ports.get(node.address, FIRST_EPHEMERAL_PORT - 1) + 1
        return port

    def next_number(self) -> int:
        """Return the next connection's number."""
        self._made += 1
        return self._made

    def kick(self) -> None:
        """Try everything again that waits for a way, or for a process: who waited for one gets a reset."""
        for pipe in list(self._pipes):
            pipe.kick()

    def process_gone(self, process: Process) -> None:
        """The process ended: its kernel closes what it had open, unless the machine is off."""
        for port in list(process.ports.values()):
            port.vanish()
        for transport in [transport for transport in self.connections if transport.process is process]:
            transport.vanish()

    def open_connections(self, process: Process) -> list[str]:
        return [str(transport) for transport in self.connections if transport.process is process]

    def register(self, pipe: Pipe) -> None:
        self._pipes[pipe] = None

    def unregister(self, pipe: Pipe) -> None:
        self._pipes.pop(pipe, None)


class Mark:
    """What travels in a pipe besides bytes."""

    def __init__(self, name: str) -> None:
        self.name = name


ESTABLISHED = Mark("established")
FIN = Mark("fin")
RST = Mark("rst")


class Pipe:
    """
    One direction of one connection: pieces on their way, in order.

    ``taken`` counts the bytes that the sender may not send again yet: on the wire, or unread at the receiver.
    """

    def __init__(self, net: SimNet, name: str, src: SimTransport, dst: SimTransport) -> None:
        self._net = net
        self._name = name
        self._src = src
        self._dst = dst
        self._target = dst.process.node
        self._way = src.local_address, dst.local_address
        self._way_back = dst.local_address, src.local_address
        self._queue: deque[tuple[float, bytes | Mark]] = deque()
        self._last_s = 0.0
        self._arrival: DelayedCall | None = None
        self._give_up: DelayedCall | None = None
        self._held_credit = 0
        self.taken = 0

    @property
    def room(self) -> int:
        return max(0, WINDOW_BYTES - self.taken)

    def send(self, data: bytes) -> None:
        self.taken += len(data)
        for piece in self._net.pieces(data):
            self._put(piece)

    def mark(self, mark: Mark) -> None:
        """Send a mark; a reset overtakes what has not arrived."""
        if mark is RST:
            self._drop()
        self._put(mark)

    def credit(self, count: int) -> None:
        """The receiver has read ``count`` bytes; the sender hears of it when the way back is open."""
        if self._net.blocked(*self._way_back):
            self._held_credit += count
            self._start_giving_up()
            return
        self.taken -= count
        self._src.window_opened()

    def kick(self) -> None:
        """The network changed: go on where something waits."""
        if self._held_credit and not self._net.blocked(*self._way_back):
            count, self._held_credit = self._held_credit, 0
            self._stop_giving_up()
            self.credit(count)
        if self._queue and self._arrival is None:
            self._schedule()

    def close(self) -> None:
        """Forget everything: both ends are gone."""
        self._drop()
        self._stop_giving_up()
        self._net.unregister(self)

    def _put(self, item: bytes | Mark) -> None:
        net = self._net
        net.register(self)
        arrival_s = net.world.now_s + net.latency_s(*self._way)
        if arrival_s > self._last_s:
            self._last_s = arrival_s
        self._queue.append((self._last_s, item))
        if self._arrival is None:
            self._schedule()

    def _schedule(self) -> None:
        delay_s = max(0.0, self._queue[0][0] - self._net.world.now_s)
        self._arrival = self._net.world.schedule(delay_s, self._arrive)

    def _arrive(self) -> None:
        self._arrival = None
        net = self._net
        if not self._target.powered or net.blocked(*self._way):
            self._start_giving_up()
            return
        if self._give_up is not None:
            self._stop_giving_up()
        _, item = self._queue.popleft()
        if self._queue:
            self._schedule()
        elif item is FIN or item is RST:
            net.unregister(self)
        if isinstance(item, Mark):
            net.world.note("net", self._name, item.name)
            self._dst.marked(item)
        else:
            world = net.world
            world.trace.add(f"{world.now_s:.9f} net {self._name} {len(item)} {zlib.crc32(item)}")
            self._dst.received(item)

    def _start_giving_up(self) -> None:
        if self._give_up is None:
            delay_s = self._net.rng.uniform(*self._net.conditions.give_up_s)
            self._give_up = self._net.world.schedule(delay_s, self._given_up)

    def _stop_giving_up(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    def _given_up(self) -> None:
        self._give_up = None
        self._net.world.note("net", self._name, "gave up")
        self._src.timed_out()

    def _drop(self) -> None:
        self._queue.clear()
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None


def connect(client: SimTransport, port: SimPort) -> None:
    """The dial of ``client`` reached a listening port: make the other end and the two pipes."""
    server = port.accept(client)
    net = client.net
    number = net.next_number()
    client.remote, server.remote = server, client
    client.out = Pipe(net, f"{number}>", client, server)
    server.out = Pipe(net, f"{number}<", server, client)
    server.out.mark(ESTABLISHED)
    server.established()
