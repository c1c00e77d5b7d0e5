"""Every declared contract reads what real Apache processes sent for its code, and writes the same content."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

import rmq.wire.api
from rmq.wire import fastjson
from rmq.wire.command import decode_command
from rmq.wire.contract import Contract, declared
from rmq.wire.extfields import BadField, encode_ext
from rmq.wire.frames import FrameDecoder
from tests.wire.golden import GoldenFrame, all_frames

#: probes that were meant to be refused
REFUSED_NOTES = {"register without brokerName", "code 901", "code 904"}


def contracts() -> dict[int, Contract[Any, Any, Any, Any]]:
    """Return all contracts of the product."""
    for module in pkgutil.iter_modules(rmq.wire.api.__path__):
        importlib.import_module(f"rmq.wire.api.{module.name}")
    return declared()


def differences(ours: Any, theirs: Any, where: str = "$") -> list[str]:
    """Return where two bodies differ in members that both have; arrays of scalars count as sets."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            line
            for key in sorted(ours.keys() & theirs.keys(), key=str)
            for line in differences(ours[key], theirs[key], f"{where}.{key}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        if not any(isinstance(item, dict | list) for item in ours):
            ours, theirs = sorted(ours, key=str), sorted(theirs, key=str)
        return [
            line
            for n, (a, b) in enumerate(zip(ours, theirs, strict=True))
            for line in differences(a, b, f"{where}[{n}]")
        ]
    return [] if ours == theirs else [f"{where}: {ours!r} instead of {theirs!r}"]


class GoldenContractTests(SynchronousTestCase):
    def check_header(self, frame: GoldenFrame, kind: Any) -> None:
        command = decode_command(FrameDecoder().receive(frame.data)[0])
        try:
            header = command.decode_header(kind)
        except BadField as error:
            raise AssertionError(f"{frame.name} ({frame.note}): {error}") from error
        for key, value in encode_ext(header).items():
            if key in command.ext_fields:
                self.assertEqual(value, command.ext_fields[key], (frame.name, key))

    def test_headers(self) -> None:
        """Each recorded header is read by its class, and written with the same values."""
        table, count = contracts(), 0
        for frame in all_frames():
            contract = table.get(frame.answers if frame.answers is not None else frame.code)
            if contract is None or frame.note in REFUSED_NOTES:
                continue
            if frame.answers is None:
                kind = contract.header
            else:
                kind = contract.reply if frame.code in contract.answers else None
            if kind is not None:
                self.check_header(frame, kind)
                count += 1
        self.assertGreater(count, 200)

    def test_bodies(self) -> None:
        """Each recorded JSON body is read by its class, and written with the same content."""
        table, count = contracts(), 0
        for frame in all_frames():
            contract = table.get(frame.answers if frame.answers is not None else frame.code)
            if contract is None or (frame.answers is not None and frame.code != 0):
                continue
            kind = contract.body if frame.answers is None else contract.reply_body
            body = decode_command(FrameDecoder().receive(frame.data)[0]).body
            if kind is None or kind is bytes or body is None:
                continue
            written = fastjson.encode(fastjson.decode(body, kind))
            ours, theirs = fastjson.parse(written.decode()), fastjson.parse(body.decode())
            self.assertEqual(differences(ours, theirs), [], frame.name)
            self.assertNotEqual(ours.keys() & theirs.keys(), set(), frame.name)
            count += 1
        self.assertGreater(count, 40)

    def test_the_comparison_sees_differences(self) -> None:
        """A changed value at any depth, and a changed length, are found."""
        body = {"a": [{"b": {"c": 1}}], "d": [2, 1]}
        self.assertEqual(differences(body, {"a": [{"b": {"c": 1, "x": 0}}], "d": [1, 2], "e": 3}), [])
        self.assertEqual(len(differences(body, {"a": [{"b": {"c": 2}}]})), 1)
        self.assertEqual(len(differences(body, {"a": []})), 1)
        self.assertEqual(len(differences(body, {"d": [1, 3]})), 1)
        self.assertEqual(len(differences(body, {"d": "x"})), 1)
