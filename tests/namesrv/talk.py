"""A NameServer in the test's own process, without sockets, and what it answers to whole frames."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock, StringTransport

from rmq.namesrv.config import ControllerConfig, NamesrvConfig, NamesrvSetup, NettyServerConfig
from rmq.namesrv.live import LiveBroker
from rmq.namesrv.routes import RouteTable
from rmq.namesrv.service import NamesrvService, build_namesrv
from rmq.remoting.channel import Channel
from rmq.runtime.clock import Moment
from rmq.runtime.disk.files import RealDisk
from rmq.runtime.platform import Platform
from rmq.wire.command import RemotingCommand, decode_command, decode_commands, encode_command
from rmq.wire.contract import Contract
from rmq.wire.extfields import encode_ext
from rmq.wire.frames import FrameDecoder

#: what the clocks show at first, in seconds: they differ, so that a test fails when the code takes one for the other
NOW_S, STEADY_S = 1_800_000_000, 5_000


class At(TypedDict):
    """The moment that a route table is given."""

    at: Moment


class Order(At):
    """What a route table is given with the request of an admin."""

    peer: str


def at(steady_ms: int) -> At:
    """Return the argument of a route table for this steady time: both clocks, far from each other."""
    return {"at": Moment(steady_ms + (NOW_S - STEADY_S) * 1000, steady_ms)}


def by_admin(steady_ms: int = 0) -> Order:
    """Return the arguments of a route table for an admin's request."""
    return {"peer": "10.1.1.1:40000", **at(steady_ms)}


def closed(table: RouteTable, channel: object) -> list[LiveBroker]:
    """Have a route table notified that a connection closed."""
    return table.channel_closed(channel, **at(0), reason="closed by the peer")


def one_turn(clock: Clock) -> None:
    """Run what is due, and not what that schedules: one turn of a reactor (Clock.advance runs both)."""
    for call in [call for call in clock.calls if call.getTime() <= clock.seconds()]:
        clock.calls.remove(call)
        call.func(*call.args, **call.kw)


class Talk:
    """
    One NameServer that keeps its files in ``folder``, on a clock that stands still unless it is moved.

    ``config`` are changes of NamesrvConfig.
    """

    def __init__(self, folder: str, **config: Any) -> None:
        self.folder = os.path.abspath(folder)
        self.reactor = MemoryReactorClock()
        self.reactor.advance(STEADY_S)
        self.set_wall_clock(0)
        self.disk = RealDisk(self.reactor)
        self.setup = NamesrvSetup(
            namesrv=NamesrvConfig(
                kv_config_path=self.path("kvConfig.json"), config_store_path=self.path("namesrv.properties"), **config
            ),
            netty=NettyServerConfig(bind_address="127.0.0.1"),
            controller=ControllerConfig(controller_store_path=self.path("controller")),
        )
        self.said: list[str] = []
        #: when it gave memory back, in seconds
        self.given_back: list[float] = []
        self.service = self.build()
        self.service.kv.load()
        self.channel = self.connect()

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    @classmethod
    def started(cls, folder: str, **config: Any) -> Talk:
        """Return one whose NameServer is started."""
        talk = cls(folder, **config)
        talk.service.startService()
        return talk

    def build(self) -> NamesrvService:
        """Return a NameServer on the files of this folder, not started."""
        # TCP4ClientEndpoint: Twisted before 24 resolves addresses too, for which this reactor has no thread
        platform = Platform(
            reactor=self.reactor,
            disk=self.disk,
            rng=random.Random(0),
            endpoint_factory=TCP4ClientEndpoint,
            give_back_memory=lambda: self.given_back.append(self.reactor.seconds() - STEADY_S),
        )
        return build_namesrv(platform, self.setup, announce=self.said.append)

    def restart(self) -> NamesrvService:
        """Go on with another NameServer on the same files, and return it."""
        self.service = self.build()
        self.service.kv.load()
        return self.service

    def set_wall_clock(self, ahead_s: float) -> None:
        """Set the wall clock so many seconds ahead of the right time; the steady one goes on as before."""
        vars(self.reactor)["wall_seconds"] = lambda: self.reactor.seconds() + NOW_S - STEADY_S + ahead_s

    def connect(self) -> Channel:
        """Return a connection of another peer."""
        transport = StringTransport()
        transport.registerProducer(transport, True)
        return Channel(transport, self.reactor, 0)

    def send(self, command: RemotingCommand, channel: Channel | None = None) -> RemotingCommand | None:
        """Have a command answered that went over the wire; None when there is no answer."""
        (frame,) = FrameDecoder().receive(encode_command(command))
        written = self.service.responders.dispatch(decode_command(frame), channel or self.channel)
        if isinstance(written, Deferred):  # a large registration goes on in the next turn
            answers: list[bytes | None] = []
            written.addCallback(answers.append)
            self.reactor.advance(0)
            (written,) = answers
        if written is None:
            return None
        assert isinstance(written, bytes), written
        (answer,) = decode_commands(written)
        return answer

    def ask(
        self,
        contract: Contract[Any, Any, Any, Any],
        header: msgspec.Struct | Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        version: int = 409,
        channel: Channel | None = None,
    ) -> RemotingCommand:
        """Return the answer to a request; ``header`` may be the extFields themselves."""
        ext = encode_ext(header) if isinstance(header, msgspec.Struct) else header
        command = RemotingCommand(contract.code, opaque=77, version=version, ext_fields=ext, body=body)
        answer = self.send(command, channel)
        assert answer is not None
        return answer
