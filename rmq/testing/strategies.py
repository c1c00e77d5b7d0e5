"""What hypothesis draws for programs that use RocketMQ: messages that every broker takes. Needs hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from rmq.client.types import Message

#: no surrogates, no control characters (1 and 2 separate properties), no blanks (they separate keys)
_SIGNS = st.characters(exclude_categories=("Cs", "Cc", "Z"), exclude_characters="|")
_WORDS = st.text(_SIGNS, min_size=1, max_size=20)
#: names of users' properties; those of RocketMQ begin with a capital or with _
_NAMES = st.from_regex(r"[a-z][a-zA-Z0-9_.-]{0,19}", fullmatch=True)
_VALUES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=50)


def messages(
    topic: str, *, bodies: SearchStrategy[bytes] | None = None, delayed: bool = False
) -> SearchStrategy[Message]:
    """
    Draw messages for a topic: any body (of 1 to 1000 bytes, where ``bodies`` says nothing else), tag, keys, properties.

    ``delayed``: also with a delay level, 1 to 18.
    """
    return st.builds(
        Message,
        topic=st.just(topic),
        body=st.binary(min_size=1, max_size=1000) if bodies is None else bodies,
        tags=st.none() | _WORDS,
        keys=st.lists(_WORDS, max_size=3, unique=True).map(tuple),
        delay_level=st.integers(0, 18) if delayed else st.just(0),
        properties=st.dictionaries(_NAMES, _VALUES, max_size=3),
    )
