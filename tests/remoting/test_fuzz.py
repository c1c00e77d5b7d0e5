"""Bytes that nobody should send: the process goes on, its other connections too, and the log holds no traceback."""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from rmq.wire.codes import SerializeType
from rmq.wire.command import RemotingCommand, decode_commands, encode_command
from rmq.wire.frames import PREFIX
from tests.remoting.fuzz import Damage, Machine, fuzz, golden_requests
from tests.seeds import SEED

#: damaged conversations with each role; the campaign has more of them
CASES = 300
#: chunkings that are compared
STREAMS = 25

#: requests of a NameServer that change nothing, so that the same ones have the same answers
LOOK_UPS = {101, 105, 106, 206, 219, 224, 319}

REQUESTS = golden_requests()


class FuzzTests(SynchronousTestCase):
    def machine(self, role: str, **values: str) -> Machine:
        machine = Machine(role, 1, **values)
        self.addCleanup(machine.close)
        return machine

    def fuzz(self, role: str, **values: str) -> None:
        seed = f"{SEED}"
        print(f"\nFUZZ {role} seed {seed}")
        fuzz(self.machine(role, **values), REQUESTS, seed, CASES)

    def test_namesrv(self) -> None:
        """A NameServer survives damaged requests of any kind."""
        self.fuzz("namesrv")

    def test_broker(self) -> None:
        """So does a broker."""
        self.fuzz("broker")

    def test_found_before(self) -> None:
        """Requests that once left a traceback."""
        for role in ("namesrv", "broker"):
            machine = self.machine(role)
            for header in FOUND:
                connection = machine.connect()
                connection.receive(PREFIX.pack(4 + len(header), len(header)) + header)
                self.assertEqual(len(connection.answers()), 1)
                machine.check()


#: headers of requests that once left a traceback
FOUND = [
    # a null value made a later one be read that is no UTF-8 (seed a-888)
    b'{"code":%d,"extFields":{"topic":"T","subscription":null,"queueId":"\xb0"},"opaque":1}' % code
    for code in (11, 105)
]


class ChunkTests(SynchronousTestCase):
    """The same bytes mean the same, however they come."""

    def answers(self, chunks: list[bytes]) -> tuple[bytes, bool]:
        """Return what a fresh NameServer answers to these chunks, and whether it hangs up."""
        machine = Machine("namesrv", 1)
        connection = machine.connect()
        for chunk in chunks:
            connection.receive(chunk)
        answered = connection.wire.read(), bool(connection.wire.disconnecting)
        machine.close()
        return answered

    def test_chunks(self) -> None:
        """Whole, byte by byte and in random pieces, sound or with garbage behind, JSON or binary: the same answers."""
        seed = SEED
        print(f"\nCHUNKS seed {seed}")
        rng = Random(seed)
        pool = [data for data in REQUESTS if decode_commands(data)[0].code in LOOK_UPS]
        self.assertGreater(len(pool), 10)
        for number in range(STREAMS):
            stream = b""
            for _ in range(rng.randrange(1, 12)):
                (command,) = decode_commands(rng.choice(pool))
                command.serialize_type = rng.choice((SerializeType.JSON, SerializeType.ROCKETMQ))
                stream += encode_command(command)
            if rng.randrange(2):
                stream += Damage(rng).request(pool)
            whole = self.answers([stream])
            bytewise = self.answers([stream[at : at + 1] for at in range(len(stream))])
            pieces = self.answers(list(Damage(rng).chunks(stream)))
            self.assertEqual(bytewise, whole, f"seed {seed}, stream {number}: {stream.hex()}")
            self.assertEqual(pieces, whole, f"seed {seed}, stream {number}: {stream.hex()}")

    def test_garbage_in_between(self) -> None:
        """What came before garbage is answered; what comes behind it is not looked at."""
        ask = encode_command(RemotingCommand(105, 1, ext_fields={"topic": "T"}))
        for garbage in (b"\xff" * 20, b"\0\0\0\x03\0\0\0\0", b"\x7f\xff\xff\xff"):
            answered, gone = self.answers([ask + ask + garbage + ask])
            self.assertEqual(len(decode_commands(answered)), 2)
            self.assertTrue(gone)


class DamageTests(SynchronousTestCase):
    """The tests above could not fail if nothing were damaged."""

    def test_requests(self) -> None:
        """Recorded requests of many codes, and in both kinds of headers."""
        commands = [decode_commands(data)[0] for data in REQUESTS]
        self.assertGreater(len({command.code for command in commands}), 40)
        self.assertEqual({int(command.serialize_type) for command in commands}, {0, 1})

    def test_damage(self) -> None:
        """Most requests are damaged, many of those are still requests, and the same seed does the same."""
        made = [Damage(Random(number)).request(REQUESTS) for number in range(400)]
        self.assertEqual(made, [Damage(Random(number)).request(REQUESTS) for number in range(400)])
        damaged = [data for data in made if data not in REQUESTS]
        self.assertGreater(len(damaged), 250)

    def test_a_traceback_is_found(self) -> None:
        """A responder that raises is noticed, and the case is named."""
        machine = Machine("namesrv", 1)
        self.addCleanup(machine.close)

        def broken(request: object) -> None:
            raise RuntimeError("planted")

        machine.service.responders._responders[105].method = broken
        ask = encode_command(RemotingCommand(105, 1, ext_fields={"topic": "T"}))
        error = self.assertRaises(AssertionError, fuzz, machine, [ask], "planted", 3)
        self.assertIn("planted", str(error))
        self.assertIn("case planted-0", str(error))
        self.flushLoggedErrors(RuntimeError)
