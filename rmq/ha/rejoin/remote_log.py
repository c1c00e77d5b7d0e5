"""Single records of a running broker, read over its remoting port with a plain blocking socket."""

from __future__ import annotations

import socket

from rmq.runtime.platform import split_addr
from rmq.wire import fastjson
from rmq.wire.api.common import KVTable
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.command import RemotingCommand, decode_command, encode_command
from rmq.wire.frames import FrameDecoder, ProtocolError

TIMEOUT_S = 10.0


class RemoteLogError(Exception):
    """The broker gives no records; the text has its address and the reason."""


class RemoteLog:
    """
    The commit log of a broker (Apache's or ours) at "host:port"; its ends are those of the moment of the connect.

    Raises RemoteLogError.
    """

    def __init__(self, addr: str) -> None:
        self.addr = addr
        self._opaque = 0
        self._frames = FrameDecoder()
        try:
            self._socket = socket.create_connection(split_addr(addr), TIMEOUT_S)
        except (OSError, ValueError) as error:
            raise RemoteLogError(f"{addr}: {error}") from error
        try:
            self.min_offset, self.end_offset = self._ends()
        except RemoteLogError:
            self.close()
            raise

    def record_at(self, phy_offset: int, size: int) -> bytes | None:
        answer = self._request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(phy_offset)})
        body = answer.body or b""
        return body if answer.code == ResponseCode.SUCCESS and len(body) == size else None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _ends(self) -> tuple[int, int]:
        answer = self._request(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        if answer.code != ResponseCode.SUCCESS:
            # 16: it wants an account; 3: it is no broker but a NameServer.
            raise RemoteLogError(f"{self.addr} does not report its commit log: {_reply_text(answer)}")
        try:
            table = fastjson.decode(answer.body or b"", KVTable).table
            return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        except (fastjson.JsonError, KeyError, ValueError) as error:
            raise RemoteLogError(
                f"{self.addr} reports no valid offsets of its commit log: {error} ({_reply_text(answer)})"
            ) from error

    def _request(self, code: RequestCode, fields: dict[str, str]) -> RemotingCommand:
        self._opaque += 1
        request = RemotingCommand(code=code, opaque=self._opaque, ext_fields=fields)
        try:
            self._socket.sendall(encode_command(request))
            while True:
                data = self._socket.recv(65536)
                if not data:
                    raise RemoteLogError(f"{self.addr} closed the connection")
                for frame in self._frames.receive(data):
                    answer = decode_command(frame)
                    if answer.is_response and answer.opaque == self._opaque:
                        return answer
        except (OSError, ProtocolError) as error:
            raise RemoteLogError(f"{self.addr}: {error}") from error


def _reply_text(answer: RemotingCommand) -> str:
    remark = answer.remark or "no remark"
    return f"it answers with code {answer.code}, {remark}"
