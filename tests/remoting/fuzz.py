"""
Requests of real peers, damaged in every way that comes to mind, for a NameServer and a broker on simulated machines.

Everything that happens follows from one seed. What must hold afterwards: nobody logged a traceback, a bystander's
connection still works, and the damaged connection was answered, is open or was closed, but nothing else.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from rmq.broker.service import build_broker
from rmq.namesrv.config import NamesrvConfig, NamesrvSetup
from rmq.namesrv.service import build_namesrv
from rmq.remoting.protocol import RemotingProtocol
from rmq.runtime.platform import Platform
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.wire.codes import RequestCode
from rmq.wire.command import RemotingCommand, decode_command, decode_commands, encode_command
from rmq.wire.frames import PREFIX, FrameDecoder, ProtocolError
from tests.broker.harness import setup_of
from tests.remoting.peer import RecordingTransport

FRAMES = Path(__file__).resolve().parent.parent / "golden" / "frames"

#: what stands in the place of something sound, in bytes and in fields
_TOKENS = [
    b"-1", b"0", b"2147483648", b"9223372036854775808", b"1e309", b"null", b"true", b'""', b"[]", b"{}", b'"\\ud800"',
]  # fmt: skip
_VALUES = ["", "-1", "2147483648", "1e9", "x" * 300, "\0", "ü\U0001f600", "%RETRY%", "null"]
_CODES = [int(code) for code in RequestCode]


def golden_requests() -> list[bytes]:
    """Return every whole request of the recorded conversations that opens with a sound prefix, once."""
    found: dict[bytes, None] = {}
    for path in sorted(FRAMES.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["dir"] == "c2s" and row.get("hex") and "cut" not in row and row.get("code") is not None:
                found[bytes.fromhex(row["hex"])] = None
    return [data for data in found if _is_request(data)]


def _is_request(data: bytes) -> bool:
    try:
        commands = decode_commands(data)
    except ProtocolError:
        return False
    return len(commands) == 1 and not commands[0].is_response


@attrs.frozen
class Damage:
    """Makes one request into another, or into none; all by one generator."""

    rng: Random

    def request(self, requests: list[bytes]) -> bytes:
        """Return one of ``requests``, damaged zero to four times."""
        data = self.rng.choice(requests)
        for _ in range(self.rng.choice((0, 1, 1, 1, 2, 4))):
            data = self.rng.choice(_KINDS)(self, data)
        return data

    # what stays a frame

    def code(self, data: bytes) -> bytes:
        """The same fields and body under another request code."""
        command = _command(data)
        if command is None:
            return data
        command.code = self.rng.choice(_CODES)
        return _encoded(command, data)

    def fields(self, data: bytes) -> bytes:
        """Fields that are missing, repeated, strange, or another request's."""
        command = _command(data)
        if command is None:
            return data
        fields = dict(command.ext_fields)
        for key in list(fields):
            match self.rng.randrange(12):
                case 0:
                    del fields[key]
                case 1:
                    fields[key] = self.rng.choice(_VALUES)
                case 2:
                    fields[key + "x"] = fields.pop(key)
        command.ext_fields = fields
        return _encoded(command, data)

    def body(self, data: bytes) -> bytes:
        """A body that is cut, longer, compressed, or noise."""
        command = _command(data)
        if command is None:
            return data
        body = command.body or b""
        match self.rng.randrange(6):
            case 0:
                body = body[: self.rng.randrange(len(body) + 1)]
            case 1:
                body = self.bits(body) if body else b"{"
            case 2:
                body = zlib.compress(body)
            case 3:
                body = zlib.compress(bytes(1_000_000))
            case 4:
                body = self.rng.randbytes(self.rng.randrange(200))
            case 5:
                body = self.tokens(body)
        command.body = body or None
        return _encoded(command, data)

    def header(self, data: bytes) -> bytes:
        """A header with damaged bytes, its lengths still right."""
        frame = _frame(data)
        if frame is None:
            return data
        serialize_type, header, body = frame
        header = self.rng.choice((self.bits, self.tokens, self.cut))(header)
        return PREFIX.pack(4 + len(header) + len(body), serialize_type << 24 | len(header)) + header + body

    def kind(self, data: bytes) -> bytes:
        """The header is said to be of another kind."""
        return data[:4] + bytes([self.rng.choice((0, 1, 2, 255))]) + data[5:]

    def flag(self, data: bytes) -> bytes:
        """An answer that nobody waits for, or a one-way request."""
        command = _command(data)
        if command is None:
            return data
        command.flag = self.rng.choice((1, 2, 3, 4, -1, 1 << 30))
        return _encoded(command, data)

    # what may be none any more

    def bits(self, data: bytes) -> bytes:
        """A few bits turned over."""
        broken = bytearray(data)
        for _ in range(self.rng.choice((1, 1, 2, 8))):
            if broken:
                broken[self.rng.randrange(len(broken))] ^= 1 << self.rng.randrange(8)
        return bytes(broken)

    def tokens(self, data: bytes) -> bytes:
        """Something strange in the place of a few bytes."""
        at = self.rng.randrange(len(data) + 1)
        return data[:at] + self.rng.choice(_TOKENS) + data[at + self.rng.randrange(6) :]

    def cut(self, data: bytes) -> bytes:
        """The rest does not come."""
        return data[: self.rng.randrange(len(data) + 1)]

    def noise(self, data: bytes) -> bytes:
        """Something that was never a request."""
        return self.rng.randbytes(self.rng.choice((1, 4, 8, 9, 100)))

    def chunks(self, data: bytes) -> Iterator[bytes]:
        """Yield ``data`` whole, byte by byte, or in pieces as they come."""
        match self.rng.randrange(3):
            case 0:
                yield data
            case 1 if len(data) < 2000:
                for position in range(len(data)):
                    yield data[position : position + 1]
            case _:
                position = 0
                while position < len(data):
                    size = self.rng.choice((1, 3, 7, 64, 500, 4000))
                    yield data[position : position + size]
                    position += size


_KINDS: list[Any] = [
    Damage.code, Damage.code, Damage.fields, Damage.fields, Damage.body, Damage.header, Damage.kind, Damage.flag,
    Damage.bits, Damage.tokens, Damage.cut, Damage.noise,
]  # fmt: skip


def _frame(data: bytes) -> tuple[int, bytes, bytes] | None:
    try:
        frames = FrameDecoder().receive(data)
    except ProtocolError:
        return None
    return (frames[0].serialize_type, frames[0].header, frames[0].body) if len(frames) == 1 else None


def _command(data: bytes) -> RemotingCommand | None:
    try:
        (command,) = [decode_command(frame) for frame in FrameDecoder().receive(data)]
        _ = command.ext_fields
    except (ProtocolError, ValueError):
        return None
    return command


def _encoded(command: RemotingCommand, data: bytes) -> bytes:
    try:
        return encode_command(command)
    except (ProtocolError, ValueError, OverflowError):
        return data


@implementer(ILogObserver)
class Machine:
    """A NameServer or a broker in a world of its own, and connections to it that need no network."""

    def __init__(self, role: str, seed: int, **values: str) -> None:
        self.world = World(seed)
        self.node = Node(self.world, SimNet(self.world), role)
        self._role = role
        self._values = values
        self._peers = 0
        self._live: list[Connection] = []
        #: events that carry a failure: something that nobody expected
        self.tracebacks: list[LogEvent] = []
        globalLogPublisher.addObserver(self)
        self.node.start(self._build)
        self.world.run_for(1)
        self.bystander = self.connect()

    def __call__(self, event: LogEvent) -> None:
        if "log_failure" in event:
            self.tracebacks.append(event)

    def _build(self, platform: Platform) -> Any:
        if self._role == "namesrv":
            config = NamesrvConfig(kv_config_path="/kv.json", config_store_path="/namesrv.properties")
            return build_namesrv(platform, NamesrvSetup(namesrv=config))
        return build_broker(platform, setup_of(self._values), host_address=self.node.address, host_name="host")

    @property
    def service(self) -> Any:
        return self.node.service

    def connect(self) -> Connection:
        self._peers += 1
        address = IPv4Address("TCP", f"192.0.2.{self._peers % 250 + 1}", 1024 + self._peers % 60_000)
        protocol = self.service.server.build_protocol(address)
        assert isinstance(protocol, RemotingProtocol)
        connection = Connection(protocol, RecordingTransport(address.host, address.port))
        protocol.makeConnection(connection.wire)
        self._live.append(connection)
        return connection

    def leave(self, connection: Connection) -> None:
        """Have the peer close a connection."""
        self._live.remove(connection)
        connection.close()

    def check(self) -> None:
        """Raise an AssertionError unless the bystander is answered and nothing unexpected was logged."""
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC if self._role == "namesrv" else RequestCode.GET_MAX_OFFSET
        self.bystander.wire.read()
        fields = {"topic": "TBW102", "queueId": "0"}
        self.bystander.receive(encode_command(RemotingCommand(code, 4711, ext_fields=fields)))
        self.world.run_for(0.01)
        assert [answer.opaque for answer in self.bystander.answers() if answer.is_response] == [4711], "no answer"
        assert self.node.process is not None, "the process has ended"
        if self.tracebacks:
            failure: Failure = self.tracebacks[0]["log_failure"]
            raise AssertionError(f"unexpected: {failure.getTraceback()}")

    def close(self) -> None:
        globalLogPublisher.removeObserver(self)
        if self.node.process is not None:
            for connection in self._live:
                connection.close()
            self.world.settle(self.node.stop())


@attrs.frozen(eq=False)
class Connection:
    """A connection of a peer that says what it likes."""

    protocol: RemotingProtocol
    wire: RecordingTransport

    def receive(self, data: bytes) -> None:
        """Have our side receive bytes, as long as it listens."""
        if data and not self.wire.disconnecting:
            self.protocol.dataReceived(data)

    def answers(self) -> list[RemotingCommand]:
        return decode_commands(self.wire.read())

    def close(self) -> None:
        self.protocol.connectionLost(Failure(ConnectionDone()))


def fuzz(machine: Machine, requests: list[bytes], seed: str, cases: int) -> None:
    """
    Let damaged requests come, over connections that live for some of them.

    An AssertionError names the seed of the case and holds what was sent.
    """
    for number in range(cases):
        rng = Random(f"{seed}-{number}")
        damage = Damage(rng)
        sent: list[bytes] = []
        connection = machine.connect()
        try:
            for _ in range(rng.choice((1, 2, 5))):
                data = damage.request(requests)
                for chunk in damage.chunks(data):
                    sent.append(chunk)
                    connection.receive(chunk)
            machine.world.run_for(0.01)
            connection.answers()
            machine.leave(connection)
            machine.check()
        except Exception as error:
            raise AssertionError(f"case {seed}-{number}: {error}; sent: {b''.join(sent).hex()}") from error
