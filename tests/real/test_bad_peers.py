"""
Peers that break every rule, against real processes of ours: they lose their own connection at most.

After each attack the process is the same and alive, a connection opened before it still answers, a new one answers,
and the log tells the operator which peer it was.
"""

from __future__ import annotations

import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.real.pairs import TOPIC, start_pair, wait_caught_up
from tests.real.peers import HOST, OURS, STAND_IN, Broker, Process, Site, until
from tests.real.probe import Probe, Refused, frame, raw_frame, send_fields
from tests.real.storefiles import first_difference, records, segments

pytestmark = [
    pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: a promise of ours, not Apache's"),
]

#: answers that mean "understood, and no"
SYSTEM_ERROR, NOT_SUPPORTED = 1, 3
TRACEBACK = re.compile(r"^Traceback|Unhandled Error|Unhandled error in Deferred", re.MULTILINE)


class Witness:
    """An honest connection that was there before; ``check`` proves that it, the process and newcomers are unharmed."""

    def __init__(self, process: Process, code: int):
        self.process, self.code, self.pid = process, code, process.pid
        self.probe = process.probe()
        self.check()

    def check(self) -> None:
        assert self.process.alive and self.process.pid == self.pid, f"the process died:\n{self.process.tail()}"
        self.probe.must(self.code)
        with self.process.probe() as newcomer:
            newcomer.must(self.code)
        assert not TRACEBACK.search(self.process.text()), f"a stack trace in the log:\n{self.process.tail()}"


@pytest.fixture(params=["namesrv", "broker"])
def witness(request: pytest.FixtureRequest, site: Site) -> Iterator[Witness]:
    namesrv = site.namesrv()
    if request.param == "namesrv":
        found = Witness(namesrv, 106)
    else:
        found = Witness(site.broker(OURS, namesrv.addr), 28)
    yield found
    found.probe.close()


# ---- the remoting port -------------------------------------------------------------------------------------------


def bare(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), 10)


def name_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()
    return f"{host}:{port}"


#: what no remoting peer sends; the connection is closed and the log names the peer
BROKEN_FRAMES: dict[str, bytes] = {
    "length -1": struct.pack(">i", -1),
    "length -2147483648": struct.pack(">i", -(1 << 31)) + b"x" * 100,
    "length 2147483647": struct.pack(">i", (1 << 31) - 1) + b"x" * 100,
    "length 17 MiB": struct.pack(">i", 17 << 20) + b"x" * 100,
    "length 0": struct.pack(">i", 0),
    "length 3": struct.pack(">i", 3) + b"abc",
    "header longer than its frame": struct.pack(">ii", 20, 4000) + b"x" * 16,
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS hello": bytes.fromhex("1603010200010001fc0303") + b"\x5a" * 506,
    "not JSON": raw_frame(b"this is no JSON"),
    "half a JSON object": raw_frame(b'{"code":105,"opaque":1,'),
    "a JSON list": raw_frame(b"[1,2,3]"),
    "a JSON string": raw_frame(b'"code"'),
    "JSON nested 5,000 deep": raw_frame(b"[" * 5000 + b"]" * 5000),
    "no header at all": raw_frame(b""),
    "code is a word": raw_frame(b'{"code":"send","opaque":1,"flag":0,"language":"JAVA","version":407}'),
    "code beyond 32 bits": raw_frame(b'{"code":99999999999,"opaque":1,"flag":0,"language":"JAVA","version":407}'),
    "serialize type 7": raw_frame(b'{"code":105,"opaque":1}', serialize_type=7),
    "binary header cut short": raw_frame(b"\x00\x69\x00", serialize_type=1),
    "binary header with a long remark": raw_frame(b"\x00\x69\x00\x01\x99" + b"\x7f" * 40, serialize_type=1),
}


@pytest.mark.smoke
def test_broken_frames_cost_only_their_connection(witness: Witness) -> None:
    """Each kind of broken frame closes the connection that sent it, is logged with its peer, and harms nobody else."""
    for what, data in BROKEN_FRAMES.items():
        with bare(witness.process.port) as sock:
            peer = name_of(sock)
            sock.sendall(data)
            probe_end(sock, what)
        until(f"the log names the peer that sent {what}", partial(is_logged, witness.process, peer), seconds=10)
        witness.check()


def is_logged(process: Process, words: str) -> bool:
    return words in process.text()


def probe_end(sock: socket.socket, what: str) -> None:
    """Wait for the peer's close; an answer before it is allowed (a refusal that could still be addressed)."""
    sock.settimeout(10)
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        raise AssertionError(f"the connection that sent {what} is still open after 10 s") from None


@pytest.mark.smoke
def test_noise_is_survived(witness: Witness) -> None:
    """Random bytes of 40 seeds, some of them dressed as frames, end nothing but their connections."""
    for seed in range(40):
        chance = random.Random(seed)
        data = chance.randbytes(chance.randrange(1, 3000))
        if seed % 2:
            data = struct.pack(">ii", 4 + len(data), min(len(data), chance.randrange(300))) + data
        with bare(witness.process.port) as sock:
            try:
                sock.sendall(data)
            except ConnectionError:
                pass
        if seed % 8 == 0:
            witness.check()
    witness.check()


@pytest.mark.smoke
def test_slow_and_silent_peers_hold_up_nobody(witness: Witness) -> None:
    """Half a frame, two hundred silent connections, and a request in single bytes: all served or left alone."""
    request = frame(witness.code, {}, opaque=7)
    half = bare(witness.process.port)
    half.sendall(request[: len(request) // 2])
    silent = [bare(witness.process.port) for _ in range(200)]
    witness.check()
    for sock in silent:
        sock.close()
    with witness.process.probe() as slow:
        for place in range(len(request)):
            slow.write(request[place : place + 1])
        assert slow.read().opaque == 7
    half.sendall(request[len(request) // 2 :])
    half.settimeout(10)
    assert half.recv(8), "the half frame was completed and not answered"
    half.close()
    witness.check()


@pytest.mark.smoke
def test_unknown_codes_are_refused_by_number(witness: Witness) -> None:
    """An unknown request gets code 3 and a remark with its number, and the connection goes on; one-way gets nothing."""
    with witness.process.probe() as probe:
        for code in (9999, 0, -5, 32_767):
            answer = probe.ask(code)
            assert answer.code == NOT_SUPPORTED and f"{code} not supported" in (answer.remark or "")
        probe.send(9999, {}, flag=2)
        probe.must(witness.code)
    witness.check()


@pytest.mark.smoke
def test_namesrv_names_what_is_missing_or_wrong(site: Site) -> None:
    """Requests to the NameServer with missing or wrong fields and bodies get a refusal that names the field."""
    witness = Witness(site.namesrv(), 106)
    register: dict[str, object] = {
        "brokerName": "b",
        "brokerAddr": "127.0.0.1:1",
        "clusterName": "c",
        "haServerAddr": "127.0.0.1:2",
    }
    with witness.process.probe() as probe:
        cases: list[tuple[int, dict[str, object], bytes, str]] = [
            (105, {}, b"", "topic"),
            (103, {"brokerName": "b"}, b"", "brokerAddr"),
            (103, register | {"brokerId": "zero"}, b"{}", "brokerId"),
            (103, register | {"brokerId": "0"}, b"{no json", ""),
            (103, register | {"brokerId": "0", "compressed": "true"}, b"\x78\x9c not zlib", ""),
            (100, {"namespace": "n", "value": "v"}, b"", "key"),
        ]
        for code, ext, body, word in cases:
            answer = probe.ask(code, ext, body)
            assert answer.code != 0, f"{code} {ext} was accepted"
            assert word in (answer.remark or ""), f"{code} {ext}: {answer.remark}"
    witness.check()


@pytest.mark.smoke
def test_broker_names_what_is_missing_or_wrong(site: Site) -> None:
    """Requests to the broker with missing or wrong fields and bodies get a refusal; nothing of them is stored."""
    namesrv = site.namesrv()
    broker = site.broker(OURS, namesrv.addr)
    witness = Witness(broker, 28)
    good = send_fields("Bad", 0, "")
    end = broker.end_offset()
    with broker.probe() as probe:
        cases: list[tuple[int, dict[str, object], bytes]] = [
            (310, {name: value for name, value in good.items() if name != "e"}, b"x"),
            (310, good | {"e": "first"}, b"x"),
            (310, good | {"e": "99999999999999999999"}, b"x"),
            (310, good | {"b": ""}, b"x"),
            (310, good | {"b": "no spaces allowed"}, b"x"),
            (310, good | {"b": "t" * 200}, b"x"),
            (310, good | {"e": 4711}, b"x"),
            (310, good | {"i": "p\x01" + "v" * 40_000}, b"x"),
            (310, good, b"x" * ((4 << 20) + 1)),
            (320, good | {"m": True}, b"no batch at all"),
            (320, good | {"m": True}, struct.pack(">i", -7) * 20),
            (11, {"topic": "Bad"}, b""),
            (34, {}, b"{not json"),
            (34, {}, b""),
            (15, {"consumerGroup": "g", "topic": "t", "queueId": "0"}, b""),
            (33, {"offset": "-17"}, b""),
            (33, {"offset": str(1 << 62)}, b""),
            (30, {"topic": "Bad", "queueId": "x"}, b""),
            (17, {"topic": "Bad"}, b""),
        ]
        for code, ext, body in cases:
            answer = probe.ask(code, ext, body)
            assert answer.code != 0, f"request {code} with {ext} was accepted"
            assert answer.remark, f"request {code} with {ext} was refused without a remark"
    assert broker.end_offset() == end, "a refused send left something in the log"
    witness.check()


# ---- the HA port -------------------------------------------------------------------------------------------------

#: what no slave sends: (what, bytes); the master must not count any of it as an acknowledgement
BAD_REPORTS: dict[str, bytes] = {
    "a report far beyond the end": struct.pack(">q", 1 << 62),
    "a negative report": struct.pack(">q", -4096),
    "seven bytes": b"\0" * 7,
    "an AutoSwitch handshake": struct.pack(">ihhq", 1, 0, 0, 3),
    "a remoting request": frame(28, {}, opaque=1),
    "text": b"GET / HTTP/1.0\r\n\r\n",
    "10 kB of noise": random.Random(4).randbytes(10_000),
    "a report, then a smaller one": struct.pack(">qq", 0, -1),
}


@pytest.mark.smoke
def test_bad_reports_acknowledge_nothing(site: Site) -> None:
    """With no slave but liars at the HA port, SYNC_MASTER answers 11 or 12, never 0; the log names them."""
    namesrv = site.namesrv()
    master = site.broker(OURS, namesrv.addr, brokerRole="SYNC_MASTER", slaveTimeout=500)
    witness = Witness(master, 28)
    with master.probe() as probe:
        liars, first = [], ""
        for what, data in BAD_REPORTS.items():
            liars.append(bare(master.ha_port))
            first = first or name_of(liars[-1])
            liars[-1].sendall(data)
            answer = probe.send_message("Liars", 0, what.encode())
            assert answer.code in (11, 12), f"after {what} a send was answered {answer.code}"
        time.sleep(0.2)  # what the liars were still to be told has been told
        assert probe.send_message("Liars", 0, b"after all of them").code in (11, 12)
        with bare(master.ha_port) as sock:
            sock.sendall(BAD_REPORTS["a report far beyond the end"])
            probe_end(sock, "a report far beyond the end")
        # one line a minute for each kind of lie
        until("the log names the first liar", lambda: first in master.text(), seconds=10)
        for sock in liars:
            sock.close()
    witness.check()


@pytest.mark.real
def test_bad_reports_disturb_no_slave(site: Site) -> None:
    """While liars and silent connections come and go at the HA port, the real slave keeps up and acknowledges."""
    _, master, slave = start_pair(site, (OURS, OURS), brokerRole="SYNC_MASTER")
    witness = Witness(master, 28)
    silent = [bare(master.ha_port) for _ in range(150)]
    with master.probe() as probe:
        for what, data in BAD_REPORTS.items():
            with bare(master.ha_port) as sock:
                sock.sendall(data)
                answer = probe.send_message(TOPIC, 0, what.encode())
                assert answer.code == 0, f"during {what} a send was answered {answer.code}"
    for sock in silent:
        sock.close()
    end = wait_caught_up(master, slave)
    assert first_difference(master.commitlog, slave.commitlog, end) is None
    witness.check()


@pytest.mark.real
def test_odd_reports_are_taken_as_they_are(site: Site) -> None:
    """
    A flood of true reports, one in two pieces, a first one after six seconds: each is served, others are not held up.

    None of it is more than it says: an acknowledgement comes with the offset that was sent, and not before.
    """
    namesrv = site.namesrv(OURS)
    master = site.broker(OURS, namesrv.addr, brokerRole="SYNC_MASTER", slaveTimeout=500)
    witness = Witness(master, 28)
    late = bare(master.ha_port)
    since = time.monotonic()
    with master.probe() as probe:
        assert probe.send_message("Odd", 0, b"nobody is there").code == 11
        with bare(master.ha_port) as flood:
            flood.sendall(struct.pack(">q", 0) * 200_000)
            # served is counted as a slave; before, nobody is there
            assert frames_up_to(flood, master.end_offset()) == 0
            assert probe.send_message("Odd", 0, b"a flood of zeros acknowledges nothing").code == 12
        with bare(master.ha_port) as halves:
            halves.sendall(bytes(7))
            answer = probe.send_message("Odd", 0, b"seven bytes are no slave")
            assert answer.code in (11, 12), answer  # the flood's end may not be known yet
            halves.sendall(bytes(1))
            assert frames_up_to(halves, master.end_offset()) == 0
    time.sleep(max(0.0, 6.0 - (time.monotonic() - since)))  # Apache's own slaves report 5 s after they connected
    late.sendall(bytes(8))
    assert frames_up_to(late, master.end_offset()) == 0
    late.sendall(struct.pack(">q", master.end_offset()))
    until("the latecomer counts", lambda: acknowledged_by(late, master), seconds=30)
    late.close()
    witness.check()


def frames_up_to(slave: socket.socket, end: int) -> int:
    """Read frames until one ends at ``end``; return where the first began."""
    slave.settimeout(20)
    first = -1
    while True:
        offset, size = struct.unpack(">qi", take(slave, 12))
        take(slave, size)
        first = offset if first < 0 else first
        if offset + size == end:
            return first


def take(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece, "the master has hung up"
        data += piece
    return data


def acknowledged_by(slave: socket.socket, master: Broker) -> bool:
    """Send a message, and as its slave say so when it has come; True when the producer was told that it is there."""
    with master.probe() as probe:
        end = master.end_offset()
        opaque = probe.send(310, send_fields("Odd", 0, ""), b"to the latecomer")
        until("the message is in the log", lambda: master.end_offset() > end, seconds=10)
        frames_up_to(slave, master.end_offset())
        slave.sendall(struct.pack(">q", master.end_offset()))
        answer = probe.read()
    assert answer.opaque == opaque
    return answer.code == 0


class FalseMaster:
    """
    Listens like a master's HA port; every slave that connects gets ``reply`` after its first report.

    With ``reply_to`` the reply is made from the offset that the slave reports.
    """

    def __init__(self) -> None:
        self.reply = b""
        self.reply_to: Callable[[int], bytes] | None = None
        self.served = 0
        self.closed_by_slave = 0
        self._server = socket.create_server((HOST, 0))
        self.addr = f"{HOST}:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                slave, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(slave,), daemon=True).start()

    def _answer(self, slave: socket.socket) -> None:
        try:
            (report,) = struct.unpack(">q", take(slave, 8))
            slave.sendall(self.reply if self.reply_to is None else self.reply_to(report))
            self.served += 1
            while slave.recv(4096):
                pass
        except (OSError, AssertionError):
            pass
        self.closed_by_slave += 1
        slave.close()

    def close(self) -> None:
        self._server.close()


def hung_up(master: FalseMaster, before: int) -> bool:
    return master.closed_by_slave > before


@pytest.mark.real
def test_slave_believes_no_false_master(site: Site) -> None:
    """Frames with impossible sizes or places make our slave hang up, say why, keep its log, and try again."""
    namesrv = site.namesrv()
    master = FalseMaster()
    body = b"\xda\xa3\x20\xa7" * 10
    replies = {
        "a size of -5": struct.pack(">qi", 0, -5),
        "a size of -2147483648": struct.pack(">qi", 0, -(1 << 31)),
        "a size of 2147483647": struct.pack(">qi", 0, (1 << 31) - 1) + body,
        "a size of 64 MiB": struct.pack(">qi", 0, 64 << 20) + body,
        "a size of 4 MiB and a byte": struct.pack(">qi", 0, (4 << 20) + 1) + bytes((4 << 20) + 1),
        "a place that is no segment start": struct.pack(">qi", 12345, len(body)) + body,
        "a negative place": struct.pack(">qi", -4096, len(body)) + body,
        "noise": random.Random(9).randbytes(5000),
    }
    values: dict[str, Any] = {"brokerId": 1, "brokerRole": "SLAVE", "haMasterAddress": master.addr}
    for number, (what, reply) in enumerate(replies.items()):
        master.reply = reply
        served = master.closed_by_slave
        slave = site.broker(OURS, namesrv.addr, f"slave-{number}", **values)
        until(f"the slave hung up after {what}", partial(hung_up, master, served), seconds=30)
        assert slave.end_offset() == 0, f"{what} left something in the slave's log"
        assert master.addr in slave.text(), f"{what}: the log does not name the master\n{slave.tail()}"
        assert not TRACEBACK.search(slave.text()), slave.tail()
        slave.stop()
    master.close()


#: from the offset that a slave asks for to what no master sends there
FALSE_FRAMES: dict[str, Callable[[int], bytes]] = {
    "a heartbeat of another place": lambda offset: struct.pack(">qi", offset + 1, 0),
    "a heartbeat of the first byte": lambda offset: struct.pack(">qi", 0, 0),
    "a frame behind a hole": lambda offset: struct.pack(">qi", offset + 64, 10) + bytes(10),
    "a frame of old bytes": lambda offset: struct.pack(">qi", offset - 100, 10) + bytes(10),
    "other bytes where the slave has some": lambda offset: struct.pack(">qi", offset, 64) + b"\x5a" * 64,
    "a negative size": lambda offset: struct.pack(">qi", offset, -1) + bytes(10),
    "a frame over the end of the segment": lambda offset: struct.pack(">qi", offset, 1 << 20) + bytes(1 << 20),
}


@pytest.mark.real
def test_slave_with_a_log_believes_no_false_frames(site: Site) -> None:
    """A slave that has copied hangs up on every frame that does not fit, and not a byte of its log changes."""
    namesrv, master, slave = start_pair(site, (OURS, OURS))
    with master.probe() as probe:
        for number in range(100):
            assert probe.send_message(TOPIC, number % 4, b"%d " % number * 50).code == 0
    end = wait_caught_up(master, slave)
    slave.stop()
    false = FalseMaster()
    same: dict[str, Any] = {key: value for key, value in slave.values.items() if key not in PLACES}
    for number, (what, reply_to) in enumerate(FALSE_FRAMES.items()):
        false.reply_to = reply_to
        before = false.closed_by_slave
        liar = site.broker(
            OURS, namesrv.addr, f"misled-{number}", store=slave.store, **(same | {"haMasterAddress": false.addr})
        )
        until(f"the slave hung up after {what}", partial(hung_up, false, before), seconds=60)
        assert liar.end_offset() == end, f"{what} moved the end of the slave's log"
        assert false.addr in liar.text(), f"{what}: the log does not name the master\n{liar.tail()}"
        assert not TRACEBACK.search(liar.text()), liar.tail()
        liar.stop()
    false.close()
    assert first_difference(master.commitlog, slave.commitlog, end) is None


#: what each start of a broker has of its own
PLACES = ("listenPort", "haListenPort", "namesrvAddr", "storePathRootDir", "storePathCommitLog")


# ---- files -------------------------------------------------------------------------------------------------------


def start_and_fail(process: Process, *words: str) -> None:
    """Start a process that must refuse to run, with a message that holds ``words`` and no stack trace."""
    process.start(wait=False)
    until(f"{process.name} ends", lambda: not process.alive, seconds=30)
    text = process.text()
    assert process.stop() != 0, text
    for word in words:
        assert word in text, f"{word!r} is not in:\n{text}"
    assert not TRACEBACK.search(text), text


@pytest.mark.smoke
def test_broken_properties_name_file_and_key(site: Site) -> None:
    """A value that cannot be, or a file that is not there, ends the start with file, key and text in one line."""
    cases: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"listenPort": "tenthousand"}, ("broker.conf", "listenPort", "tenthousand")),
        ({"flushDiskType": "SOMETIMES"}, ("broker.conf", "flushDiskType", "SOMETIMES")),
        ({"mappedFileSizeCommitLog": "1GB"}, ("broker.conf", "mappedFileSizeCommitLog", "1GB")),
        ({"brokerRole": "SLAVE", "brokerId": 0}, ("brokerId",)),
    ]
    for number, (values, words) in enumerate(cases):
        broker = site.broker(OURS, "127.0.0.1:1", f"broken-{number}", start=False, **values)
        start_and_fail(broker, *words)
    nowhere = site.broker(OURS, "127.0.0.1:1", "nowhere", start=False)
    (nowhere.folder / "broker.conf").unlink()
    start_and_fail(nowhere, "broker.conf")


@pytest.mark.smoke
def test_unknown_keys_are_told_with_a_guess(site: Site) -> None:
    """A key that nobody knows does not stop the start; it is reported once, with the key that was probably meant."""
    namesrv = site.namesrv()
    broker = site.broker(OURS, namesrv.addr, flushDiskTyp="SYNC_FLUSH")
    assert "flushDiskTyp" in broker.text()
    assert re.search(r"flushDiskType\b", broker.text()), broker.tail()


@pytest.mark.smoke
def test_second_broker_on_the_same_store_is_refused(site: Site) -> None:
    """Two brokers cannot open one store: the second says which directory is taken and leaves it alone."""
    namesrv = site.namesrv()
    first = site.broker(OURS, namesrv.addr)
    second = site.broker(OURS, namesrv.addr, "second", store=first.store, start=False)
    start_and_fail(second, str(first.store))
    with first.probe() as probe:
        assert probe.send_message("Taken", 0, b"still here").code == 0


def _filled(site: Site) -> Broker:
    """Return a stopped broker with some segments of messages."""
    namesrv = site.namesrv()
    broker = site.broker(OURS, namesrv.addr, mappedFileSizeCommitLog=1 << 16)
    with broker.probe() as probe:
        for number in range(400):
            assert probe.send_message("Damage", 0, b"%06d" % number * 150, KEYS=f"k{number}").code == 0
    broker.stop()
    return broker


@pytest.mark.real
def test_flipped_body_bit_is_told_and_costs_nothing_else(site: Site) -> None:
    """
    A flipped bit in an old record: the broker starts, serves everything, and the record keeps its place.

    (Apache cuts the log there after a crash and loses all that follows.)
    """
    broker = _filled(site)
    victim = list(records(broker.commitlog))[200]
    offset = victim.phy_offset + victim.body_at + 3
    start = max(s for s in segments(broker.commitlog) if s <= offset)
    with segments(broker.commitlog)[start].open("r+b") as file:
        file.seek(offset - start)
        file.write(b"\xff")
    for end in ("clean", "killed"):
        broker.start()
        with broker.probe() as probe:
            assert len(probe.read_queue("Damage", 0)) == 400, f"after a {end} stop"
        broker.kill()


@pytest.mark.real
def test_truncated_segment_is_named(site: Site) -> None:
    """A middle segment that lost its second half stops the start, and the message names the file."""
    broker = _filled(site)
    middle = list(segments(broker.commitlog).values())[2]
    with middle.open("r+b") as file:
        file.truncate(1 << 15)
    start_and_fail(broker, str(middle))


@pytest.mark.real
def test_broken_json_files_fall_back_or_are_named(site: Site) -> None:
    """
    A damaged topics.json is read from its .bak, which lacks the last change.

    With both damaged the start ends and names the file.
    """
    broker = _filled(site)
    broker.start()
    with broker.probe() as probe:
        probe.create_topic("AfterDamage", 1)
    broker.stop()
    topics = broker.store / "config" / "topics.json"
    topics.write_text('{"dataVersion":{"counter":')
    broker.start()
    with broker.probe() as probe:
        assert "Damage" in probe.topics() and len(probe.read_queue("Damage", 0)) == 400
    broker.stop()
    for path in (topics, topics.with_suffix(".json.bak")):
        path.write_text('{"dataVersion":{"counter":')
    start_and_fail(broker, "topics.json")


@pytest.mark.smoke
def test_probe_is_no_liar(site: Site) -> None:
    """The tests' own probe raises what it is told: a refusal as Refused, a close as a connection error."""
    namesrv = site.namesrv()
    with namesrv.probe() as probe, pytest.raises(Refused, match="105 was answered 17"):
        probe.must(105, {"topic": "NoSuchTopic"})
    with pytest.raises(ConnectionError), Probe(namesrv.port) as probe:
        namesrv.kill()
        probe.must(106)
