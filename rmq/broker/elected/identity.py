"""
The id that the controller gave this broker, in a file of its store.

Java: BrokerMetadata, TempBrokerMetadata
"""

from __future__ import annotations

import attrs

from rmq.broker.config import BrokerSetup
from rmq.runtime.disk.files import Disk
from rmq.runtime.disk.statefile import StateFileError
from rmq.store import layout


@attrs.frozen
class Identity:
    """An id, and the code with which this broker applied for it."""

    broker_id: int
    check_code: str = ""


class IdentityFile:
    """
    ``brokerIdentity`` (``cluster#group#id``), and beside it what this broker applies for at the moment.

    A file of another cluster or group is a StateFileError: the store belongs to another broker.
    """

    def __init__(self, disk: Disk, setup: BrokerSetup) -> None:
        self._disk = disk
        self._owner = (setup.broker.broker_cluster_name, setup.name)
        self._root = root = setup.store.store_path_root_dir
        self._path = layout.join(root, layout.IDENTITY_FILE)
        self._applied_path = layout.join(root, layout.APPLIED_IDENTITY_FILE)

    def load(self) -> Identity | None:
        """Return the id of this broker; None before it has one."""
        parts = self._read(self._path, 3)
        return None if parts is None else Identity(int(parts[2]))

    def load_applied(self) -> Identity | None:
        """Return what this broker applied for when it ended."""
        parts = self._read(self._applied_path, 4)
        return None if parts is None else Identity(int(parts[2]), parts[3])

    def save_applied(self, identity: Identity) -> None:
        """Keep what is applied for: the answer may be lost, and the same code gets the same id again."""
        self._disk.make_dirs(self._root)
        text = "#".join([*self._owner, str(identity.broker_id), identity.check_code])
        self._disk.write_atomic(self._applied_path, text.encode())

    def save(self, identity: Identity) -> None:
        """Keep the id."""
        self._disk.write_atomic(self._path, "#".join([*self._owner, str(identity.broker_id)]).encode())
        self._disk.delete(self._applied_path)

    def forget_applied(self) -> None:
        """Another broker has that id."""
        self._disk.delete(self._applied_path)

    def _read(self, path: str, count: int) -> list[str] | None:
        if not self._disk.exists(path):
            return None
        parts = self._disk.read_whole(path).decode("utf-8", "replace").strip().split("#")
        if len(parts) != count or not (parts[2].isascii() and parts[2].isdigit()):
            raise StateFileError(f"{path} is damaged, expected is cluster#group#id")
        if tuple(parts[:2]) != self._owner:
            raise StateFileError(
                f"{path}: this store belongs to a broker of the group {parts[1]} in the cluster {parts[0]}, not of "
                f"{self._owner[1]} in {self._owner[0]}"
            )
        return parts
