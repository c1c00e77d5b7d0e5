"""How clients that are not Java's write the headers of their requests."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from random import Random

import msgspec

from rmq.wire.api.sending import SEND_V2_LETTERS, SendMessageHeader
from rmq.wire.command import RemotingCommand, encode_command
from rmq.wire.frames import PREFIX

#: letter of a field of SEND_MESSAGE_V2 -> its name in SEND_MESSAGE, which Go's client sends
LONG_NAMES = {SEND_V2_LETTERS[field.name]: field.encode_name for field in msgspec.structs.fields(SendMessageHeader)}

_BARE = re.compile(r"-?(0|[1-9][0-9]{0,17})|true|false")


def as_others_write(rng: Random, command: RemotingCommand) -> bytes:
    """
    Return the frame of a request as one of the clients writes it.

    Go's draw the order of the extFields, Node.js's and C++'s write numbers without quotes, C++'s sign whatever they
    send, and Rust's write a remark that is null.
    """
    frame = encode_command(command)
    if command.serialize_type or rng.random() < 0.4:
        return frame
    total, size = PREFIX.unpack_from(frame)
    header = json.loads(frame[PREFIX.size : PREFIX.size + size])
    fields = list(header.get("extFields", {}).items())
    if rng.random() < 0.5:
        rng.shuffle(fields)
    if rng.random() < 0.3:
        fields = [(name, json.loads(text) if _BARE.fullmatch(text) else text) for name, text in fields]
    if rng.random() < 0.3:
        fields.append(("Signature", b64encode(rng.randbytes(20)).decode()))
    if "extFields" in header:
        header["extFields"] = dict(fields)
    if rng.random() < 0.3:
        header = {"remark": None} | header if rng.random() < 0.5 else header | {"remark": None}
    separators = rng.choice(((",", ":"), (",", ":"), (", ", ": ")))
    new = json.dumps(header, separators=separators, ensure_ascii=rng.random() < 0.8).encode("utf-8", "surrogatepass")
    return PREFIX.pack(total - size + len(new), len(new)) + new + frame[PREFIX.size + size :]


def pieces(rng: Random, stream: bytes) -> list[bytes]:
    """Return ``stream`` whole, or cut at one place or three."""
    cuts = sorted(rng.randrange(len(stream)) for _ in range(rng.choice((0, 0, 1, 3))))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True) if start < end]
