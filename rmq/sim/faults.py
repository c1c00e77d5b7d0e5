"""
What may go wrong, as small objects, and plans of them drawn from the seed.

Faults may overlap: a direction that two of them block
opens when both are over, and one that finds its victim gone already does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from rmq.runtime.disk.files import DiskError
from rmq.runtime.disk.statefile import StateFileError
from rmq.sim.disk import HEALTHY_CAPACITY_BYTES
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.store.messages import StoreError

#: a process that is still ending, or could not start because of its disk, is started again after this
START_AGAIN_S = 3.0
#: what a fault that passes soon lasts on the average
SHORT_S = 4.0


@attrs.frozen
class Fault:
    """Something that goes wrong with ``apply`` and is over with ``undo``."""

    name: str
    apply: Callable[[], object]
    undo: Callable[[], object]


def half_partition(src: Node, dst: Node) -> Fault:
    """Nothing gets from one machine to another; the way back is open."""
    name = f"nothing gets from {src.name} to {dst.name}"
    return Fault(name, lambda: src.net.block(src, dst), lambda: src.net.unblock(src, dst))


def partition(one: Node, other: Node) -> Fault:
    """Two machines cannot reach each other."""

    def undo() -> None:
        one.net.unblock(one, other)
        one.net.unblock(other, one)

    return Fault(f"partition of {one.name} and {other.name}", lambda: one.net.partition(one, other), undo)


def clog(src: Node, dst: Node, seconds: float) -> Fault:
    """One direction is slow."""
    name = f"{seconds:.3f} s more from {src.name} to {dst.name}"
    return Fault(name, lambda: src.net.clog(src, dst, seconds), lambda: src.net.clog(src, dst, 0))


def reset(one: Node, other: Node) -> Fault:
    """All connections between two machines break; new ones work."""
    name = f"connections of {one.name} and {other.name} reset"
    return Fault(name, lambda: one.net.reset_between(one, other), lambda: None)


def kill(node: Node) -> Fault:
    """kill -9, and a start at the end."""
    return Fault(f"kill -9 of {node.name}", node.kill, lambda: start_again(node))


def restart(node: Node) -> Fault:
    """A stop in order, and a start at the end."""
    return Fault(f"stop of {node.name}", node.stop, lambda: start_again(node))


def power_failure(node: Node) -> Fault:
    """A machine without power, and a start at the end."""
    return Fault(f"power failure of {node.name}", node.crash, lambda: start_again(node))


def power_failure_in_sync(node: Node) -> Fault:
    """The power fails before the next sync has ended."""
    return _in_sync(f"power failure of {node.name} in a sync", node, node.crash)


def kill_in_sync(node: Node) -> Fault:
    """kill -9 before the next fsync has ended; it never completes."""
    return _in_sync(f"kill -9 of {node.name} in a sync", node, node.kill)


def _in_sync(name: str, node: Node, end: Callable[[], object]) -> Fault:
    #: holds something from the beginning of the fault to its end
    armed: list[bool] = []

    def apply() -> None:
        armed.append(True)
        node.disk.on_sync = fail

    def undo() -> None:
        armed.clear()
        node.disk.on_sync = lambda seconds: None
        start_again(node)

    def fail(seconds: float) -> None:
        process = node.process
        node.disk.on_sync = lambda seconds: None
        node.world.schedule(
            node.world.rng.uniform(0, seconds), lambda: end() if armed and node.process is process else None
        )

    return Fault(name, apply, undo)


def new_disk(node: Node) -> Fault:
    """The machine fails, and comes back with an empty disk; for slaves, whose master has everything."""

    def apply() -> None:
        node.crash()
        node.disk.replace()

    return Fault(f"{node.name} gets a new disk", apply, lambda: start_again(node))


def slow_disk(node: Node, seconds: float) -> Fault:
    """Every sync takes as long as this."""

    def set_sync(range_s: tuple[float, float]) -> None:
        node.disk.sync_s = range_s

    name = f"syncs of {node.name} take {seconds:.3f} s"
    return Fault(name, lambda: set_sync((seconds, seconds)), lambda: set_sync(node.disk.healthy_sync_s))


def full_disk(node: Node) -> Fault:
    """No room but what is reserved."""

    def undo() -> None:
        node.disk.capacity_bytes = HEALTHY_CAPACITY_BYTES

    return Fault(f"disk of {node.name} full", node.disk.fill, undo)


def failed_sync(node: Node) -> Fault:
    """The next sync fails; a start at the end, if the process thought it better to end."""
    return _next_fails(f"a sync of {node.name} fails", node, "fail_syncs")


def failed_write(node: Node) -> Fault:
    """The next write fails, with a part of its bytes written; a start at the end, as after a failed sync."""
    return _next_fails(f"a write of {node.name} fails", node, "fail_writes")


def _next_fails(name: str, node: Node, counter: str) -> Fault:
    def undo() -> None:
        setattr(node.disk, counter, 0)
        start_again(node)

    return Fault(name, lambda: setattr(node.disk, counter, 1), undo)


def clock_step(node: Node, seconds: float) -> Fault:
    """A clock that jumps, and jumps back."""
    name = f"clock of {node.name} jumps by {seconds:.3f} s"
    return Fault(name, lambda: node.step_clock(seconds), lambda: node.step_clock(-seconds))


def start_again(node: Node) -> None:
    """Start the node's process with its service, unless it runs; again and again while its disk does not let it."""
    if node.is_ending:
        node.world.schedule(START_AGAIN_S, lambda: start_again(node))
    if node.process is not None:
        return
    try:
        node.start()
    except (DiskError, StateFileError, StoreError) as error:
        node.world.note(node.name, "start failed", error)
        node.world.schedule(START_AGAIN_S, lambda: start_again(node))


@attrs.frozen(kw_only=True)
class Planned:
    """A fault, from when and for how long."""

    at_s: float
    for_s: float
    fault: Fault

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s for {self.for_s:7.3f} s  {self.fault.name}"


#: every kind of fault, as a function that draws one
Kind = Callable[[World, Sequence[Node]], Fault]


def _two(world: World, nodes: Sequence[Node]) -> tuple[Node, Node]:
    one = world.rng.choice(nodes)
    return one, world.rng.choice([node for node in nodes if node is not one])


KINDS: dict[str, Kind] = {
    "half partition": lambda world, nodes: half_partition(*_two(world, nodes)),
    "partition": lambda world, nodes: partition(*_two(world, nodes)),
    "clog": lambda world, nodes: clog(*_two(world, nodes), world.rng.uniform(0.05, 5)),
    "reset": lambda world, nodes: reset(*_two(world, nodes)),
    "kill": lambda world, nodes: kill(world.rng.choice(nodes)),
    "restart": lambda world, nodes: restart(world.rng.choice(nodes)),
    "power failure": lambda world, nodes: power_failure(world.rng.choice(nodes)),
    "power failure in a sync": lambda world, nodes: power_failure_in_sync(world.rng.choice(nodes)),
    "kill in a sync": lambda world, nodes: kill_in_sync(world.rng.choice(nodes)),
    "new disk": lambda world, nodes: new_disk(world.rng.choice(nodes)),
    "slow disk": lambda world, nodes: slow_disk(world.rng.choice(nodes), world.rng.uniform(0.1, 8)),
    "full disk": lambda world, nodes: full_disk(world.rng.choice(nodes)),
    "failed sync": lambda world, nodes: failed_sync(world.rng.choice(nodes)),
    "failed write": lambda world, nodes: failed_write(world.rng.choice(nodes)),
    "clock step": lambda world, nodes: clock_step(world.rng.choice(nodes), clock_step_s(world.rng.uniform(-30, 30))),
}


def clock_step_s(drawn_s: float) -> float:
    """Every second step is twenty times as far: beyond what any table of a broker forgives a silent client."""
    return drawn_s * 20 if int(abs(drawn_s)) % 2 else drawn_s


def draw_plan(
    world: World, nodes: Sequence[Node], *, within_s: float, count: int, kinds: Sequence[str] = tuple(KINDS)
) -> list[Planned]:
    """
    Draw ``count`` faults that begin and end within ``within_s`` seconds from now, in the order of their begin.

    A machine that is in ``nodes`` more than once is hit more often.
    """
    plan = []
    for _ in range(count):
        fault = KINDS[world.rng.choice(list(kinds))](world, nodes)
        at_s = world.rng.uniform(0, within_s)
        # Half of them pass soon, the others take any part of what is left.
        for_s = world.rng.uniform(0, within_s - at_s)
        if world.rng.random() < 0.5:
            for_s = min(for_s, world.rng.expovariate(1 / SHORT_S))
        plan.append(Planned(at_s=at_s, for_s=for_s, fault=fault))
    return sorted(plan, key=lambda planned: planned.at_s)


def follow(world: World, plan: Sequence[Planned]) -> None:
    """Let the faults of ``plan`` happen, counted from now."""
    for planned in plan:
        world.note("planned", planned)
        world.schedule(planned.at_s, planned.fault.apply)
        world.schedule(planned.at_s + planned.for_s, planned.fault.undo)


def undo_all(nodes: Sequence[Node]) -> None:
    """End every fault: the network is whole, disks are healthy, everyone runs."""
    for node in nodes:
        node.net.heal()
        node.disk.recover()
        start_again(node)
