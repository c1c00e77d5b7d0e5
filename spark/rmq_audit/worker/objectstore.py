"""
Reading from object stores through pyarrow: ranges in large blocks, listings in few requests, one way to try again.

The connection's own retries are switched off where that can be said, so that the attempts are those of ATTEMPT_WAITS_S
and no product of two policies. What cannot get better by itself (access denied, no such bucket or key) is not tried
again.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote

from rmq_audit.worker.location import Access, Entry, InputError, Location, ReadError, child

try:
    import pyarrow
    import pyarrow.fs
except ImportError as error:
    raise InputError(f"object stores are read through pyarrow, which is not installed here ({error})") from error

#: bytes of one request; a store answers requests of several MB at the speed of its line
BLOCK_BYTES = 16 << 20

#: requests of one task at a time: a single answer comes at 50 to 100 MB/s from the usual stores
PARALLEL = 4

#: smaller reads are cut from aligned blocks of this size, of which the last few are kept
CACHED_BLOCK_BYTES = 4 << 20
CACHED_BLOCKS = 4
#: a block may be so old; objects of a store that still grows are written again
CACHED_S = 20.0

#: seconds before the second, third and fourth attempt
ATTEMPT_WAITS_S = (0.5, 2.0, 6.0)
CONNECT_TIMEOUT_S = 10
REQUEST_TIMEOUT_S = 120

_LASTING = re.compile(
    r"ACCESS_DENIED|NO_SUCH_(BUCKET|KEY)|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|INVALID_TOKEN"
    r"|InvalidBucketName|HTTP (status|response code) (400|401|403|404)|past end of file"
)
_S3_ERROR = re.compile(r"AWS Error (\w+)(?: \([^)]*\))? during (\w+) operation: (.*)", re.DOTALL)
_REQUEST_ID = re.compile(r" ?\(Request ID:[^)]*\)")

Answer = TypeVar("Answer")


def read(place: Location, offset: int, size: int) -> bytes:
    """Return up to ``size`` bytes from ``offset``, fewer only at the end of the object; ReadError."""
    try:
        if size <= CACHED_BLOCK_BYTES // 4:
            return _read_small(place, offset, size)
        return _tried(place, lambda store, key: _read_blocks(store, key, offset, size))
    except FileNotFoundError as error:
        raise ReadError(place, "cannot be read: no such object") from error


def open_input(place: Location) -> Any:
    """Return the object as a binary file that can be sought; FileNotFoundError when there is none, else ReadError."""
    return _tried(place, lambda store, key: store.open_input_file(key))


def identity(place: Location) -> bytes | None:
    """Return an object's length and time as bytes, None when there is no such object or no time; ReadError."""
    info = _tried(place, lambda store, key: store.get_file_info(key))
    if info.type != pyarrow.fs.FileType.File or not info.mtime_ns:
        return None
    return repr((place.access.endpoint, place.access.query, str(place), info.size, info.mtime_ns)).encode()


class Listing:
    """
    What lies below one place: asked for once for each folder directly below it, at any depth.

    A store of ten thousand queues is listed in some tens of requests instead of ten thousand.
    """

    def __init__(self, root: Location) -> None:
        self._root = root
        self._held: dict[str, dict[str, list[Entry]]] = {}

    def entries(self, folder: str) -> Sequence[Entry] | None:
        if folder == self._root:
            return _below(self._root, recursive=False).get(folder)
        top = f"{self._root}/{folder[len(self._root) + 1 :].partition('/')[0]}"
        if top not in self._held:
            self._held[top] = _below(Location(top, self._root.access), recursive=True)
        return self._held[top].get(folder)


def _below(place: Location, *, recursive: bool) -> dict[str, list[Entry]]:
    """Return the entries of each folder from ``place`` down, by name; empty when there is nothing; ReadError."""

    def ask(store: Any, key: str) -> Any:
        return store.get_file_info(pyarrow.fs.FileSelector(key, allow_not_found=True, recursive=recursive))

    found: dict[str, list[Entry]] = {}
    length = len(_path(place))
    for info in sorted(_tried(place, ask), key=lambda one: one.path):
        path = child(place, info.path[length:].strip("/"))
        is_folder = info.type == pyarrow.fs.FileType.Directory
        one = Entry(
            name=info.base_name,
            path=path,
            is_folder=is_folder,
            size_bytes=info.size or 0,
            modified_ns=info.mtime_ns or 0,
        )
        found.setdefault(path.rpartition("/")[0], []).append(one)
        if is_folder:
            found.setdefault(path, [])
    return found


def _read_blocks(store: Any, key: str, offset: int, size: int) -> bytes:
    with store.open_input_file(key) as file:
        end = min(offset + size, file.size())
        places = [(at, min(BLOCK_BYTES, end - at)) for at in range(offset, end, BLOCK_BYTES)]
        if len(places) < 2:
            return b"".join(bytes(file.read_at(length, at)) for at, length in places)
        with ThreadPoolExecutor(PARALLEL) as pool:
            return b"".join(pool.map(lambda one: bytes(file.read_at(one[1], one[0])), places))


@functools.lru_cache(CACHED_BLOCKS)
def _block(access: Access, place: Location, block: int, period: int) -> bytes:
    """Return a block as it is in a ``period`` of CACHED_S; the last few of this process are kept."""
    at = block * CACHED_BLOCK_BYTES
    return _tried(place, lambda store, key: _read_blocks(store, key, at, CACHED_BLOCK_BYTES))


def _read_small(place: Location, offset: int, size: int) -> bytes:
    end = offset + size
    pieces = []
    while offset < end:
        block, inside = divmod(offset, CACHED_BLOCK_BYTES)
        data = _block(place.access, place, block, int(time.monotonic() // CACHED_S))
        piece = data[inside : inside + end - offset]
        pieces.append(piece)
        offset += len(piece)
        if len(data) < CACHED_BLOCK_BYTES:
            break
    return b"".join(pieces)


def _tried(place: Location, ask: Callable[[Any, str], Answer], waits_s: tuple[float, ...] | None = None) -> Answer:
    """Ask the store, with a new connection each time it fails for a reason that may pass."""
    waits = iter(ATTEMPT_WAITS_S if waits_s is None else waits_s)
    attempts = 0
    while True:
        attempts += 1
        try:
            return ask(_connection(place.access), _path(place))
        except FileNotFoundError:
            raise
        except (OSError, pyarrow.ArrowException) as error:
            wait = None if _LASTING.search(str(error)) else next(waits, None)
            if wait is None:
                tried = f" ({attempts} attempts)" if attempts > 1 else ""
                raise ReadError(place, f"cannot be read: {_error_text(error, place.access)}{tried}") from None
        _connection.cache_clear()
        time.sleep(wait)


def _error_text(error: Exception, access: Access) -> str:
    """Return what an error says in one line, without secrets and request numbers."""
    text = _REQUEST_ID.sub("", str(error))
    found = _S3_ERROR.search(text)
    if found is not None:
        code, operation, what = found.groups()
        text = f"{code} during {operation}: {what}"
    text = " ".join(text.split())
    for secret in filter(None, unquote(access.userinfo).split(":")):
        text = text.replace(secret, "***")
    return text[:300].rstrip(". ")


def _path(place: Location) -> str:
    """Return the path as pyarrow has it: with the bucket in front where there are buckets."""
    if place.access.scheme in ("hdfs", "viewfs", "mock"):
        return f"/{place.key}"
    return f"{place.access.host}/{place.key}".rstrip("/")


@functools.cache
def _connection(access: Access) -> Any:
    """Return the file system; one a process and store, until it fails."""
    if access.scheme == "s3":
        return _s3(access)
    user = f"{access.userinfo}@" if access.userinfo else ""
    query = f"?{access.query}" if access.query else ""
    return pyarrow.fs.FileSystem.from_uri(f"{access.scheme}://{user}{access.host}/x{query}")[0]


def check_access(access: Access) -> None:
    """Raise InputError when a URI's scheme or its parameters are not known; nothing is asked over the network."""
    place = f"{access.scheme}://{access.host}"
    try:
        if access.scheme == "s3":
            for name in _parameters(access):
                if name not in ("region", "scheme", "endpoint_override"):
                    raise InputError(f"{place}: parameter {name} is not known; region, scheme, endpoint_override are")
        else:
            _connection(access)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{place}: cannot be used: {_error_text(error, access)}") from None


def _parameters(access: Access) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(access.query, keep_blank_values=True).items()}


def _s3(access: Access) -> Any:
    given = _parameters(access)
    scheme, _, endpoint = access.endpoint.rpartition("://")
    endpoint = given.get("endpoint_override") or endpoint.rstrip("/")
    region = given.get("region")
    if region is None and not endpoint:
        region = pyarrow.fs.resolve_s3_region(access.host)
    user, _, password = access.userinfo.partition(":")
    return pyarrow.fs.S3FileSystem(
        access_key=unquote(user) or None,
        secret_key=unquote(password) or None,
        region=region,
        scheme=given.get("scheme") or scheme or "https",
        endpoint_override=endpoint or None,
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        retry_strategy=pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )
