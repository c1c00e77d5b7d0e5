"""
Where a store lies: a path, or a place in an object store.

A place in an object store is text like any path, so that tasks, findings and reports can hold it; what it takes to
get there (endpoint, region, credentials of the URI) is carried along and is never part of the text.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

import attrs

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class InputError(Exception):
    """What the operator asked for cannot be audited; the text is one line, names the path, and has no credentials."""


class ReadError(Exception):
    """A file or folder could not be read; ``path`` and the text are for the operator."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path
        self.text = text


@attrs.frozen(kw_only=True)
class Entry:
    """One name in a folder; ``error`` says why nothing else is known of it."""

    name: str
    path: str
    is_folder: bool = False
    size_bytes: int = 0
    modified_ns: int = 0
    error: str | None = None


@attrs.frozen(kw_only=True)
class Access:
    """
    How to reach an object store: all of a URI but the path.

    ``endpoint`` is the value of AWS_ENDPOINT_URL on the machine where the audit was started, so that workers go to
    the same place.
    """

    scheme: str
    host: str
    userinfo: str = attrs.field(default="", repr=False)
    query: str = attrs.field(default="", repr=False)
    endpoint: str = ""


class Location(str):
    """A place in an object store; as text it is the URI without user, password and query."""

    access: Access

    def __new__(cls, text: str, access: Access | None = None) -> Location:
        self = super().__new__(cls, text)
        if access is not None:  # else it is being unpickled, and gets its attributes afterwards
            self.access = access
        return self

    @property
    def key(self) -> str:
        """What follows the host, without a slash at either end."""
        return str(self).split("://", 1)[1].partition("/")[2].strip("/")


def located(text: str) -> str:
    """
    Return an absolute local path, or a :class:`Location` for a URI; a ``file://`` URI is a local path.

    A Location is returned as it is: its text lacks user, password and query. InputError when a URI lacks its parts.
    """
    if isinstance(text, Location):
        return text
    if _URI.match(text) is None:
        return os.path.abspath(text)
    try:
        parts = urlsplit(text)
        host = parts.netloc.rpartition("@")[2]
    except ValueError as error:
        raise InputError(f"{shown(text)}: is not a URI: {error}") from None
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InputError(f"{shown(text)}: names the machine {host}; expected is file:///path")
        return os.path.abspath(unquote(parts.path))
    if parts.fragment:
        raise InputError(f"{shown(text)}: has a part after #, which is not supported")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    access = Access(
        scheme=parts.scheme,
        host=host,
        userinfo=parts.netloc.rpartition("@")[0],
        query=parts.query,
        endpoint=endpoint if parts.scheme == "s3" else "",
    )
    path = re.sub("/+", "/", unquote(parts.path)).strip("/")
    return Location(f"{parts.scheme}://{host}/{path}".rstrip("/") if path else f"{parts.scheme}://{host}", access)


def shown(text: str) -> str:
    """Return a path or URI as it may be printed: without user, password and query."""
    if _URI.match(text) is None:
        return text
    scheme, rest = text.split("://", 1)
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = place.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def child(parent: str, *names: str) -> str:
    """Return the place below ``parent``, of the same kind as that."""
    text = "/".join((parent, *names))
    return Location(text, parent.access) if isinstance(parent, Location) else text


def same_place(one: str, other: str) -> bool:
    """Tell whether two places are the same: equal keys of two object stores are not."""
    return one == other and getattr(one, "access", None) == getattr(other, "access", None)
