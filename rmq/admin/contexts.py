"""
Contexts: clusters with a name, so that a command line needs no addresses.

One JSON file each in ``$XDG_CONFIG_HOME/rmq/contexts`` (``~/.config`` without that variable), and the name of the one
in use in ``rmq/context`` beside it. A context names files with secrets and never holds one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ContextError(Exception):
    """A context is missing, or its file cannot be used; the text names it."""


class BrokenContext(ContextError):
    """The file of a context is there, but cannot be used."""

    def __init__(self, name: str, path: Path, error: Exception) -> None:
        mend = f"correct it, or remove it with: rmq-admin context remove {name}"
        super().__init__(f"context {name}: {path}: {error}; {mend}")
        self.name = name


class Context(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a context says; None leaves the usual default. The names of files are absolute."""

    namesrv: str
    cluster: str | None = None
    tls_config: str | None = None
    acl_tools: str | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0, lt=86_400)] | None = None
    #: refuses every command that changes something
    read_only: bool = False


class Contexts:
    """The contexts of one user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "contexts"
        self._in_use = folder / "context"

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Contexts:
        """Return those of the user whose environment it is."""
        home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
        return cls(Path(home) / "rmq")

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.json"))

    def load(self, name: str) -> Context:
        """Raises ContextError."""
        path = self._path(name)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Context)
        except FileNotFoundError:
            raise ContextError(f"no context {name}; contexts: {', '.join(self.names()) or 'none'}") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise BrokenContext(name, path, error) from None

    def save(self, name: str, context: Context) -> None:
        self._write(self._path(name), msgspec.json.format(msgspec.json.encode(context), indent=2) + b"\n")

    def remove(self, name: str) -> None:
        """The context in use is none afterwards if it was this one."""
        path = self._path(name)
        if not path.exists():
            self.load(name)  # which says so
        path.unlink()
        if self.in_use() == name:
            self._in_use.unlink()

    def in_use(self) -> str | None:
        """Return the name that `context use` chose; None for none."""
        try:
            return self._in_use.read_text().strip() or None
        except FileNotFoundError:
            return None
        except OSError as error:
            # Going on without it could reach another cluster, or write where the context only reads.
            raise ContextError(f"{self._in_use}: {error.strerror}; is HOME, or XDG_CONFIG_HOME, this user's?") from None

    def use(self, name: str) -> None:
        self.load(name)
        self._write(self._in_use, f"{name}\n".encode())

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise ContextError(f"context {name!r}: a name has letters, digits and . _ - only")
        return self._folder / f"{name}.json"

    def _write(self, path: Path, data: bytes) -> None:
        new = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.write_bytes(data)
            new.replace(path)
        except OSError as error:
            raise ContextError(f"{path}: {error}") from None
