"""What a caller can catch: every error of the client, and the failures of single requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

#: what to try when the peer ends a connection, before it has sent anything, that does not use TLS, or that does
CLOSED_PLAIN = (
    "closed by the peer before it sent a byte: does it take TLS connections only (tls.server.mode=enforcing)? Then use "
    "--tlsConfig FILE of rmq-admin, tls=FILE of a client, tls.enable=true of a NameServer or broker"
)
CLOSED_TLS = (
    "closed by the peer in the TLS handshake, or its answer is not TLS: is this a plain port "
    "(tls.server.mode=disabled)? Then connect without TLS"
)
_OUR_PAIR = "a certificate of this client: tls.client.certPath and tls.client.keyPath"
#: what to look at after an alert of the peer's TLS, by OpenSSL's words for it
_ALERTS = {
    "alert certificate required": f"the peer wants {_OUR_PAIR}",
    "alert handshake failure": f"the peer may want {_OUR_PAIR}",
    "alert unknown ca": "the peer does not trust who signed tls.client.certPath (tls.server.trustCertPath there)",
    "alert certificate expired": "by the clock of the peer tls.client.certPath has expired",
    "alert bad certificate": "the peer refuses tls.client.certPath",
}


def with_advice(text: str) -> str:
    """Return why TLS failed, as OpenSSL says it to a client, with what to look at where that is known."""
    advice = next((advice for words, advice in _ALERTS.items() if words in text), None)
    return text if advice is None else f"{text}: {advice}"


def _restored(kind: type[RocketMqError], args: tuple[Any, ...], fields: dict[str, Any]) -> RocketMqError:
    """Return an error again without its __init__, which takes other arguments than the text."""
    error: RocketMqError = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class RocketMqError(Exception):
    """The root of them all; they can be pickled, for pools of processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


class RequestFailed(RocketMqError):
    """A request has no usable answer; ``addr`` is the peer, as ``ip:port``."""

    def __init__(self, addr: str, text: str) -> None:
        super().__init__(text)
        self.addr = addr


class Refused(RequestFailed):
    """
    The peer answered with a response code that the request's contract does not have; ``said`` is that in words.
    """

    def __init__(
        self,
        code: int,
        remark: str,
        addr: str,
        ext: Mapping[str, str] = MappingProxyType({}),
        request_code: int = -1,
        *,
        said: str = "",
    ) -> None:
        super().__init__(addr, f"{addr} {said or f'refused request {request_code} with code {code}'}: {remark}")
        self.code = code
        self.remark = remark
        self.ext = dict(ext)
        self.request_code = request_code


class RequestTimeout(RequestFailed, TimeoutError):
    """No answer within the caller's timeout; the request may have been executed."""


class Unreachable(RequestFailed, ConnectionError):
    """No connection could be made, or it was lost before the answer came."""


class BadAnswer(RequestFailed):
    """The peer answered with a header or body that cannot be read."""


# of the client


class ConfigurationError(RocketMqError, ValueError):
    """A name, a size or an option is not allowed; nothing was sent."""


class ClosedClient(RocketMqError):
    """The client, or this part of it, is closed."""


class ForkedClient(RocketMqError):
    """The client was made in another process, before a fork; every process needs a client of its own."""


class LostQueue(RocketMqError):
    """The queue of the message belongs to another member of the group now, which gets the message again."""


class AlreadySettled(RocketMqError):
    """The message of a delivery was acknowledged, asked for again or rejected before; this call changed nothing."""


class NoRoute(RocketMqError):
    """
    No NameServer knows the topic; ``answers`` is what each of them said.

    ``is_unknown``: one did answer that it has no route; otherwise none could be asked.
    """

    def __init__(self, topic: str, answers: Mapping[str, str], *, is_unknown: bool = False) -> None:
        # one line: NameServers add a second one with a link
        said = "; ".join(f"{addr}: {' '.join(text.split())}" for addr, text in answers.items())
        super().__init__(f"no route of topic {topic}: {said}")
        self.topic = topic
        self.answers = answers
        self.is_unknown = is_unknown


class NotFound(RocketMqError):
    """What was asked about is not there; the text says what, and where it was looked for."""


class NotDelivered(RocketMqError):
    """
    A message could not be sent; ``attempts`` are the brokers that were tried, each with its error.

    With ``may_be_stored`` one of them may have stored the message all the same.
    """

    def __init__(self, topic: str, attempts: Sequence[tuple[str, RequestFailed]]) -> None:
        tried = (
            "; ".join(dict.fromkeys(f"{broker}: {error}" for broker, error in attempts)) or "no time was left for a try"
        )
        super().__init__(f"a message for topic {topic} was not delivered: {tried}")
        self.attempts = tuple(attempts)
        self.may_be_stored = any(not isinstance(error, Refused) for _, error in attempts)
