"""
Requests over asyncio: one connection to each address.

Java: NettyRemotingClient
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rmq.client.host import Answer, Prepare
from rmq.errors import CLOSED_PLAIN, CLOSED_TLS, RequestFailed, RequestTimeout, Unreachable, with_advice
from rmq.wire.codes import named
from rmq.wire.command import ONEWAY, RemotingCommand, decode_command, encode_command
from rmq.wire.contract import Contract
from rmq.wire.correlator import Correlator, TooManyWaiting
from rmq.wire.exchange import Response, read_response, request_command
from rmq.wire.frames import FrameDecoder, ProtocolError

if TYPE_CHECKING:
    from rmq.aio.host import AsyncioHost

CONNECT_TIMEOUT_S = 3.0
#: unsent bytes of a peer that does not read; beyond that one-way requests to it fail
MAX_UNSENT_ONEWAY_BYTES = 1024 * 1024

#: without a byte in either direction a connection is closed.  Java: clientChannelMaxIdleTimeSeconds
IDLE_S = 120.0

#: OpenSSL's reasons when the answer to a handshake is not TLS
NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")

H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")

_log = logging.getLogger("rmq.client.link")


class AsyncioConnections:
    """Connections by ``host:port``; when one is lost its pending requests fail at once, the next request connects."""

    def __init__(
        self, host: AsyncioHost, prepare: Prepare, answer: Answer, tls: Callable[[], ssl.SSLContext] | None
    ) -> None:
        self.host = host
        self.prepare = prepare
        self.answer = answer
        self.tls = tls
        self._links: dict[str, Link] = {}
        #: all with a socket, those that no request goes to any more too
        self.connected: set[Link] = set()
        self._dials: dict[str, asyncio.Task[Link]] = {}
        self._closed = False

    @property
    def local_ip(self) -> str | None:
        return next((link.local_ip for link in self._links.values()), None)

    async def ask(
        self, addr: str, contract: Contract[H, B, RH, RB], header: H, body: B, *, timeout_s: float
    ) -> Response[RH, RB]:
        """Send a request and wait for the answer; ``timeout_s`` includes connecting."""
        self.host.check_loop()
        link = self._links.get(addr)
        if link is None:
            began = self.host.seconds()
            try:
                async with asyncio.timeout(timeout_s):
                    link = await self._dial(addr)
            except TimeoutError:
                asked = f"{addr} could not be asked for request {named(contract.code)}"
                text = f"{asked} within {timeout_s:g} s: still dialling"
                raise RequestTimeout(addr, text) from None
            timeout_s = max(0.0, timeout_s - (self.host.seconds() - began))
        command = request_command(contract, header, body, opaque=0)
        return read_response(contract, await link.request(command, timeout_s), addr)

    async def tell(self, addr: str, contract: Contract[H, B, Any, Any], header: H, body: B) -> None:
        """Send a one-way request; fails with Unreachable."""
        self.host.check_loop()
        link = self._links.get(addr) or await self._dial(addr)
        command = request_command(contract, header, body, opaque=0, flag=ONEWAY)
        self.prepare(command)
        if link.unsent_bytes > MAX_UNSENT_ONEWAY_BYTES:
            raise Unreachable(addr, f"{addr} does not read what it is sent")
        link.write(encode_frame(addr, command))

    async def close(self) -> None:
        """Close all connections; when it returns no task and no socket is left."""
        self._closed = True
        dials = list(self._dials.values())
        for dial in dials:
            dial.cancel()
        if dials:
            await asyncio.wait(dials)
        links = list(self.connected)
        for link in links:
            link.close()
        if links:
            _, open_still = await asyncio.wait([link.lost for link in links], timeout=CONNECT_TIMEOUT_S)
            if open_still:  # the peer does not read what it was sent
                for link in links:
                    link.abort()
                await asyncio.wait(open_still)

    async def _dial(self, addr: str) -> Link:
        if self._closed:
            raise Unreachable(addr, f"{addr} cannot be asked: the client is closed")
        dial = self._dials.get(addr)
        if dial is None:
            dial = self._dials[addr] = asyncio.get_running_loop().create_task(self._connect(addr))
            dial.add_done_callback(lambda ended: self._dial_ended(addr, ended))
        # who gives up waiting does not end the attempt, for others may wait for it
        before = self.host.cancellations()
        try:
            return await asyncio.shield(dial)
        except asyncio.CancelledError:
            # at the end of the loop both are cancelled, once: who went on then would never end
            if dial.cancelled() and self.host.cancellations() == before:
                raise Unreachable(addr, f"{addr} cannot be asked: the client is closed") from None
            raise

    def _dial_ended(self, addr: str, dial: asyncio.Task[Link]) -> None:
        self._dials.pop(addr, None)
        if not dial.cancelled():
            dial.exception()  # looked at, though all who waited for it may have given up

    async def _connect(self, addr: str) -> Link:
        host, _, port = addr.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            tls = None if self.tls is None else self.tls()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                making = loop.create_connection(lambda: Link(self, addr), host.strip("[]"), int(port), ssl=tls)
                _, link = await making
        except TimeoutError:
            raise Unreachable(addr, f"cannot connect to {addr}: no connection within {CONNECT_TIMEOUT_S:g} s") from None
        except (OSError, ValueError) as error:
            raise Unreachable(addr, f"cannot connect to {addr}: {why_not_connected(error, self.tls)}") from error
        self._links[addr] = link
        return link

    def forget(self, link: Link) -> None:
        if self._links.get(link.addr) is link:
            del self._links[link.addr]


class Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, owner: AsyncioConnections, addr: str) -> None:
        self.addr = addr
        self.local_ip = "127.0.0.1"
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._calls: Correlator[tuple[int, float, asyncio.Future[RemotingCommand]]] = Correlator()
        self._timer: asyncio.TimerHandle | None = None
        self._moved_s = self._loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._unsent: list[bytes] = []
        #: a frame was sent in this turn of the loop: what else is written waits for its end
        self._in_turn = False
        self._heard = False

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def request(self, command: RemotingCommand, timeout_s: float) -> asyncio.Future[RemotingCommand]:
        """Send a request; the answer may have any code."""
        answer: asyncio.Future[RemotingCommand] = self._loop.create_future()
        if self._transport is None:
            raise Unreachable(self.addr, f"the connection to {self.addr} is closed")
        deadline = self._loop.time() + timeout_s
        try:
            command.opaque = self._calls.add((command.code, timeout_s, answer), deadline)
        except TooManyWaiting as error:
            raise Unreachable(self.addr, f"{self.addr} does not answer: {error}") from error
        frame = b""
        try:
            self._owner.prepare(command)
            frame = encode_frame(self.addr, command)
        finally:
            if not frame:
                self._calls.forget(command.opaque)
        self._arm(deadline)
        self.write(frame)
        return answer

    def write(self, frame: bytes) -> None:
        """Send the first frame of a turn of the loop at once, the others of the turn in one write at its end."""
        self._unsent.append(frame)
        if not self._in_turn:
            self._in_turn = True
            self._loop.call_soon(self._end_turn)
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without waiting for what is not sent yet."""
        if self._transport is not None:
            self._transport.abort()

    def _end_turn(self) -> None:
        self._in_turn = False
        self._flush()

    def _flush(self) -> None:
        frames, self._unsent = self._unsent, []
        if self._transport is not None and frames:
            self._moved_s = self._loop.time()
            self._transport.write(b"".join(frames))

    def _check_idle(self) -> None:
        """Close a connection that has not moved for too long, else look again when it may be."""
        if self._loop.time() - self._moved_s >= IDLE_S:
            _log.debug("%s: no byte within %d s; the connection is closed", self.addr, IDLE_S)
            self._owner.forget(self)
            self.abort()
        else:
            self._idle_timer = self._loop.call_at(self._moved_s + IDLE_S, self._check_idle)

    def _arm(self, deadline: float) -> None:
        if self._timer is None or deadline < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for code, timeout_s, answer in self._calls.expire(self._loop.time()):
            if not answer.done():
                text = f"{self.addr} did not answer request {named(code)} within {round(timeout_s, 3):g} s"
                answer.set_exception(RequestTimeout(self.addr, text))
        if (deadline := self._calls.next_deadline()) is not None:
            self._arm(deadline)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's have its methods, but are of no such class
        self._owner.connected.add(self)
        self.local_ip = str(transport.get_extra_info("sockname")[0]).partition("%")[0]
        self._check_idle()

    def data_received(self, data: bytes) -> None:
        self._moved_s = self._loop.time()
        self._heard = True
        try:
            for frame in self._decoder.receive(data):
                self._take(decode_command(frame))
        except ProtocolError as error:
            _log.warning("%s violates the protocol: %s; its connection is closed", self.addr, error)
            self.abort()

    def _take(self, command: RemotingCommand) -> None:
        if command.is_response:
            call = self._calls.answered(command.opaque)
            if call is not None and not call[2].done():
                call[2].set_result(command)
        else:
            self._owner.host.spawn(self._answer(command), name=f"answer to request {command.code} of {self.addr}")

    async def _answer(self, command: RemotingCommand) -> None:
        frame = await self._owner.answer(self.addr, command)
        if frame is not None and not command.is_oneway:
            self.write(frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._owner.forget(self)
        self._owner.connected.discard(self)
        for timer in (self._timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        is_plain = self._owner.tls is None
        unheard = is_plain and not self._heard and (error is None or isinstance(error, ConnectionResetError))
        why = CLOSED_PLAIN if unheard else with_advice(str(error or ""))
        for code, _, answer in self._calls.close():
            if not answer.done():
                text = f"the connection to {self.addr} closed before request {named(code)} was answered"
                answer.set_exception(Unreachable(self.addr, f"{text}: {why}" if why else text))
        if not self.lost.done():
            self.lost.set_result(None)


def why_not_connected(error: Exception, tls: object | None) -> str:
    """Return why there is no connection, for people; ``tls`` None: none was asked for."""
    if tls is not None and is_no_tls(error):
        return CLOSED_TLS
    if isinstance(error, ssl.SSLCertVerificationError):
        trusted = "trusted is what tls.client.trustCertPath holds, without it the system's list"
        return f"certificate verify failed: {error.verify_message}; {trusted}"
    return with_advice(str(error))


def is_no_tls(error: Exception) -> bool:
    """Return whether a handshake failed because the peer hung up or answered something else than TLS."""
    if isinstance(error, ssl.SSLError):
        return isinstance(error, ssl.SSLEOFError) or error.reason in NO_TLS
    return isinstance(error, ConnectionResetError | ConnectionAbortedError)


def encode_frame(addr: str, command: RemotingCommand) -> bytes:
    """Return the frame of a request; RequestFailed when it is too long."""
    try:
        return encode_command(command)
    except ProtocolError as error:
        raise RequestFailed(addr, f"request {named(command.code)} cannot be sent: {error}") from error
