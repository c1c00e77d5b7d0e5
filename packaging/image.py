"""
``tox -e image``: builds the image of packaging/Containerfile without a container engine, and runs it as one would.

``python packaging/image.py FOLDER`` needs root, debootstrap, iproute2 and the namespaces of Linux. Debian with its
Python takes the place of BASE; every FROM, RUN, COPY, ENV and USER of the file is carried out, so that the file itself
is tried. A container is a process with files, process numbers and a network of its own: any uid, a read-only root.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs
from check import ROOT, Failed, copy_of_sources, holds, run, step

SUITE = "bookworm"
#: what images of Python have, too: its headers
PACKAGES = "python3,python3-dev,python3-venv,python-is-python3,ca-certificates"
#: programs that the image must not have
COMPILERS = ("gcc", "cc", "c++", "clang", "make", "ld", "cython")
#: what the file adds to its base, and what an idle server takes of the memory, without mapped files: in MiB
MOST_ADDED_MIB = 130
MOST_RESIDENT_MIB = 60
#: from pip install without compiler to the first message
MOST_INSTALL_S = 60.0
#: a container engine kills after this time
STOP_S = 10.0
BOOT_S = 60.0
#: one that no file of the image knows, in the group that platforms give to such users
ANY_USER = "12345:0"


@attrs.define
class Image:
    """A stage of the container file: its files, and what it says of the containers."""

    root: Path
    environment: dict[str, str] = attrs.field(factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"})
    said: dict[str, str] = attrs.field(factory=dict)

    def shell(self, text: str) -> str:
        """Carry out a RUN."""
        settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        words = [f"{name}={value}" for name, value in {**settings, **self.environment}.items()]
        return run("chroot", self.root, "env", "-i", *words, "sh", "-ec", text)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield (instruction, rest) of a container file."""
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, map(str.strip, lines.splitlines())):
        word, _, rest = line.partition(" ")
        yield word, rest.strip()


def base_image(folder: Path) -> Image:
    """Make a Debian with Python and without a compiler; one that is there already is taken again."""
    if folder.is_dir():
        return Image(folder)
    mirror = re.search(r"^(?:URIs:|deb(?: \[.*?\])?) *(\S+/debian)/?(?:\s|$)", "\n".join(sources()), re.MULTILINE)
    part = folder.with_name("part")
    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, part, *([mirror[1]] if mirror else []))
    for path in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
        shutil.copy(path, f"{part}{path}")
    part.rename(folder)
    return Image(folder)


def sources() -> Iterator[str]:
    for path in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")):
        if path.is_file():
            yield path.read_text("utf-8")


def build(base: Image, folder: Path) -> Image:
    """Carry out the container file; return its last stage."""
    stages: dict[str, Image] = {}
    image = base
    for word, rest in instructions((ROOT / "packaging" / "Containerfile").read_text("utf-8")):
        if word == "FROM":
            name = rest.partition(" AS ")[2] or "final"
            run("cp", "-a", base.root, folder / name)
            image = stages[name] = Image(folder / name)
        elif word == "RUN":
            image.shell(rest)
        elif word == "COPY":
            *options, source, target = rest.split()
            place = Path(f"{image.root}{target}")
            if options:
                run("cp", "-a", f"{stages[options[0].removeprefix('--from=')].root}{source}", place)
            elif source == ".":
                copy_of_sources(place)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
        elif word == "ENV":
            for pair in shlex.split(rest):
                name, _, value = pair.partition("=")
                image.environment[name] = value.replace("$PATH", image.environment["PATH"])
        elif word != "ARG":
            image.said[word] = rest
    return image


def check_files(image: Image, base: Image) -> str:
    """No compiler, no pip, no tests of ours, and every compiled module; return the size of what is added."""
    program = {name: shutil.which(name, path=f"{image.root}/usr/bin:{image.root}/opt/rmq/bin") for name in COMPILERS}
    holds(not any(program.values()), f"a compiler is in the image: {program}")
    names = [str(path.relative_to(image.root)) for path in (image.root / "opt" / "rmq").rglob("*")]
    for what in (r"/bin/pip$", r"/site-packages/(pip|setuptools)$", r"/tests?(/|$)", r"/site-packages/bench$"):
        holds(not (found := [name for name in names if re.search(what, name)]), f"in the image: {found[:3]}")
    ours = [name for name in names if re.search(r"/site-packages/(rmq|rmq_audit)/", name)]
    sources = {name.removesuffix(".pyx") for name in ours if name.endswith(".pyx")}
    compiled = {re.sub(r"\.[^/]*\.so$", "", name) for name in ours if name.endswith(".so")}
    holds(sources == compiled and len(sources) >= 6, f"not compiled: {sources ^ compiled}")
    added, whole = size_mib(image.root / "opt"), size_mib(image.root)
    holds(added <= MOST_ADDED_MIB, f"/opt has {added} MiB")
    return f"{added} MiB in /opt, {whole} MiB with Debian ({size_mib(base.root)} MiB)"


def size_mib(folder: Path) -> int:
    return int(run("du", "-sm", "--one-file-system", folder).split()[0])


class Network:
    """A network of its own, which has 127.0.0.1 only, so that the usual ports are free."""

    def __init__(self) -> None:
        script = "ip link set lo up && echo up && exec sleep infinity"
        self.process = subprocess.Popen(["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        holds(self.process.stdout.readline() == "up\n", "no network could be made")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Container:
    """A running container; the entry is its process 1."""

    def __init__(
        self, image: Image, network: Network, *arguments: str, data: Path, user: str = "", **environment: str
    ) -> None:
        self._image, self._user = image, user or f"{image.said['USER']}:{image.said['USER']}"
        root = image.root
        steps = [
            f"mkdir -p {root}/dev/shm",
            f"mount --bind {root} {root}",
            f"mount -o remount,bind,ro {root}",
            f"mount --bind {data} {root}/data",
            f"mount -t tmpfs -o mode=1777 shm {root}/dev/shm",  # as engines do
            f"mount -t proc proc {root}/proc",
            f"exec {shlex.join(self._inside(environment, arguments))}",
        ]
        command = ["nsenter", "--net", "--target", str(network.process.pid)]
        command += ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", " && ".join(steps)]
        self.log = data.with_name(f"{data.name}.log")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def _inside(self, environment: Mapping[str, str], arguments: tuple[str, ...]) -> list[str]:
        image = self._image
        entry = json.loads(image.said["ENTRYPOINT"]) + (list(arguments) or json.loads(image.said["CMD"]))
        pairs = [f"{name}={value}" for name, value in {**image.environment, **environment}.items()]
        where = ["chroot", f"--userspec={self._user}", "--groups=", str(image.root)]
        return [*where, "env", "-i", "-C", image.said["WORKDIR"], *pairs, *entry]

    @property
    def first(self) -> int:
        """The number, outside, of the container's process 1."""
        return int(Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()[0])

    def execute(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the entry once more inside, as HEALTHCHECK and ``podman exec`` do."""
        enter = ["nsenter", "--net", "--mount", "--pid", "--target", str(self.first)]
        return subprocess.run([*enter, *self._inside({}, arguments)], capture_output=True, text=True, timeout=60)

    def until(self, text: str) -> None:
        """Wait until the log has a text."""
        wait_for(lambda: text in self.log.read_text("utf-8") or self._process.poll() is not None)
        said = self.log.read_text("utf-8")
        holds(text in said, f"no {text!r}: {said}")

    def wait(self) -> int:
        return self._process.wait(BOOT_S)

    def stop(self) -> float:
        """Send the signal of the image to process 1; return how long it took to end well."""
        began = time.monotonic()
        os.kill(self.first, signal.Signals[self._image.said["STOPSIGNAL"]])
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        took = time.monotonic() - began
        holds(self._process.returncode == 0, f"ended with {self._process.returncode} in {took:.1f} s: {tail(self.log)}")
        return took

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def resident_mib(self) -> tuple[int, int]:
        """Return what process 1 has in the memory: of its own, and of files (programs and the store)."""
        text = Path(f"/proc/{self.first}/status").read_text()
        own, files = (int(number) // 1024 for number in re.findall(r"Rss(?:Anon|File):\s+(\d+) kB", text))
        return own, files


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, at most BOOT_S."""
    deadline = time.monotonic() + BOOT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])


@contextlib.contextmanager
def stopped_at_last(*containers: Container) -> Iterator[None]:
    try:
        yield
    finally:
        for container in containers:
            container.kill()


def data_of(folder: Path) -> Path:
    """Make a volume as an engine does: owner and group are those of the image's /data."""
    folder.mkdir(parents=True)
    os.chown(folder, 10001, 0)
    folder.chmod(0o2775)
    return folder


def admin(container: Container, *words: str) -> str:
    done = container.execute("admin", *words, "-n", "127.0.0.1:9876")
    holds(done.returncode == 0, f"rmq-admin {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def check_refusal(image: Image, network: Network, folder: Path) -> None:
    """A broker without an address refuses, and says what to set."""
    broker = Container(image, network, "broker", data=data_of(folder / "nowhere"))
    status = broker.wait()
    said = broker.log.read_text("utf-8")
    holds(status == 64 and "RMQ_BROKER_IP1 is not set" in said, f"{status}: {said}")


def check_roles(image: Image, network: Network, folder: Path) -> str:
    """
    A NameServer and a broker as any user: healthy, a message; they end on the signal, and the message is there again.

    Returns what they take.
    """
    data = data_of(folder / "broker")
    namesrv = Container(image, network, "namesrv", data=data_of(folder / "namesrv"))
    given = {"RMQ_BROKER_IP1": "127.0.0.1", "RMQ_KEY_namesrvAddr": "127.0.0.1:9876", "RMQ_KEY_brokerName": "broker-x"}
    # its own port: both are in one network here
    command = ("broker", "--http", "0.0.0.0:9881")
    with stopped_at_last(namesrv):
        namesrv.until("boot success")
        for first in (True, False):
            broker = Container(image, network, *command, data=data, user=ANY_USER, **given)
            with stopped_at_last(broker):
                broker.until("boot success")
                for one, port in ((namesrv, "9880"), (broker, "9881")):
                    done = one.execute("health", "--port", port)
                    holds(done.returncode == 0, f"health: {done.stdout}{done.stderr}")
                if first:
                    admin(broker, "topic", "create", "orders")
                    admin(broker, "produce", "orders", "-m", "hello")
                holds("hello" in admin(broker, "tail", "orders", "--from", "begin", "--exit"), "the message is lost")
                resident = {"NameServer": namesrv.resident_mib(), "broker": broker.resident_mib()}
                owner = {(path.stat().st_uid, path.stat().st_gid) for path in (data / "store").iterdir()}
                holds(owner == {(12345, 0)}, f"files of the store belong to {owner}")
                took = broker.stop()
                broker.log.write_text("")
        holds(namesrv.stop() < STOP_S, "the NameServer is slow to end")
    holds(all(own <= MOST_RESIDENT_MIB for own, _ in resident.values()), f"resident: {resident}")
    told = ", ".join(f"{name} {own} + {files} MiB of files" for name, (own, files) in resident.items())
    return f"resident: {told}; the broker ended in {took:.1f} s"


def check_local(image: Image, network: Network, folder: Path) -> None:
    """The default command: a cluster as process 1 of its container, and an audit; all of it ends on the signal."""
    data = data_of(folder / "local")
    local = Container(image, network, data=data)
    with stopped_at_last(local):
        local.until("Ready.")
        admin(local, "topic", "create", "orders")
        admin(local, "produce", "orders", "-m", "hello")
        holds("hello" in admin(local, "tail", "orders", "--from", "begin", "--exit"), "the message is lost")
        holds(local.execute("health").returncode == 0, "health")
        # The first index file of a store is made in the background.
        wait_for(lambda: all(any((data / "local" / name / "index").glob("*")) for name in ("broker-a", "broker-a-s")))
        stores = ("/data/local/broker-a", "/data/local/broker-a-s")
        done = local.execute("audit", "compare", *stores, "--engine", "local", "--allow-lag", "64M")
        holds(done.stdout.startswith("CONSISTENT"), f"audit: {done.stdout}{done.stderr}")
        local.stop()
        holds(tail(local.log).endswith("stopped"), tail(local.log))


def check_without_compiler(base: Image, network: Network, folder: Path) -> str:
    """On a system without compiler: installed from sources, a cluster, a message; return the seconds."""
    folder.parent.mkdir()
    run("cp", "-a", base.root, folder)
    image = Image(folder)
    image.said = {"ENTRYPOINT": "[]", "CMD": '["rmq-local"]', "WORKDIR": "/data", "STOPSIGNAL": "SIGTERM"}
    copy_of_sources(folder / "source")
    began = time.monotonic()
    image.shell("python -m venv /opt/rmq && /opt/rmq/bin/pip install -q /source && mkdir /data")
    image.environment["PATH"] = f"/opt/rmq/bin:{image.environment['PATH']}"
    holds(not list((folder / "opt").rglob("rmq/store/*.so")), "there is a compiler")
    local = Container(image, network, "rmq-local", data=data_of(folder.with_name("data")), user="0:0")
    with stopped_at_last(local):
        local.until("Ready.")
        for words in (("topic", "create", "orders"), ("produce", "orders", "-m", "hello")):
            done = local.execute("rmq-admin", *words)
            holds(done.returncode == 0, done.stderr)
        took = time.monotonic() - began
        holds(took <= MOST_INSTALL_S, f"{took:.0f} s from pip install to the first message")
        holds("hello" in local.execute("rmq-admin", "tail", "orders", "--from", "begin", "--exit").stdout, "no message")
        local.stop()
    return f"{took:.0f} s"


def clear(folder: Path) -> None:
    """Remove everything but the base, which the next run takes again."""
    for path in folder.iterdir():
        if path.name != "base":
            shutil.rmtree(path)


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("packaging/image.py needs root and debootstrap")
    folder.mkdir(parents=True, exist_ok=True)
    clear(folder)
    network = Network()
    try:
        with step("Debian"):
            base = base_image(folder / "base")
        with step("the image"):
            image = build(base, folder)
            print(check_files(image, base), end=" ")
        with step("a broker without an address"):
            check_refusal(image, network, folder / "data")
        with step("a NameServer and a broker"):
            print(check_roles(image, network, folder / "data"), end=" ")
        with step("a cluster in one container"):
            check_local(image, network, folder / "data")
        with step("without a compiler: from pip to the first message"):
            print(check_without_compiler(base, network, folder / "plain" / "root"), end=" ")
    except Failed as failed:
        sys.exit(f"FAILED\n{failed}")
    finally:
        network.close()
        clear(folder)


if __name__ == "__main__":
    main()
