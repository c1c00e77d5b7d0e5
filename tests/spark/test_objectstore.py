"""
Stores in object stores: the same findings as from a disk, errors that name bucket and key, one way to try again.

A server for S3 runs in a process of its own (``moto``); nothing leaves this machine.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rmq_audit.cli.commands import main
from rmq_audit.driver.audit import Options, check, compare
from rmq_audit.driver.inventory import take_inventory
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.worker.files import identity, open_binary, read_at, read_whole
from rmq_audit.worker.location import InputError, Location, ReadError, child, located, same_place, shown
from rmq_audit.worker.work import STORE
from twisted.trial.unittest import SynchronousTestCase

from tests.needs import need_extra
from tests.ports import free_port
from tests.spark.cases import EngineCase
from tests.spark.support import as_json
from tests.spark.synthetic import SEGMENT_BYTES, Pair, make_store

STARTED_WITHIN_S = 60
SECRET = "hidden-word"


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """The port of an S3 server that holds nothing yet."""
    need_extra("moto (extra dev)")
    port = free_port()
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + STARTED_WITHIN_S
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, "the S3 server did not start"
                time.sleep(0.2)
        yield port
    finally:
        server.terminate()
        server.wait(30)


class ObjectStoreCase(SynchronousTestCase):
    folder: Path
    port: int

    @pytest.fixture(autouse=True)
    def _take_fixtures(self, tmp_path: Path, s3_port: int) -> None:
        self.folder = tmp_path
        self.port = s3_port
        self.bucket = f"bucket-{tmp_path.name.lower().replace('_', '-')}"[:60].rstrip("-")

    def uri(self, path: str, *, port: int | None = None) -> str:
        query = f"endpoint_override=127.0.0.1:{port or self.port}&scheme=http&region=us-east-1"
        return f"s3://tests:{SECRET}@{self.bucket}/{path}?{query}"

    def store(self) -> Any:
        import pyarrow.fs

        uri = self.uri("x") + "&allow_bucket_creation=true"
        return pyarrow.fs.FileSystem.from_uri(uri)[0]

    def upload(self, *roots: Path) -> None:
        """Put directories into the bucket, under their names."""
        import pyarrow.fs

        store = self.store()
        store.create_dir(self.bucket)
        for root in roots:
            pyarrow.fs.copy_files(
                str(root),
                f"{self.bucket}/{root.name}",
                source_filesystem=pyarrow.fs.LocalFileSystem(),
                destination_filesystem=store,
                use_threads=False,  # pyarrow 17 hangs with them
            )

    def made_pair(self, seed: int = 3, messages: int = 400) -> Pair:
        return Pair(self.folder, make_store(seed, messages))

    def run_here(self, *arguments: object) -> tuple[int, str]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                status = main([str(one) for one in arguments])
            except SystemExit as stop:
                status = int(stop.code or 0)
        return status, out.getvalue()


def without_places(findings: list[dict[str, Any]], *roots: object) -> list[dict[str, Any]]:
    """Return findings with the roots of stores taken out of their texts."""
    for one in findings:
        for root in roots:
            one["detail"] = one["detail"].replace(str(root), "ROOT")
    return findings


class ReadingTests(ObjectStoreCase):
    def test_the_same_findings_as_from_a_disk(self) -> None:
        """A damaged pair in a bucket gives what it gives on the disk, with local and remote sides mixed as well."""
        pair = self.made_pair()
        pair.flip(pair.slave, pair.made.stored[40].body_at)
        pair.segment(pair.master, SEGMENT_BYTES).unlink()
        self.upload(pair.master, pair.slave)
        options = Options(split_bytes=32768, chunk_bytes=4096)
        expected = compare(str(pair.master), str(pair.slave), LocalEngine(1), options)
        for slave in (self.uri("slave"), str(pair.slave)):
            found = compare(self.uri("master"), slave, LocalEngine(1), options)
            self.assertEqual((found.verdict, found.coverage), (expected.verdict, expected.coverage))
            bucket = f"s3://{self.bucket}"
            self.assertEqual(
                without_places(as_json(found), bucket, self.folder),
                without_places(as_json(expected), bucket, self.folder),
            )
            self.assertEqual(found.changed_files, [])
        self.assertGreater(len(expected.findings), 2)

    def test_ranges(self) -> None:
        """Small reads and large ones, across blocks and over the end, are the object's bytes."""
        from rmq_audit.worker import objectstore

        data = os.urandom(9 << 20)
        (self.folder / "one").mkdir()
        (self.folder / "one" / "object").write_bytes(data)
        self.upload(self.folder / "one")
        place = child(located(self.uri("one")), "object")
        block = objectstore.CACHED_BLOCK_BYTES
        for offset, size in (
            (0, 10),
            (block - 3, 10),
            (len(data) - 5, 10),
            (len(data) + 5, 10),
            (0, 0),
            (2 * block, 1 << 20),
            (0, len(data)),
            (7, len(data)),
            (len(data), 2 * block),
            (block - 1, block * 2),
        ):
            self.assertEqual(read_at(place, offset, size), data[offset : offset + size], f"{offset} {size}")
        self.patch(objectstore, "BLOCK_BYTES", 1 << 20)
        self.assertEqual(read_at(place, 5, len(data)), data[5:])
        self.assertEqual(read_whole(place), data)
        with open_binary(place) as file:
            file.seek(100)
            self.assertEqual(file.read(50), data[100:150])

    def test_acknowledged_sends_from_a_bucket(self) -> None:
        """Side tables may lie in the object store as well."""
        pair = self.made_pair(messages=60)
        tables = self.folder / "tables"
        tables.mkdir()
        rows = [one.acked_row() for one in pair.made.stored]
        (tables / "sends.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.upload(pair.master, tables)
        options = Options(acked=self.uri("tables/sends.jsonl"))
        result = check(self.uri("master"), LocalEngine(1), options)
        self.assertEqual((result.exit_status, result.coverage.master.acked_sends_checked > 50), (0, True))

    @pytest.mark.campaign
    def test_queues_by_the_hundred_in_few_requests(self) -> None:
        """The listing asks once for each folder directly below the store, not once a queue."""
        from rmq_audit.worker import objectstore

        root = self.folder / "store"
        (root / "commitlog").mkdir(parents=True)
        for number in range(200):
            queue = root / "consumequeue" / f"t{number}" / "0"
            queue.mkdir(parents=True)
            (queue / f"{0:020d}").write_bytes(bytes(20))
        self.upload(root)
        asked = []
        tried = objectstore._tried

        def counted(*arguments: Any) -> Any:
            asked.append(arguments)
            return tried(*arguments)

        self.patch(objectstore, "_tried", counted)
        found = take_inventory("store", self.uri("store"))
        self.assertEqual((len(found.queues), len(asked) < 8), (200, True), len(asked))


class TroubleTests(ObjectStoreCase):
    def test_nothing_there(self) -> None:
        """A missing bucket, folder, or a folder that is no store is the operator's mistake: one line, status 64."""
        self.upload(self.made_pair(messages=20).master)
        local = str(self.folder / "slave")
        for path, words in (("nothing", "nothing is there"), ("master/consumequeue", "has no folder commitlog")):
            status, out = self.run_here("compare", self.uri(path), local, "--engine", "local")
            self.assertEqual((status, len(out.splitlines())), (64, 1), out)
            self.assertIn(f"s3://{self.bucket}/{path}", out)
            self.assertIn(words, out)
            self.assertNotIn(SECRET, out)

    @pytest.mark.campaign
    def test_an_object_that_vanishes_is_named(self) -> None:
        """
        What is gone when it is read is named with bucket and key, and nothing is proven of it: status 3. At a second
        look, which there is unless an end is given, it is missing from the start.
        """
        from rmq_audit.worker import objectstore

        pair = self.made_pair()
        self.upload(pair.master, pair.slave)
        store, listing = self.store(), objectstore.Listing
        key = f"slave/commitlog/{SEGMENT_BYTES:020d}"
        gone: list[str] = []

        class Vanishing(listing):  # type: ignore[misc, valid-type]
            def entries(self, folder: str) -> Any:
                found = super().entries(folder)
                if folder.endswith("slave/commitlog") and not gone:
                    store.delete_file(f"{folder.removeprefix('s3://')}/{SEGMENT_BYTES:020d}")
                    gone.append(folder)
                return found

        self.patch(objectstore, "Listing", Vanishing)
        result = check(self.uri("slave"), LocalEngine(1), Options(ends={STORE: pair.made.end}))
        self.assertEqual(result.exit_status, 3)
        details = [one.detail for one in result.findings if one.invariant == "AU-COVER"]
        self.assertTrue(any(f"s3://{self.bucket}/{key}: cannot be read" in text for text in details), details)
        self.assertFalse(any(SECRET in text for text in details))
        self.upload(pair.master, pair.slave)
        gone.clear()
        again = check(self.uri("slave"), LocalEngine(1), Options())
        self.assertEqual((again.exit_status, again.findings[0].invariant), (2, "CL-GAP"))

    def test_an_object_store_that_does_not_answer(self) -> None:
        """Everything is tried several times; then the store counts as not read (status 3), and why is said."""
        from rmq_audit.worker import objectstore

        self.patch(objectstore, "ATTEMPT_WAITS_S", (0.01, 0.01))
        pair = self.made_pair(messages=40)
        away = self.uri("master", port=free_port())
        status, out = self.run_here("compare", away, pair.slave, "--engine", "local", "--workers", "1")
        self.assertEqual(status, 3, out)
        for word in (f"s3://{self.bucket}/master", "NETWORK_CONNECTION", "(3 attempts)", "INCOMPLETE"):
            self.assertIn(word, out)
        self.assertNotIn(SECRET, out)
        self.assertNotIn("Traceback", out)

    def test_what_passes_is_tried_again_and_what_lasts_is_not(self) -> None:
        """Two failures and an answer are an answer; what is denied is asked for once."""
        from rmq_audit.worker import objectstore

        place = located(self.uri("x"))
        assert isinstance(place, Location)
        asked = []

        def fails(text: str, times: int) -> Any:
            def ask(store: object, key: str) -> str:
                asked.append(key)
                if len(asked) <= times:
                    raise OSError(text)
                return "answer"

            return ask

        shaky = fails("AWS Error SLOW_DOWN during GetObject operation: reduce your request rate", 2)
        self.assertEqual(objectstore._tried(place, shaky, (0, 0)), "answer")
        asked.clear()
        denied = fails(f"AWS Error ACCESS_DENIED during GetObject operation: {SECRET} no. (Request ID: 47)", 9)
        error = self.assertRaises(ReadError, objectstore._tried, place, denied, (0, 0))
        self.assertEqual(len(asked), 1)
        self.assertEqual(str(error), f"s3://{self.bucket}/x: cannot be read: ACCESS_DENIED during GetObject: *** no")

    def test_objects_that_are_written_anew_are_told(self) -> None:
        """An object's identity changes with its bytes' length or time; what is not there has none."""
        (self.folder / "one").mkdir()
        path = self.folder / "one" / "object"
        path.write_bytes(b"first")
        self.upload(self.folder / "one")
        place = child(located(self.uri("one")), "object")
        before = identity(place)
        path.write_bytes(b"second")
        self.upload(self.folder / "one")
        self.assertNotEqual(before, identity(place))
        self.assertIsNotNone(before)
        self.assertIsNone(identity(child(place, "none")))


class PlaceTests(SynchronousTestCase):
    def test_secrets_are_no_part_of_the_text(self) -> None:
        """However a place is printed, user, password and query are not in it; workers get them all the same."""
        place = located(f"s3://me:{SECRET}@bucket/a//b/?region={SECRET}")
        below = child(place, "commitlog", "x")
        assert isinstance(place, Location)
        for text in (
            place,
            f"{below}",
            repr(place),
            repr(place.access),
            str([below]),
            shown(f"s3://me:{SECRET}@b/x?y={SECRET}"),
        ):
            self.assertNotIn(SECRET, text)
        self.assertEqual((str(place), str(below)), ("s3://bucket/a/b", "s3://bucket/a/b/commitlog/x"))
        again = pickle.loads(pickle.dumps(below))
        self.assertEqual((again, again.access), (below, place.access))
        self.assertTrue(same_place(again, below))
        self.assertFalse(same_place(place, located("s3://bucket/a/b?endpoint_override=elsewhere")))

    def test_local_places(self) -> None:
        """Paths become absolute, and file:// is a path."""
        self.assertEqual(located("x/../y"), os.path.abspath("y"))
        self.assertEqual(located("file:///data/a%20b"), "/data/a b")
        self.assertIs(type(located("file:///data")), str)
        self.assertRaises(InputError, located, "file://host/data")
        self.assertRaises(InputError, located, "s3://bucket/a#b")
        self.assertRaises(InputError, take_inventory, "store", "nonsense://bucket/x")

    def test_the_endpoint_of_the_environment_travels(self) -> None:
        """AWS_ENDPOINT_URL where the audit starts holds for its workers too."""
        self.patch(os, "environ", {**os.environ, "AWS_ENDPOINT_URL": "http://here:9000"})
        place = located("s3://bucket/x")
        assert isinstance(place, Location)
        self.assertEqual(place.access.endpoint, "http://here:9000")


@pytest.mark.spark
class SparkTests(EngineCase, ObjectStoreCase):
    @pytest.mark.campaign
    def test_workers_of_spark_read_the_bucket(self) -> None:
        """On Spark the workers themselves read the objects, with the URI's credentials: the same findings again."""
        pair = self.made_pair(5)
        pair.flip(pair.slave, pair.made.stored[90].body_at)
        self.upload(pair.master, pair.slave)
        options = Options(split_bytes=32768, chunk_bytes=4096)
        on_spark = compare(self.uri("master"), self.uri("slave"), self.engine, options)
        locally = compare(self.uri("master"), self.uri("slave"), LocalEngine(1), options)
        self.assertEqual(as_json(on_spark), as_json(locally))
        self.assertEqual((on_spark.exit_status, on_spark.coverage), (2, locally.coverage))
