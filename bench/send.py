"""Sends: our broker against Apache's. From the project's root: python -m bench.send"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from bench.frames import send_template
from bench.pairing import Outcome, Plan, Shape, measure, options, parsed_shape, run
from tests.real.peers import APACHE_4, Broker, Site, until
from tests.real.storm import QUEUES

SHAPES = ("c1d1", "c64d1", "c16d16")
TOPIC = "BenchSend"


def stores(server: Broker) -> bool:
    """Tell whether a send is answered 0: stored, and by a slave too where one is asked for."""
    with server.probe() as probe:
        return probe.send_message(TOPIC, 0, b"ready?").code == 0


def main() -> int:
    """Run the benchmark that the command line asks for."""
    parser = options("Sends: our broker against Apache's.", SHAPES)
    parser.add_argument("--sizes", default="100,1024", help="body sizes in bytes (default: %(default)s)")
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=["ASYNC_FLUSH", "SYNC_FLUSH"])
    parser.add_argument("--reactor", default="rmq-lean", help="reactor of our broker (default: %(default)s; epoll)")
    parser.add_argument("--slave", action="store_true", help="SYNC_MASTER, each with a slave of its own kind")
    arguments = parser.parse_args()

    def measured(site: Site, loadgen: Path, plan: Plan) -> list[Outcome]:
        config: dict[str, Any] = {"flushDiskType": arguments.flush, "mappedFileSizeCommitLog": 256 << 20}
        config |= {"mappedFileSizeConsumeQueue": 20 * 300_000, "maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}
        config["brokerRole"] = "SYNC_MASTER" if arguments.slave else "ASYNC_MASTER"
        servers = []
        for kind, name in ((arguments.ours, "ours"), (APACHE_4, "apache")):
            namesrv = site.namesrv(kind, f"{name}-namesrv")
            server = site.broker(kind, namesrv.addr, name, twistd=["--reactor", arguments.reactor], **config)
            with server.probe() as probe:
                probe.create_topic(TOPIC, QUEUES)
            if arguments.slave:
                site.slave(kind, server, namesrv.addr, f"{name}-slave")
                until(f"{name} replicates", partial(stores, server))  # Apache's slave first reports after 5 s
            servers.append(server)
        ours, apache = servers
        outcomes = []
        for size in map(int, arguments.sizes.split(",")):
            template = send_template(site.root / f"send-{size}", TOPIC, size)
            for name in arguments.shapes.split(","):
                shape = Shape(f"send {size} B {name}", *parsed_shape(name), template, arguments.rate)
                outcomes.append(measure(loadgen, shape, ours, apache, plan))
        return outcomes

    return run(arguments, measured)


if __name__ == "__main__":
    raise SystemExit(main())
