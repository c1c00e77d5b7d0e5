"""The file of the key-value table: written whole or not at all, and broken ones told by line."""

from __future__ import annotations

import errno
import os

from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.kvconfig import KVConfig, parse_kv_file
from rmq.runtime.disk import syscalls
from rmq.runtime.disk.error import DiskFull
from rmq.runtime.disk.files import DiskError
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.wire.api.kv import DELETE_KV_CONFIG, PUT_KV_CONFIG, KVConfigHeader, PutKVConfigHeader
from tests.namesrv.talk import Talk


class FileTests(SynchronousTestCase):
    def test_read(self) -> None:
        """Apache's files are read, and those that people wrote: numbers and booleans count as their text."""
        self.assertEqual(parse_kv_file(b'{"configTable":{"N":{"k":"v"}}}'), {"N": {"k": "v"}})
        self.assertEqual(
            parse_kv_file(b"{configTable: {'N': {k: 5, b: true, d: 1.5}}}"), {"N": {"k": "5", "b": "true", "d": "1.5"}}
        )
        self.assertEqual(parse_kv_file(b"{}"), {})
        self.assertEqual(parse_kv_file(b'{"configTable":null,"other":1}'), {})

    def test_broken(self) -> None:
        """What cannot be read is told by line, and by namespace and key where these are known."""
        cases = {
            b'{"configTable":{\n"N"': "line 2: unexpected end at character 20",
            b'{\n"configTable":{"N":{"k":"v"},\n"x" }\n}': "line 3: unexpected",
            b"\n\n[]": "line 1: configTable must be an object of namespaces, not an array",
            b'{"configTable":\n{"N":"x\xff"}}': "line 2: no UTF-8 at byte 23",
            b'{"configTable":{\n"M":{},\n"N":[1]}}': "line 3: namespace N must be an object, not an array",
            b'{"configTable":{"N":{\n"k":null}}}': "line 2: the value of k in namespace N must be text, not null",
            b'{"a":' * 100_000: "line 1: ",
        }
        for data, expected in cases.items():
            error = self.assertRaises(ValueError, parse_kv_file, data)
            self.assertIn(expected, str(error))


class FullDiskTests(SynchronousTestCase):
    def test_nothing_is_half_written(self) -> None:
        """On a full disk a change fails, file and table stay as they were, and nothing is left beside them."""
        talk = Talk(self.mktemp())
        talk.service.kv.put("N", "k", "old")
        write_fully = syscalls.write_fully

        def half(fd: int, data: bytes, offset: int) -> None:
            write_fully(fd, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, "No space left on device")

        with open(talk.path("kvConfig.json"), "rb") as file:
            before = file.read()
        patch = self.patch(syscalls, "write_fully", half)
        for contract, header in (
            (PUT_KV_CONFIG, PutKVConfigHeader(namespace="N", key="k", value="new")),
            (DELETE_KV_CONFIG, KVConfigHeader(namespace="N", key="k")),
        ):
            answer = talk.ask(contract, header)
            self.assertEqual(answer.code, 1)
            for part in ("nothing was changed", "kvConfig.json", "No space left on device"):
                self.assertIn(part, answer.remark or "")
            self.assertEqual(talk.service.kv.get("N", "k"), "old")
            self.assertEqual(sorted(os.listdir(talk.folder)), ["kvConfig.json"])
            with open(talk.path("kvConfig.json"), "rb") as file:
                self.assertEqual(file.read(), before)
        patch.restore()
        self.assertEqual(talk.ask(PUT_KV_CONFIG, PutKVConfigHeader(namespace="N", key="k", value="new")).code, 0)
        self.assertEqual(talk.service.kv.get("N", "k"), "new")

    def test_power_failure_after_a_full_disk(self) -> None:
        """What was answered with success is there after a power failure, however often the disk was full."""
        world = World(7)
        node = Node(world, SimNet(world), "n")
        kv = KVConfig(node.disk, "/data/kvConfig.json")
        answered: dict[str, str] = {}
        healthy = node.disk.capacity_bytes
        for number in range(20):
            if number % 3 == 1:
                node.disk.fill()
            else:
                node.disk.capacity_bytes = healthy
            value = "x" * (100 + number * 40)
            try:
                kv.put("N", "k", value)
                answered["k"] = value
            except DiskFull:
                pass
            self.assertEqual(kv.get("N", "k"), answered.get("k"))
            node.disk.crash()
            kv = KVConfig(node.disk, "/data/kvConfig.json")
            kv.load()
            self.assertEqual(kv.get("N", "k"), answered.get("k"))

    def test_missing_folder(self) -> None:
        """A folder that cannot be made is said as it is."""
        talk = Talk(self.mktemp())
        with open(talk.folder, "w", encoding="ascii"):
            pass
        error = self.assertRaises(DiskError, talk.service.kv.put, "N", "k", "v")
        self.assertIn(talk.folder, str(error))
