"""
A generator of damage that knows nothing of what the audit checks: bytes and files are changed, whatever they mean.

All it knows of the formats is where numbers usually begin, and how a record's body CRC is mended so that the record
stays well-formed. The same seed does the same damage to the same pair.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

SIDES = ("master", "slave")

_RECORD_MAGICS = (0xDAA320A7, 0xDAA320AB)

Change = Callable[[bytes, random.Random], bytes]
CHANGES: dict[str, Change] = {}


def _change(function: Change) -> Change:
    CHANGES[function.__name__.strip("_")] = function
    return function


def _place(data: bytes, chance: random.Random) -> int:
    """Return a position: mostly where something is written, and often where a number, a unit or an entry begins."""
    written = len(data.rstrip(b"\0"))
    end = written if written and chance.random() < 0.85 else len(data)
    step = chance.choice((1, 1, 4, 8, 20))
    return chance.randrange(max(1, end)) // step * step


def _length(chance: random.Random) -> int:
    return chance.choice((1, 2, 4, 8, 20, 20, 40, chance.randrange(1, 200), chance.randrange(1, 5000)))


def _put(data: bytes, at: int, piece: bytes) -> bytes:
    return (data[:at] + piece + data[at + len(piece) :])[: len(data)]


@_change
def bit(data: bytes, chance: random.Random) -> bytes:
    at = _place(data, chance)
    return _put(data, at, bytes((data[at] ^ 1 << chance.randrange(8),)))


@_change
def byte(data: bytes, chance: random.Random) -> bytes:
    return _put(data, _place(data, chance), chance.randbytes(1))


@_change
def digit(data: bytes, chance: random.Random) -> bytes:
    places = [at for at, value in enumerate(data) if 48 <= value <= 57]
    return _put(data, chance.choice(places), b"%d" % chance.randrange(10)) if places else byte(data, chance)


@_change
def noise(data: bytes, chance: random.Random) -> bytes:
    return _put(data, _place(data, chance), chance.randbytes(_length(chance)))


@_change
def zeros(data: bytes, chance: random.Random) -> bytes:
    return _put(data, _place(data, chance), bytes(_length(chance)))


@_change
def ones(data: bytes, chance: random.Random) -> bytes:
    return _put(data, _place(data, chance), b"\xff" * _length(chance))


@_change
def swapped(data: bytes, chance: random.Random) -> bytes:
    one, other, size = _place(data, chance), _place(data, chance), _length(chance)
    first, second = data[one : one + size], data[other : other + size]
    return _put(_put(data, one, second), other, first)


@_change
def copied(data: bytes, chance: random.Random) -> bytes:
    at = _place(data, chance)
    piece = data[at : at + _length(chance)]
    return _put(data, _place(data, chance), piece)


@_change
def repeated(data: bytes, chance: random.Random) -> bytes:
    """A range follows itself, once or some times."""
    at, size = _place(data, chance), _length(chance)
    return _put(data, at + size, data[at : at + size] * chance.choice((1, 1, 2, 5)))


@_change
def shifted(data: bytes, chance: random.Random) -> bytes:
    """Bytes are left out or put in, what follows moves, and the file keeps its length."""
    at, size = _place(data, chance), _length(chance)
    if chance.random() < 0.5:
        return (data[:at] + data[at + size :]).ljust(len(data), b"\0")
    return (data[:at] + bytes(size) + data[at:])[: len(data)]


@_change
def truncated(data: bytes, chance: random.Random) -> bytes:
    return data[: _place(data, chance)]


@_change
def emptied(data: bytes, chance: random.Random) -> bytes:
    return b"" if chance.random() < 0.5 else bytes(len(data))


@_change
def extended(data: bytes, chance: random.Random) -> bytes:
    size = _length(chance)
    return data + (bytes(size) if chance.random() < 0.5 else chance.randbytes(size))


class Pair:
    """A working copy of a pair; ``restore`` undoes all damage. Paths are relative: ``master/commitlog/...``."""

    def __init__(self, origin: Path, folder: Path) -> None:
        self.folder = folder
        self.held: dict[str, bytes] = {}
        for path in sorted(origin.rglob("*")):
            if path.is_file():
                self.held[path.relative_to(origin).as_posix()] = path.read_bytes()
        self.files: dict[str, bytes] = {}
        for name in self.held:
            self.write(name, self.held[name])

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def names(self) -> list[str]:
        return sorted(self.files)

    def write(self, name: str, data: bytes | None) -> None:
        """Write a file, or remove it (None)."""
        path = self.folder / name
        if data is None:
            if self.files.pop(name, None) is not None:
                path.unlink()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.files[name] = data

    def changed(self) -> list[str]:
        return [name for name in sorted(self.files.keys() | self.held) if self.files.get(name) != self.held.get(name)]

    def restore(self) -> None:
        for name in self.changed():
            self.write(name, self.held.get(name))


def _folder_of(name: str) -> str:
    """Return the kind of a file: the folder below the side's root that it lies in."""
    parts = name.split("/")
    return parts[1] if len(parts) > 2 else ""


def _pick(pair: Pair, side: str, chance: random.Random) -> str:
    """Return some file of a side; kinds of files are equally likely, whatever their number."""
    names = [name for name in pair.names() if name.startswith(side + "/")]
    folder = chance.choice(sorted({_folder_of(name) for name in names}))
    return chance.choice([name for name in names if _folder_of(name) == folder])


def _twin(pair: Pair, name: str) -> str | None:
    """Return the same file of the other side; index files have other names there, so their number counts."""
    side, _, rest = name.partition("/")
    other = SIDES[1 - SIDES.index(side)]
    if f"{other}/{rest}" in pair.names():
        return f"{other}/{rest}"
    if _folder_of(name) != "index":
        return None
    indexes = [[one for one in pair.names() if one.startswith(f"{each}/index/")] for each in (side, other)]
    number = indexes[0].index(name)
    return indexes[1][number] if number < len(indexes[1]) else None


def _strange_name(name: str, chance: random.Random) -> str:
    """Return a name for a file that may mean something to a broker, or may not."""
    folder, _, base = name.rpartition("/")
    numbered = base.isdigit()
    choices = [f"{base}.bak", f"{base}~", "core.4711", f"0{base}", base[:-1] or "x"]
    if numbered:
        choices += [f"{int(base) + step:0{len(base)}d}" for step in (1, 20, 2000, 65536)]
    elif base.endswith(".json"):
        choices.append(f"{base}.tmp")
    return f"{folder}/{chance.choice(choices)}"


def _do(pair: Pair, name: str, what: str, strangers: Sequence[Pair], chance: random.Random) -> str:
    """Do one damage to one file and return it in words."""
    data = pair.read(name)
    assert data is not None
    if what == "remove":
        pair.write(name, None)
    elif what == "rename":
        new = _strange_name(name, chance)
        pair.write(name, None)
        pair.write(new, data)
        return f"{name} renamed to {new}"
    elif what == "add":
        new = _strange_name(name, chance)
        pair.write(new, data if chance.random() < 0.5 else chance.randbytes(_length(chance)))
        return f"{new} added"
    elif what in ("copy over", "swap"):
        folder = _folder_of(name)
        alike = [one for one in pair.names() if _folder_of(one) == folder and one != name]
        if not alike:
            return f"{name}: no other file is there"
        other = chance.choice(alike)
        if what == "swap":
            pair.write(name, pair.read(other))
        pair.write(other, data)
        return f"{what}: {name}, {other}"
    elif what == "another store's":
        rest = name.partition("/")[2]
        held = [one.held[f"{side}/{rest}"] for one in strangers for side in SIDES if f"{side}/{rest}" in one.held]
        held = [one for one in held if one != data] or [data]
        pair.write(name, chance.choice(held))
    else:
        pair.write(name, CHANGES[what](data, chance) if data else chance.randbytes(_length(chance)))
    return f"{what}: {name}"


FILE_DAMAGES = ("remove", "rename", "add", "copy over", "swap", "another store's")


def damage(pair: Pair, strangers: Sequence[Pair], chance: random.Random) -> list[str]:
    """Damage the pair in one or some ways, on one side or on both alike, and return what was done."""
    said = []
    for _ in range(chance.choice((1, 1, 1, 1, 2, 3))):
        what = chance.choice(list(CHANGES)) if chance.random() < 0.75 else chance.choice(FILE_DAMAGES)
        name = _pick(pair, chance.choice(SIDES), chance)
        names = [name]
        if chance.random() < 0.35:
            twin = _twin(pair, name)
            names += [twin] if twin is not None else []
        seed = chance.random()
        said += [_do(pair, one, what, strangers, random.Random(seed)) for one in names if pair.read(one) is not None]
    if chance.random() < 0.5:
        mended = [name for name in pair.changed() if _mend(pair, name)]
        said += [f"body CRCs mended: {name}" for name in mended]
    return said


def _mend(pair: Pair, name: str) -> bool:
    """Give records that were changed in place the CRC of their body, as the broker computes it."""
    before, after = pair.held.get(name), pair.read(name)
    if _folder_of(name) != "commitlog" or before is None or after is None or len(before) != len(after):
        return False
    fresh = bytearray(after)
    at = 0
    while at + 91 < len(before):
        size, magic = struct.unpack_from(">II", before, at)
        if magic not in _RECORD_MAGICS or not 91 <= size <= len(before) - at:
            break
        if before[at : at + size] != after[at : at + size]:
            (sys_flag,) = struct.unpack_from(">i", after, at + 36)
            body_at = at + 88 + 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
            (length,) = struct.unpack_from(">i", after, body_at - 4)
            if 0 < length <= at + size - body_at:
                crc = zlib.crc32(after[body_at : body_at + length]) & 0x7FFFFFFF
                struct.pack_into(">I", fresh, at + 8, crc)
        at += size
    pair.write(name, bytes(fresh))
    return bytes(fresh) != after
