"""
What an audit remembers for the next one: answers of workers, each under the files and the question it came from.

A task is a pure function of what it says and of the files that it reads. So an answer may be given again as long as
the task, the audit's own code, and the identity of every file in it are the same. Nothing of a state is trusted:
each entry has a checksum, its members are decoded with their types, and what does not fit is named and ignored.

The file begins with a header line and holds entries, one after the other, appended while the audit runs:

    0 size of the payload (4) | 4 checksum: xxh3_64 of the payload (8) | 12 payload: msgpack [key, work, answer]
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import IO, Any

import attrs
import msgspec
import xxhash

from rmq_audit.engine.engines import Done, Engine, Progress, grouped
from rmq_audit.worker import files
from rmq_audit.worker.location import InputError, Location
from rmq_audit.worker.scan import Scan
from rmq_audit.worker.work import Work

ANSWERS_FILE, LOCK_FILE, REPORT_FILE = "answers", "lock", "report.json"

#: a file must have been left alone for so long before it is remembered: what a broker writes through a mapping changes
#: the time of a file only once between two write-backs, which the kernel does within 35 s
UNCHANGED_NS = 120 * 10**9

#: payloads beyond this are taken for damage
MAX_ENTRY_BYTES = 256 << 20

#: tasks are handed to the engine in batches of so many bytes, and remembered after each
BATCH_BYTES = 8 << 30

_HEADER_MARK = b"rmq-audit state "
_HEADER = _HEADER_MARK + b"1 %s\n"
_ENTRY = struct.Struct(">IQ")


@attrs.define(kw_only=True)
class StateUse:
    """What a state was good for: tasks and bytes that were not read again, and what was wrong with it."""

    path: str
    tasks_reused: int = 0
    tasks_done: int = 0
    bytes_reused: int = 0
    ignored: list[str] = attrs.field(factory=list)


@attrs.define(eq=False)
class State:
    """
    The answers in a folder, held by one audit at a time; :meth:`open` and :meth:`close` go together.

    ``now_ns`` is the time that files are compared with.
    """

    folder: str
    _now_ns: Callable[[], int] = attrs.field(kw_only=True, default=time.time_ns)
    use: StateUse = attrs.field(init=False)
    _known: dict[bytes, tuple[str, bytes]] = attrs.field(init=False, factory=dict)
    _used: set[bytes] = attrs.field(init=False, factory=set)
    _file: IO[bytes] | None = attrs.field(init=False, default=None)
    _lock: IO[bytes] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.use = StateUse(path=self.folder)

    def open(self) -> State:
        """Take the folder, and read what is there; InputError when it cannot be used or another audit has it."""
        try:
            os.makedirs(self.folder, exist_ok=True)
            self._lock = open(os.path.join(self.folder, LOCK_FILE), "ab")  # noqa: SIM115 (held until close)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            whole = self._read()
            self._file = open(self._path, "ab")  # noqa: SIM115 (held until close)
            if whole == 0:
                self._file.write(header())
        except BlockingIOError as error:
            self._let_go()
            raise InputError(f"--state {self.folder}: another audit is using it") from error
        except InputError:
            self._let_go()
            raise
        except OSError as error:
            self._let_go()
            raise InputError(f"--state {self.folder}: cannot be used: {error.strerror}") from error
        return self

    def close(self, *, finished: bool) -> None:
        """
        Let go of the folder; after a ``finished`` audit only the answers that it used or made are kept.

        An audit that was interrupted keeps everything, so that the next one goes on from there.
        """
        if self._file is not None:
            try:
                self._file.close()
                if finished:
                    self._rewrite()
            except OSError as error:
                self._give_up(error)
            self._file = None
        self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def answer_to(self, work: Work[Any, Any], key: bytes) -> Any:
        """Return the remembered answer of a kind of work, or None."""
        name, payload = self._known.get(key, ("", b""))
        if name != work.name:
            return None
        answer = _decoded(work, payload)
        if answer is not None:
            self._used.add(key)
        return answer

    def remember(self, work: str, key: bytes, answer: Any) -> None:
        """Append an answer; it is there for the next audit whatever becomes of this one."""
        if self._file is None:
            assert self._lock is not None, "the state is not open"
            return
        encoded = msgspec.msgpack.encode(answer)
        self._known[key] = work, encoded
        self._used.add(key)
        try:
            self._file.write(_entry(key, work, encoded))
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Hand what was remembered to the operating system."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Remember nothing more: the verdict does not need it, and what is whole in the file stays good."""
        print(f"rmq-audit: state not saved: {self._path}: {error.strerror}", file=sys.stderr)
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def is_unchanged(self, modified_ns: int) -> bool:
        """Whether a file with this time may be taken for what it was when it was read."""
        return modified_ns <= self._now_ns() - UNCHANGED_NS

    @property
    def _path(self) -> str:
        return os.path.join(self.folder, ANSWERS_FILE)

    def _read(self) -> int:
        """Take in the entries; return how many bytes of the file are whole, 0 when it has to be started again."""
        try:
            with open(self._path, "rb") as file:
                first = file.readline(256)
                if not _HEADER_MARK.startswith(first[: len(_HEADER_MARK)]):
                    raise InputError(
                        f"--state {self.folder}: {self._path} is not a state of rmq-audit, and is left unchanged"
                    )
                if not first.endswith(b"\n"):
                    whole = 0
                elif first != header():
                    self.use.ignored.append(f"{self._path}: was written by another version of the audit")
                    whole = 0
                else:
                    whole = len(first)
                    for key, work, payload, size in _entries(file):
                        self._known[key] = work, payload
                        whole += size
                    rest = os.fstat(file.fileno()).st_size - whole
                    if rest:
                        self.use.ignored.append(f"{self._path}: {rest} bytes from byte {whole} on are damaged")
        except FileNotFoundError:
            return 0
        os.truncate(self._path, whole)
        return whole

    def _rewrite(self) -> None:
        try:
            with open(f"{self._path}.tmp", "wb") as file:
                file.write(header())
                for key in self._used:
                    work, encoded = self._known[key]
                    file.write(_entry(key, work, encoded))
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{self._path}.tmp", self._path)
        except OSError:
            with contextlib.suppress(OSError):
                os.remove(f"{self._path}.tmp")
            raise


def header() -> bytes:
    """Return the first line of a state of this very code: answers of another version are not its own."""
    return _HEADER % code_version().encode()


def code_version() -> str:
    """Return a digest over the sources that workers run: the audit's, and the broker's modules that they use."""
    digest = xxhash.xxh3_128(xxhash.VERSION.encode())
    for package, only in (("rmq_audit.worker", None), ("rmq.wire", "record.py"), ("rmq.store", "layout.py")):
        for file in sorted(resources.files(package).iterdir(), key=lambda one: one.name):
            if file.name.endswith((".py", ".pyx")) and only in (None, file.name):
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _parts(value: Any, identity: Callable[[str], bytes | None]) -> Iterator[bytes | None]:
    if attrs.has(type(value)):
        yield type(value).__name__.encode()
        for field in attrs.fields(type(value)):
            inner = getattr(value, field.name)
            yield from (identity(inner),) if field.name == "path" else _parts(inner, identity)
    elif isinstance(value, list | tuple):
        yield b"%d items" % len(value)
        for one in value:
            yield from _parts(one, identity)
    else:
        yield repr(value).encode()


def _entry(key: bytes, work: str, encoded: bytes) -> bytes:
    payload = msgspec.msgpack.encode((key, work, encoded))
    return _ENTRY.pack(len(payload), xxhash.xxh3_64_intdigest(payload)) + payload


def _entries(file: IO[bytes]) -> Iterator[tuple[bytes, str, bytes, int]]:
    """Yield key, work, answer and size of every entry up to the first that is damaged."""
    decoder = msgspec.msgpack.Decoder(tuple[bytes, str, bytes])
    while True:
        head = file.read(_ENTRY.size)
        if len(head) < _ENTRY.size:
            return
        size, checksum = _ENTRY.unpack(head)
        payload = file.read(size) if size <= MAX_ENTRY_BYTES else b""
        if len(payload) < size or not payload or xxhash.xxh3_64_intdigest(payload) != checksum:
            return
        try:
            key, work, encoded = decoder.decode(payload)
        except msgspec.DecodeError:
            return
        yield key, work, encoded, len(head) + size


def _decoded(work: Work[Any, Any], encoded: bytes) -> Any:
    if work.remembered is None:
        return None
    try:
        return msgspec.msgpack.decode(encoded, type=work.remembered)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


class RememberingEngine:
    """
    An engine that gives answers of a state again where task and files are the same, and remembers the others.

    It closes the engine that it wraps, and leaves the state open.
    """

    def __init__(self, engine: Engine, state: State) -> None:
        self._engine = engine
        self._state = state
        self.name = engine.name
        self.progress: Progress | None = None

    def run(self, work: Work[Any, Any], tasks: Sequence[Any]) -> list[Any]:
        state, before = self._state, identities(self._state)
        keys = [key_of(work, task, before) for task in tasks]
        answers = [
            None if key is None else _bound(state.answer_to(work, key), task)
            for key, task in zip(keys, tasks, strict=True)
        ]
        open_tasks = [index for index, answer in enumerate(answers) if answer is None]
        reused = sum(work.cost(task) for task, answer in zip(tasks, answers, strict=True) if answer is not None)
        state.use.tasks_reused += len(tasks) - len(open_tasks)
        state.use.tasks_done += len(open_tasks)
        state.use.bytes_reused += reused
        done = Done(work.name, sum(map(work.cost, tasks)), self.progress)
        reached = reused
        for group in grouped([work.cost(tasks[index]) for index in open_tasks], BATCH_BYTES):
            batch = [open_tasks[number] for number in group]
            self._engine.progress = _relay(done, reached)
            found = self._engine.run(work, [tasks[index] for index in batch])
            reached += sum(work.cost(tasks[index]) for index in batch)
            after = identities(state)
            for index, answer in zip(batch, found, strict=True):
                answers[index] = answer
                key = keys[index]
                # a file that changed meanwhile was perhaps read half before and half after
                if key is not None and answer.error is None and key == key_of(work, tasks[index], after):
                    state.remember(work.name, key, _unbound(answer))
            state.flush()
        done.finish()
        return answers

    def close(self) -> None:
        self._engine.close()


def identities(state: State) -> Callable[[str], bytes | None]:
    """Return what tells identities of files, each asked for once; None where one was not left alone for long enough."""

    @functools.cache
    def identity(path: str) -> bytes | None:
        unchanged = isinstance(path, Location) or state.is_unchanged(_modified_ns(path))
        return files.identity(path) if unchanged else None

    return identity


def key_of(work: Work[Any, Any], task: Any, identity: Callable[[str], bytes | None]) -> bytes | None:
    """
    Return what stands for a task and the files in it; None when one of them has no identity, and for kinds of work that
    leave something behind.

    Paths do not count, only what lies there: a hard-linked dump of the same segment has the same key.
    """
    if work.remembered is None or getattr(task, "index", None) is not None:
        return None
    digest = xxhash.xxh3_128(work.name.encode())
    for part in _parts(task, identity):
        if part is None:
            return None
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest()


def _modified_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 1 << 62


def _relay(done: Done, before: int) -> Progress:
    def progress(name: str, reached: int, total: int) -> None:
        done.reach(before + reached)

    return progress


def _unbound(answer: Any) -> Any:
    """Return an answer without the task that it repeats: that names paths, and is at hand when it is used again."""
    if isinstance(answer, Scan):
        return attrs.evolve(answer, split=attrs.evolve(answer.split, file=attrs.evolve(answer.split.file, path="")))
    return answer


def _bound(answer: Any, task: Any) -> Any:
    return attrs.evolve(answer, split=task) if isinstance(answer, Scan) else answer
