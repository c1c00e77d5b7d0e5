"""
A simulated machine (`Node`) and the process that runs on it (`Process`, a reactor).

A process ends by itself (``reactor.stop``), is killed (``kill``: the machine's page cache lives) or loses power
(``crash``: only synced bytes are sure). With it go its timers, its open files and its side of every connection. The
next ``start`` is a new incarnation on the same disk and address.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from twisted.application.service import IService
from twisted.internet.base import DelayedCall
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred, succeed
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import DNSLookupError
from twisted.internet.interfaces import (
    IDelayedCall,
    IReactorFromThreads,
    IReactorTCP,
    IReactorTime,
    IStreamClientEndpoint,
)
from zope.interface import implementer

from rmq.runtime.platform import CONNECT_TIMEOUT_S, Platform
from rmq.sim.disk import SimDisk
from rmq.sim.net import SimNet
from rmq.sim.transport import SimConnector, SimPort
from rmq.sim.world import EPOCH_S, SimError, World

#: between the last shutdown trigger and the end of a process
EXIT_DELAY_S = 0.01

#: a steady clock is so far from 0 or from the wall clock, from and to: code that mixes up the two is wrong by days
STEADY_S = (1e6, 1e8)
#: a wall clock that is corrected jumps about so often, at most so far
JUMP_EVERY_S = 10.0
JUMP_S = 3.0

Builder = Callable[[Platform], IService]


class WallClock:
    """
    What a machine shows as the time, in seconds since 1970.

    ``ahead_s`` is how far it is from the right time, ``rate`` how fast it goes; :meth:`wander` adds corrections.
    """

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.rate = 1.0
        self._next_jump_s = float("inf")
        self._rng = Random(0)

    def wander(self, rng: Random) -> None:
        """From now on be corrected now and then, forward or back."""
        self._rng = rng
        self._next_jump_s = 0.0

    def at(self, now_s: float) -> float:
        """Return what it shows at a moment of simulated time, which never goes back."""
        while now_s >= self._next_jump_s:
            self._next_jump_s += self._rng.expovariate(1 / JUMP_EVERY_S)
            self.ahead_s += self._rng.uniform(-JUMP_S, JUMP_S)
        return EPOCH_S + self.ahead_s + now_s * self.rate


class Node:
    """One machine: a name, an address, a disk, a clock, and at most one process."""

    def __init__(self, world: World, net: SimNet, name: str) -> None:
        if name in world.nodes:
            raise ValueError(f"there is a node {name} already")
        self.world = world
        self.net = net
        self.name = name
        self.address = f"10.0.0.{len(world.nodes) + 1}"
        self.disk = SimDisk(self)
        self.incarnation = 0
        self.powered = True
        self.process: Process | None = None
        self.service: IService | None = None
        #: what the last process left behind when it ended by itself
        self.leaks: list[str] = []
        #: called when the power is about to fail
        self.before_crash: Callable[[], object] = lambda: None
        self._builder: Builder | None = None
        self.wall = WallClock()
        world.nodes[name] = self
        net.add(self)

    def seconds(self) -> float:
        """What this machine's wall clock shows, seconds since 1970."""
        return self.wall.at(self.world.now_s)

    def step_clock(self, seconds: float) -> None:
        """Let the clock jump, as after a correction; timers that run are not moved."""
        self.world.note(self.name, "clock step", seconds)
        self.wall.ahead_s += seconds

    def start(self, build: Builder | None = None) -> IService | None:
        """
        Start a process, with the service that ``build`` makes of its platform (or the one of the start before).

        Switches the machine on when it was off. An exception of ``build`` or of startService ends the process and is
        passed on.
        """
        if self.process is not None:
            raise SimError(f"{self.name} runs already")
        self._builder = build or self._builder
        self.powered = True
        self.incarnation += 1
        self.leaks = []
        self.world.note(self.name, "start", self.incarnation)
        self.process = process = Process(self)
        self.net.kick()
        if self._builder is None:
            return None
        started = False
        try:
            self.service = self._builder(platform_for(self))
            self.service.privilegedStartService()
            self.service.startService()
            process.addSystemEventTrigger("before", "shutdown", self.service.stopService)
            started = True
        finally:
            if not started:
                self.kill()
        return self.service

    @property
    def is_ending(self) -> bool:
        """True while the process runs its shutdown triggers."""
        return self.process is not None and self.process.is_ending

    def stop(self) -> Deferred[None]:
        """End the process in order: stop its service, run its shutdown triggers. Fires when it is gone."""
        if self.process is None:
            return succeed(None)
        return self.process.shut_down()

    def kill(self) -> None:
        """End the process at once, like ``kill -9``; what it wrote stays in the page cache."""
        if self.process is not None:
            self.world.note(self.name, "killed")
            self._gone(self.process)

    def crash(self) -> None:
        """Switch the machine off: unsynced writes are kept, dropped or torn as the seed wants; peers hear nothing."""
        self.world.note(self.name, "power failure")
        self.before_crash()
        self.powered = False
        if self.process is not None:
            self._gone(self.process)
        self.disk.crash()

    def exited(self, process: Process) -> None:
        """The process ended by itself, after its shutdown triggers."""
        self.leaks = process.leaks()
        self.world.note(self.name, "exit", len(self.leaks))
        self._gone(process)

    def _gone(self, process: Process) -> None:
        self.process = self.service = None
        process.die()
        self.net.process_gone(process)
        self.disk.process_gone()


@implementer(IReactorTime, IReactorTCP, IReactorFromThreads)
class Process:
    """
    The reactor of one incarnation: time, TCP, shutdown triggers.

    It has no threads, so ``callFromThread`` only keeps the order of its calls. Nothing of it ever runs after its end.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.alive = True
        self.running = True
        self.ports: dict[int, SimPort] = {}
        self._calls: dict[DelayedCall, None] = {}
        self._from_threads: list[Callable[[], object]] = []
        self._triggers: dict[int, tuple[str, str, Callable[[], object]]] = {}
        self._next_trigger = 1
        self._ending: Deferred[None] | None = None
        rng = node.world.rng_for(node.name, node.incarnation, "steady")
        self._steady_base_s = rng.choice((0.0, EPOCH_S)) + rng.uniform(*STEADY_S)

    # -- IReactorTime

    def seconds(self) -> float:
        """The steady time, which nobody can set; days away from the wall time, on either side of it."""
        return self._steady_base_s + self.node.world.now_s

    def wall_seconds(self) -> float:
        return self.node.seconds()

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kwargs: object) -> IDelayedCall:
        bare = partial(callable, *args, **kwargs) if args or kwargs else callable
        call = self.node.world.schedule(delay, bare, base_s=self._steady_base_s, forget=self._forget)
        if self.alive:
            self._calls[call] = None
        else:
            call.cancel()
        return call

    def getDelayedCalls(self) -> list[IDelayedCall]:
        return list(self._calls)

    # -- IReactorTCP

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> SimPort:
        listening = SimPort(self, port, factory, interface)
        listening.startListening()
        return listening

    def connectTCP(
        self,
        host: str,
        port: int,
        factory: Any,
        timeout: float = 30.0,
        bindAddress: tuple[str, int] | None = None,
    ) -> SimConnector:
        connector = SimConnector(self, host, port, factory, timeout)
        connector.connect()
        return connector

    # -- the rest of a reactor that the product uses

    def callFromThread(self, callable: Callable[..., object], *args: object, **kwargs: object) -> None:
        self._from_threads.append(lambda: callable(*args, **kwargs))
        if len(self._from_threads) == 1:
            self.callLater(0, self._run_from_threads)

    def callWhenRunning(self, callable: Callable[..., object], *args: object, **kwargs: object) -> None:
        self.callLater(0, callable, *args, **kwargs)

    def resolve(self, name: str, timeout: tuple[int, ...] = ()) -> Deferred[str]:
        """Return the address of a node by its name; addresses stand for themselves."""
        address = self.node.net.address_of(name, self.node)
        found: Deferred[str] = Deferred()
        if address is None:
            found.errback(DNSLookupError(name))
        else:
            found.callback(address)
        return found

    def addSystemEventTrigger(
        self, phase: str, eventType: str, callable: Callable[..., object], *args: object, **kwargs: object
    ) -> int:
        assert phase in ("before", "during", "after"), phase
        self._next_trigger += 1
        self._triggers[self._next_trigger] = (phase, eventType, lambda: callable(*args, **kwargs))
        return self._next_trigger

    def removeSystemEventTrigger(self, triggerID: int) -> None:
        del self._triggers[triggerID]

    def stop(self) -> None:
        """What ``reactor.stop()`` does: the process ends in order, soon."""
        self.callLater(0, self.shut_down)

    # -- the life of the process

    @property
    def is_ending(self) -> bool:
        return self._ending is not None

    def shut_down(self) -> Deferred[None]:
        """Run the shutdown triggers, phase by phase, and end; fires when the process is gone."""
        ended: Deferred[None] = Deferred()
        if self._ending is not None:
            self._ending.addBoth(lambda result: ended.callback(None))
            return ended
        self._ending = Deferred()
        self.node.world.note(self.node.name, "shutdown")
        waiting = DeferredList(self._fire("before"), consumeErrors=True)
        waiting.addCallback(self._after_shutdown)
        self._ending.addBoth(lambda result: ended.callback(None))
        return ended

    def leaks(self) -> list[str]:
        """Describe what should not be there any more after an orderly end."""
        now_s = self.seconds()
        timers = [f"timer in {call.getTime() - now_s:.3f} s" for call in self._calls]
        ports = [f"port {port}" for port in self.ports]
        open_files = [f"open file {path}" for path in self.node.disk.open_paths()]
        return timers + ports + self.node.net.open_connections(self) + open_files

    def die(self) -> None:
        """End at once; timers will not run."""
        self.alive = self.running = False
        for call in list(self._calls):
            call.cancel()
        self._from_threads.clear()
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.callback(None)

    def _fire(self, phase: str) -> list[Deferred[Any]]:
        chosen = [call for when, event, call in self._triggers.values() if (when, event) == (phase, "shutdown")]
        results = [maybeDeferred(call) for call in chosen]
        for result in results:
            result.addErrback(self._trigger_failed)
        return results

    def _trigger_failed(self, failure: Any) -> None:
        with self.node.world.trap(f"a shutdown trigger of {self.node.name}"):
            failure.raiseException()

    def _after_shutdown(self, _: object) -> None:
        if not self.alive:
            return
        self._fire("during")
        self._fire("after")
        # A moment more, in which what closed just now tells its owners.
        self.node.world.schedule(EXIT_DELAY_S, self._exit)

    def _exit(self) -> None:
        if self.alive:
            self.node.exited(self)

    def _forget(self, call: DelayedCall) -> None:
        self._calls.pop(call, None)

    def _run_from_threads(self) -> None:
        calls, self._from_threads = self._from_threads, []
        for call in calls:
            with self.node.world.trap("callFromThread"):
                call()


def platform_for(node: Node) -> Platform:
    """Return what a role on ``node``'s present process stands on."""
    assert node.process is not None, f"{node.name} has no process"
    return Platform(
        reactor=node.process,
        disk=node.disk,
        rng=node.world.rng_for(node.name, node.incarnation),
        endpoint_factory=_dial,
    )


def _dial(reactor: Any, host: str, port: int) -> IStreamClientEndpoint:
    return TCP4ClientEndpoint(reactor, host, port, timeout=CONNECT_TIMEOUT_S)
