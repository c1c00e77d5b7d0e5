"""
``rmq-container``: the entry of the container image; turns environment variables into arguments of the other scripts.

A broker registers an address at the NameServers, and clients dial that address. In a container the first address is
that of the container's own network, which clients elsewhere cannot reach: so it must be chosen.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence

from rmq.runtime.platform import first_address

#: where the image keeps everything; one volume
DATA = "/data"
#: the port of the status pages and of /healthz, inside the container
HTTP_PORT = 9880
KEY_PREFIX = "RMQ_KEY_"
#: names that container engines give to the machine outside
HOST_NAMES = ("host.docker.internal", "host.containers.internal")

USAGE = "rmq-container namesrv|broker|local|admin|audit|health [ARGUMENT...]"
HELP = f"""\
The entry of the container image: replaces itself by rmq-namesrv, rmq-broker, rmq-local, rmq-admin or rmq-audit with the
arguments; health asks /healthz of this container. RMQ_KEY_<key> is a key of namesrv or broker, as the option --<key>.
RMQ_BROKER_IP1 is the address that a broker registers and that clients dial: an address, a name, host or auto; that of
local is 127.0.0.1 without it, for clients on the machine outside, where its ports are published under their numbers.
What is written goes to {DATA}; status pages are on port {HTTP_PORT}."""

WITHOUT_ADDRESS = """\
rmq-container: RMQ_BROKER_IP1 is not set, and without it the broker would register {first}:{port}: the address of this
container, which only containers of the same network can reach; all other clients would connect to the NameServer and
then time out at the broker. Set RMQ_BROKER_IP1 to one of
  an address   that clients reach, for example the machine's: -e RMQ_BROKER_IP1=192.0.2.10 -p {port}:{port}
  host         the address of the machine outside, for ports that are published on it
  auto         {first}: all clients are containers of the same network, or pods of the same cluster"""

Resolve = Callable[[str], str]


class NotUsable(Exception):
    """The environment or the arguments cannot be used; the text says why, and what to do."""


def command(arguments: Sequence[str], environment: Mapping[str, str], *, first: str, resolve: Resolve) -> list[str]:
    """
    Return the command that the container runs; raises NotUsable.

    ``first`` is the first address of the container. ``resolve`` returns the IPv4 address of a name, or raises OSError.
    """
    role, *rest = arguments or [""]
    keys = {name.removeprefix(KEY_PREFIX): value for name, value in environment.items() if name.startswith(KEY_PREFIX)}
    if keys and role not in ("namesrv", "broker"):
        raise NotUsable(f"rmq-container: {KEY_PREFIX}{min(keys)} is for namesrv and broker only")
    if role in ("admin", "audit"):
        return [f"rmq-{role}", *rest]
    if role == "local":
        text = environment.get("RMQ_BROKER_IP1", "")
        address = ["--host", broker_address(text, "10911", first, resolve)] if text else []
        return ["rmq-local", "--dir", f"{DATA}/local", "--bind", "0.0.0.0", *address, *rest]
    defaults = {"http": f"0.0.0.0:{HTTP_PORT}"}
    if role == "namesrv":
        defaults["kvConfigPath"] = f"{DATA}/namesrv/kvConfig.json"
    elif role == "broker":
        defaults["storePathRootDir"] = f"{DATA}/store"
        if "brokerIP1" not in keys and not any(word.startswith("--brokerIP1") for word in rest):
            port = keys.get("listenPort", "10911")
            defaults["brokerIP1"] = broker_address(environment.get("RMQ_BROKER_IP1", ""), port, first, resolve)
    else:
        raise NotUsable(f"usage: {USAGE}")
    options = [word for key, value in {**defaults, **keys}.items() for word in (f"--{key}", value)]
    # What is given by hand comes last, and wins.
    return [f"rmq-{role}", "--nodaemon", "--pidfile=", *options, *rest]


def broker_address(text: str, port: str, first: str, resolve: Resolve) -> str:
    """
    Return the address or name to register for RMQ_BROKER_IP1; raises NotUsable.

    A name stays one: clients elsewhere may have another address for it than this container, and a certificate names it.
    """
    if text == "auto":
        return first
    if not text:
        raise NotUsable(WITHOUT_ADDRESS.format(first=first, port=port))
    if text != "host":
        return text
    for name in HOST_NAMES:
        try:
            return resolve(name)
        except OSError:
            continue
    raise NotUsable(
        f"rmq-container: RMQ_BROKER_IP1=host, but {' and '.join(HOST_NAMES)} are unknown here; run the container"
        " with --add-host=host.docker.internal:host-gateway, or give the address itself"
    )


def health(port: int = HTTP_PORT) -> int:
    """Return 0 if the status port of this container says that the role is well, else 1; for HEALTHCHECK."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            print(answer.read().decode().strip())
            return 0
    except OSError as error:
        print(f"rmq-container health: {error}", file=sys.stderr)
        return 1


def main() -> None:
    """Replace this process by the command of the arguments."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(f"usage: {USAGE}\n\n{HELP}")
        return
    if arguments[:1] == ["health"]:
        parser = argparse.ArgumentParser(prog="rmq-container health")
        parser.add_argument("--port", type=int, default=HTTP_PORT)
        sys.exit(health(parser.parse_args(arguments[1:]).port))
    try:
        words = command(arguments, os.environ, first=first_address(), resolve=socket.gethostbyname)
    except NotUsable as error:
        print(error, file=sys.stderr)
        sys.exit(64)
    folder = os.path.dirname(sys.executable)
    os.execv(os.path.join(folder, words[0]), words)
