"""A broker that is asked for records of its log: what is made of answers that are none."""

from __future__ import annotations

import socket
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.rejoin.remote_log import TIMEOUT_S, RemoteLog, RemoteLogError
from rmq.wire.command import RemotingCommand, decode_command, encode_command
from rmq.wire.frames import FrameDecoder

ADDR = "192.0.2.1:10911"
ENDS = b'{"table":{"commitLogMinOffset":"7","commitLogMaxOffset":"1000"}}'


class Peer:
    """The other end of a connection: answers every request with the next of ``answers``."""

    def __init__(self, *answers: RemotingCommand) -> None:
        self._answers = list(answers)
        self._ready = b""
        self._frames = FrameDecoder()
        self.asked: list[tuple[int, dict[str, str]]] = []
        self.closed = False

    def sendall(self, data: bytes) -> None:
        for command in map(decode_command, self._frames.receive(data)):
            self.asked.append((command.code, dict(command.ext_fields)))
        if self._answers:
            self._ready += encode_command(self._answers.pop(0))

    def recv(self, limit: int) -> bytes:
        data, self._ready = self._ready[:limit], self._ready[limit:]
        return data

    def close(self) -> None:
        self.closed = True


def answer(code: int, *, remark: str | None = None, body: bytes = b"", opaque: int = 1) -> RemotingCommand:
    return RemotingCommand(code=code, opaque=opaque, flag=1, remark=remark, body=body)


class AskingTests(SynchronousTestCase):
    def ask(self, peer: Peer) -> RemoteLog:
        def connect(address: Any, timeout: float) -> Any:
            self.assertEqual((address, timeout), (("192.0.2.1", 10911), TIMEOUT_S))
            return peer

        self.patch(socket, "create_connection", connect)
        return RemoteLog(ADDR)

    def refused(self, *answers: RemotingCommand) -> str:
        """Return why the broker cannot be asked; the connection is closed by then."""
        peer = Peer(*answers)
        error = self.assertRaises(RemoteLogError, self.ask, peer)
        self.assertTrue(peer.closed)
        return str(error)

    def test_ends(self) -> None:
        """A good answer says where the log begins and ends; a record is given in its whole size or not at all."""
        peer = Peer(answer(0, body=ENDS), answer(0, body=b"12345", opaque=2), answer(1, opaque=3))
        records = self.ask(peer)
        self.assertEqual((records.min_offset, records.end_offset), (7, 1000))
        self.assertEqual(records.record_at(7, 5), b"12345")
        self.assertIsNone(records.record_at(12, 5))
        self.assertEqual(peer.asked, [(28, {}), (33, {"offset": "7"}), (33, {"offset": "12"})])

    def test_errors_are_no_answers(self) -> None:
        """A broker with access control and a NameServer are named with the code and the remark that they gave."""
        for code, remark in ((16, "AclException: No accessKey is configured"), (3, " request type 28 not supported")):
            text = self.refused(answer(code, remark=remark))
            for part in (ADDR, f"code {code}", remark):
                self.assertIn(part, text)

    def test_bodies_that_are_none(self) -> None:
        """An empty body, one that is no JSON, and a table without the two offsets are told, not raised as they are."""
        for body in (b"", b"{", b"[]", b'{"table":{}}', ENDS.replace(b"1000", b"many")):
            text = self.refused(answer(0, body=body))
            self.assertIn(f"{ADDR} reports no valid offsets of its commit log", text)
            self.assertIn("code 0", text)

    def test_nobody_listens(self) -> None:
        """An address at which no broker runs, or that is none, is one line of the command, not a traceback."""

        def refuse(address: Any, timeout: float) -> Any:
            raise ConnectionRefusedError(111, "Connection refused")

        self.patch(socket, "create_connection", refuse)
        for addr, why in ((ADDR, "Connection refused"), ("192.0.2.1:x", "192.0.2.1:x")):
            self.assertIn(f"{addr}: ", str(self.assertRaises(RemoteLogError, RemoteLog, addr)))
            self.assertIn(why, str(self.assertRaises(RemoteLogError, RemoteLog, addr)))

    def test_a_port_that_hangs_up(self) -> None:
        """A port that closes the connection (TLS only, or no broker at all) is named."""
        self.assertIn(f"{ADDR} closed the connection", self.refused())
