"""
What may go wrong, as small objects, and plans of them drawn from the seed.

A fault has a ``name`` for the log, ``apply()`` and ``undo()``. Faults may overlap: a direction that two of them block
opens when both are over, and one that finds its victim gone already does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

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


class Fault(Protocol):
    @property
    def name(self) -> str: ...

    def apply(self) -> None: ...

    def undo(self) -> None: ...


@attrs.frozen
class HalfPartition:
    """Nothing gets from one machine to another; the way back is open."""

    src: Node
    dst: Node

    @property
    def name(self) -> str:
        return f"nothing gets from {self.src.name} to {self.dst.name}"

    def apply(self) -> None:
        self.src.net.block(self.src, self.dst)

    def undo(self) -> None:
        self.src.net.unblock(self.src, self.dst)


@attrs.frozen
class Partition:
    """Two machines cannot reach each other."""

    one: Node
    other: Node

    @property
    def name(self) -> str:
        return f"partition of {self.one.name} and {self.other.name}"

    def apply(self) -> None:
        self.one.net.partition(self.one, self.other)

    def undo(self) -> None:
        self.one.net.unblock(self.one, self.other)
        self.one.net.unblock(self.other, self.one)


@attrs.frozen
class Clog:
    """One direction is slow."""

    src: Node
    dst: Node
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.seconds:.3f} s more from {self.src.name} to {self.dst.name}"

    def apply(self) -> None:
        self.src.net.clog(self.src, self.dst, self.seconds)

    def undo(self) -> None:
        self.src.net.clog(self.src, self.dst, 0)


@attrs.frozen
class Reset:
    """All connections between two machines break; new ones work."""

    one: Node
    other: Node

    @property
    def name(self) -> str:
        return f"connections of {self.one.name} and {self.other.name} reset"

    def apply(self) -> None:
        self.one.net.reset_between(self.one, self.other)

    def undo(self) -> None:
        """There is nothing to undo."""


@attrs.frozen
class Kill:
    """kill -9, and a start at the end."""

    node: Node

    @property
    def name(self) -> str:
        return f"kill -9 of {self.node.name}"

    def apply(self) -> None:
        self.node.kill()

    def undo(self) -> None:
        start_again(self.node)


@attrs.frozen
class Restart:
    """A stop in order, and a start at the end."""

    node: Node

    @property
    def name(self) -> str:
        return f"stop of {self.node.name}"

    def apply(self) -> None:
        self.node.stop()

    def undo(self) -> None:
        start_again(self.node)


@attrs.frozen
class PowerFailure:
    """A machine without power, and a start at the end."""

    node: Node

    @property
    def name(self) -> str:
        return f"power failure of {self.node.name}"

    def apply(self) -> None:
        self.node.crash()

    def undo(self) -> None:
        start_again(self.node)


@attrs.frozen
class PowerFailureInSync:
    """The power fails before the next sync has ended."""

    node: Node
    #: holds something from the beginning of the fault to its end
    _armed: list[bool] = attrs.field(init=False, factory=list, eq=False, repr=False)

    @property
    def name(self) -> str:
        return f"power failure of {self.node.name} in a sync"

    def end(self) -> None:
        """What happens in the sync."""
        self.node.crash()

    def apply(self) -> None:
        self._armed.append(True)
        self.node.disk.on_sync = self._fail

    def undo(self) -> None:
        self._armed.clear()
        self.node.disk.on_sync = lambda seconds: None
        start_again(self.node)

    def _fail(self, seconds: float) -> None:
        node, process = self.node, self.node.process
        node.disk.on_sync = lambda seconds: None

        def end() -> None:
            if self._armed and node.process is process:
                self.end()

        node.world.schedule(node.world.rng.uniform(0, seconds), end)


@attrs.frozen
class KillInSync(PowerFailureInSync):
    """kill -9 before the next fsync has ended; it never completes."""

    @property
    def name(self) -> str:
        return f"kill -9 of {self.node.name} in a sync"

    def end(self) -> None:
        self.node.kill()


@attrs.frozen
class NewDisk:
    """The machine fails, and comes back with an empty disk; for slaves, whose master has everything."""

    node: Node

    @property
    def name(self) -> str:
        return f"{self.node.name} gets a new disk"

    def apply(self) -> None:
        self.node.crash()
        self.node.disk.replace()

    def undo(self) -> None:
        start_again(self.node)


@attrs.frozen
class SlowDisk:
    """Every sync takes as long as this."""

    node: Node
    seconds: float

    @property
    def name(self) -> str:
        return f"syncs of {self.node.name} take {self.seconds:.3f} s"

    def apply(self) -> None:
        self.node.disk.sync_s = (self.seconds, self.seconds)

    def undo(self) -> None:
        self.node.disk.sync_s = self.node.disk.healthy_sync_s


@attrs.frozen
class FullDisk:
    """No room but what is reserved."""

    node: Node

    @property
    def name(self) -> str:
        return f"disk of {self.node.name} full"

    def apply(self) -> None:
        self.node.disk.fill()

    def undo(self) -> None:
        self.node.disk.capacity_bytes = HEALTHY_CAPACITY_BYTES


@attrs.frozen
class FailedSync:
    """The next sync fails; a start at the end, if the process thought it better to end."""

    node: Node

    @property
    def name(self) -> str:
        return f"a sync of {self.node.name} fails"

    def apply(self) -> None:
        self.node.disk.fail_syncs = 1

    def undo(self) -> None:
        self.node.disk.fail_syncs = 0
        start_again(self.node)


@attrs.frozen
class FailedWrite:
    """The next write fails, with a part of its bytes written; a start at the end, as after a failed sync."""

    node: Node

    @property
    def name(self) -> str:
        return f"a write of {self.node.name} fails"

    def apply(self) -> None:
        self.node.disk.fail_writes = 1

    def undo(self) -> None:
        self.node.disk.fail_writes = 0
        start_again(self.node)


@attrs.frozen
class ClockStep:
    """A clock that jumps, and jumps back."""

    node: Node
    seconds: float

    @property
    def name(self) -> str:
        return f"clock of {self.node.name} jumps by {self.seconds:.3f} s"

    def apply(self) -> None:
        self.node.step_clock(self.seconds)

    def undo(self) -> None:
        self.node.step_clock(-self.seconds)


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
    "half partition": lambda world, nodes: HalfPartition(*_two(world, nodes)),
    "partition": lambda world, nodes: Partition(*_two(world, nodes)),
    "clog": lambda world, nodes: Clog(*_two(world, nodes), world.rng.uniform(0.05, 5)),
    "reset": lambda world, nodes: Reset(*_two(world, nodes)),
    "kill": lambda world, nodes: Kill(world.rng.choice(nodes)),
    "restart": lambda world, nodes: Restart(world.rng.choice(nodes)),
    "power failure": lambda world, nodes: PowerFailure(world.rng.choice(nodes)),
    "power failure in a sync": lambda world, nodes: PowerFailureInSync(world.rng.choice(nodes)),
    "kill in a sync": lambda world, nodes: KillInSync(world.rng.choice(nodes)),
    "new disk": lambda world, nodes: NewDisk(world.rng.choice(nodes)),
    "slow disk": lambda world, nodes: SlowDisk(world.rng.choice(nodes), world.rng.uniform(0.1, 8)),
    "full disk": lambda world, nodes: FullDisk(world.rng.choice(nodes)),
    "failed sync": lambda world, nodes: FailedSync(world.rng.choice(nodes)),
    "failed write": lambda world, nodes: FailedWrite(world.rng.choice(nodes)),
    "clock step": lambda world, nodes: ClockStep(world.rng.choice(nodes), clock_step_s(world.rng.uniform(-30, 30))),
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
