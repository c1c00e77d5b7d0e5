"""A forwarder in front of a master's HA port that can fall silent between two frames in the middle of a record."""

from __future__ import annotations

import socket
import struct
import threading

from tests.real.peers import HOST

_HEADER = struct.Struct(">qi")


class Halfway:
    """
    Forward slaves to the master at ``port``, frame by frame; ``addr`` is what slaves take for their master.

    On another address of the loopback, ``host``, it listens at the master's own port.

    After :meth:`hold` nothing more is forwarded behind the first frame that ends within the given part of the log;
    ``held_at`` is where that was. :meth:`release` lets new connections pass everything.
    """

    def __init__(self, port: int, host: str = HOST):
        self.port = port
        self.held_at: int | None = None
        self._part: tuple[int, int] | None = None
        self._server = socket.create_server((host, 0 if host == HOST else port))
        self.addr = f"{host}:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, first: int, end: int) -> None:
        """Fall silent behind a frame whose last byte is behind ``first`` and before ``end``."""
        self.held_at, self._part = None, (first, end)

    def release(self) -> None:
        self._part = None

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                slave, _ = self._server.accept()
                master = socket.create_connection((HOST, self.port), 10)
            except OSError:
                if self._server.fileno() < 0:
                    return
                slave.close()
                continue
            master.settimeout(None)
            threading.Thread(target=self._reports, args=(slave, master), daemon=True).start()
            threading.Thread(target=self._frames, args=(master, slave), daemon=True).start()

    def _reports(self, slave: socket.socket, master: socket.socket) -> None:
        try:
            while data := slave.recv(4096):
                master.sendall(data)
        except OSError:
            pass
        master.close()

    def _frames(self, master: socket.socket, slave: socket.socket) -> None:
        held = False
        try:
            while header := _take(master, _HEADER.size):
                offset, size = _HEADER.unpack(header)
                body = _take(master, size)
                if held:
                    continue
                slave.sendall(header + body)
                part = self._part
                if part is not None and part[0] < offset + size < part[1]:
                    held = True
                    self.held_at = offset + size
        except OSError:
            pass
        slave.close()


def _take(sock: socket.socket, size: int) -> bytes:
    """Return exactly ``size`` bytes; OSError at the end of the stream."""
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError("the stream has ended")
        data += piece
    return bytes(data)
