"""Route look-ups: our NameServer against Apache's. From the project's root: python -m bench.namesrv"""

from __future__ import annotations

from pathlib import Path

from bench.frames import PretendedBrokers, route_template
from bench.pairing import Outcome, Plan, Shape, measure, options, parsed_shape, run
from tests.real.peers import APACHE_4, Site

SHAPES = ("c1d1", "c16d1", "c16d16", "c256d1")


def main() -> int:
    """Run the benchmark that the command line asks for."""
    parser = options("Route look-ups: our NameServer against Apache's.", SHAPES)
    parser.add_argument("--topics", type=int, default=64, help="topics registered and asked for (default: %(default)s)")
    parser.add_argument("--width", type=int, default=4, help="brokers per topic (default: %(default)s)")
    arguments = parser.parse_args()

    def measured(site: Site, loadgen: Path, plan: Plan) -> list[Outcome]:
        servers = site.namesrv(arguments.ours, "ours"), site.namesrv(APACHE_4, "apache")
        brokers = [PretendedBrokers(s.port, topics=arguments.topics, width=arguments.width) for s in servers]
        template = route_template(site.root / "route", arguments.topics)
        try:
            return [
                measure(loadgen, Shape(f"route {name}", *parsed_shape(name), template, arguments.rate), *servers, plan)
                for name in arguments.shapes.split(",")
            ]
        finally:
            for pretended in brokers:
                pretended.close()

    return run(arguments, measured)


if __name__ == "__main__":
    raise SystemExit(main())
