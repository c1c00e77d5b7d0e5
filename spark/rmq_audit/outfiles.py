"""Files that an audit writes for others: found out beforehand whether that is possible, written aside and renamed."""

from __future__ import annotations

import os
import sys

from rmq_audit.inventory import InputError


def check_writable(option: str, path: str) -> None:
    """Find out before the long part whether a result can be written; InputError."""
    folder = os.path.dirname(os.path.abspath(path))
    if path == "-" and option == "--json":
        return
    if path == "-" or not os.path.isdir(folder) or not os.access(folder, os.W_OK) or os.path.isdir(path):
        raise InputError(f"{option} {path}: cannot be written")


def check_folder(option: str, path: str) -> None:
    """Make the folder of a table before the long part; InputError when it cannot be written."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise InputError(f"{option} {path}: cannot be written")


def write(path: str, text: str) -> None:
    """Write a result; - is standard output."""
    if path == "-":
        sys.stdout.write(text)
        return
    # written aside and renamed, so that whoever watches the file never reads half of it
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.tmp", path)
