"""Result files: checked before the run, written under another name, then renamed; devices and FIFOs in place."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmq_audit.worker.location import InputError


def check_writable(option: str, path: str) -> None:
    """Find out before the long part whether a result can be written; InputError."""
    if path == "-" and option == "--json":
        return
    special, folder = _is_special(path), os.path.dirname(os.path.realpath(path))
    there = special or (os.path.isdir(folder) and not os.path.isdir(path))
    if path == "-" or not there or not os.access(path if special else folder, os.W_OK):
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
    """
    Write a result; - is standard output. InputError when that fails; no file is left half written.

    A symbolic link stays, and what it leads to is written.
    """
    if path == "-":
        print_text(text)
        return
    # written aside and renamed, so that readers of the file never see half of it
    aside = path if _is_special(path) else f"{os.path.realpath(path)}.tmp"
    try:
        with open(aside, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        if aside != path:
            os.replace(aside, os.path.realpath(path))
    except OSError as error:
        if aside != path:
            with contextlib.suppress(OSError):
                os.remove(aside)
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def _is_special(path: str) -> bool:
    """Whether this is a device, a FIFO or a socket, which a renamed file would replace."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def write_results(
    outputs: Mapping[str, str],
    texts: Mapping[str, Callable[[], str]],
    parquet: str | None,
    run_id: str,
    findings: Sequence[Mapping[str, Any]],
) -> None:
    """Write the files that are asked for, by option, and the findings into the folder of their table; InputError."""
    for option, path in outputs.items():
        write(path, texts[option]())
    if parquet is not None:
        from rmq_audit.report.parquet import write_findings  # pyarrow is needed for this alone

        write_findings(parquet, run_id, findings)


def print_text(text: str) -> None:
    """
    Write to standard output. Nobody need read it to its end: the exit status is the verdict's all the same.

    InputError when it cannot be written for another reason.
    """
    try:
        sys.stdout.write(text.encode("utf-8", "backslashreplace").decode())
        sys.stdout.flush()
    except OSError as error:
        # what is still in the buffer would be written again when the process ends, and fail it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output: cannot be written: {error.strerror}") from error
