"""
Change the product on purpose, one small change at a time, and see whether a unit test fails.

``python -m tests.mutation`` (``tox -e mutation``) draws a repeatable sample of changes of the files in SCOPE, runs for
each of them the unit tests that execute the changed line, and prints a table and the survivors. ``docs/testing.md``
says how to read it.

The tests are collected once. Each mutation runs in a forked child that exchanges the code of one live function; a
change of what runs at import (a default, a constant) gets its own process that compiles the module from the new source.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fnmatch
import functools
import gc
import hashlib
import json
import os
import pickle
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import attrs
import hypothesis
import pytest

SCOPE = {
    **{package: (f"rmq/{package}/**/*.py",) for package in ("namesrv", "ha", "store", "remoting")},
    "broker": (
        *(f"rmq/broker/{name}.py" for name in ("tables", "topics", "groups", "offsets", "sessions", "locks")),
        *(f"rmq/broker/{name}.py" for name in ("filters", "longpoll", "delays", "offset_push", "responders/pulling")),
    ),
    "runtime": (
        *(f"rmq/runtime/disk/{name}.py" for name in ("files", "error", "syscalls", "realfile", "flusher", "statefile")),
    ),
    "sim": ("rmq/sim/checkers.py", "rmq/sim/lookups.py"),
}  # fmt: skip
TESTS = [*(f"tests/{package}" for package in SCOPE), "tests/test_numbers.py", "tests/test_config_defaults.py"]
# What a mutation may cost: seconds of tests by their measured times, the nearest and quickest first.
BUDGET_S = 60.0
# How long a test may take before the mutation counts as killed: CPU time, so that a busy machine kills nothing.
CPU_LIMIT_S, WALL_LIMIT_S, MEMORY_LIMIT = 10.0, 900, 6 << 30
ALLOWED = 0.05

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"),
    ast.Div: ("/", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}  # fmt: skip


@attrs.frozen(kw_only=True)
class Mutation:
    """Replace the bytes ``start`` to ``end`` by ``text``; ``outer`` is the function to exchange, None at import."""

    path: str
    function: str
    old: str
    new: str
    line: int = attrs.field(eq=False)
    last: int = attrs.field(eq=False)
    start: int = attrs.field(eq=False)
    end: int = attrs.field(eq=False)
    text: str = attrs.field(eq=False)
    outer: tuple[str, int] | None = attrs.field(eq=False)

    @property
    def package(self) -> str:
        return self.path.split("/")[1]

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def rank(self, seed: int, site_only: bool) -> str:
        """A draw that stays when other lines of the tree change."""
        parts = [str(seed), self.path, self.function, self.old] + ([] if site_only else [self.new])
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Finder:
    """All mutations of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.found = path, source, list[Mutation]()
        self._lines = [0, *(match.end() for match in re.finditer(b"\n", source)), len(source)]
        for node in ast.parse(source).body:
            self._walk(node, "", None)

    def _span(self, first: ast.AST, last: ast.AST | None = None) -> tuple[int, int]:
        """The bytes of a node, or from the start of one to the end of another."""
        last = last or first
        start = self._lines[first.lineno - 1] + first.col_offset  # type: ignore[attr-defined]
        return start, self._lines[last.end_lineno - 1] + last.end_col_offset  # type: ignore[attr-defined]

    def _changes(self, node: ast.AST, scope: str) -> Iterator[tuple[tuple[int, int], str]]:
        """What may be changed at this very node: bytes, and what replaces them."""

        def between(left: ast.AST, right: ast.AST, words: tuple[str, str]) -> Iterator[tuple[tuple[int, int], str]]:
            span = self._span(left)[1], self._span(right)[0]
            gap = self.source[span[0] : span[1]].decode()
            yield span, re.sub(re.escape(words[0]).replace(r"\ ", r"\s+"), words[1], gap, count=1)

        match node:
            case ast.Compare():
                for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                    yield from between(left, right, COMPARISONS[type(op)])
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from between(left, right, ("and", "or") if isinstance(node.op, ast.And) else ("or", "and"))
            case ast.BinOp(op=op) if type(op) in ARITHMETIC and not ast.unparse(node).startswith("os.O_"):
                yield from between(node.left, node.right, ARITHMETIC[type(op)])
            case ast.UnaryOp(op=ast.Not()):
                start, inner = self._span(node)[0], self._span(node.operand)[0]
                yield (start, inner), self.source[start:inner].decode().replace("not", "", 1).lstrip()
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):  # mostly "none"
                yield self._span(node), str(value)
            case ast.Constant(value=bool(value)):
                yield self._span(node), str(not value)
            case ast.Constant(value=int(value)):
                yield from ((self._span(node), str(other)) for other in {value + 1, 0, value * 10} - {value})
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield self._span(value), "None"
            case ast.If(test=test) | ast.IfExp(test=test):
                yield from ((self._span(test), text) for text in ("True", "False"))
            case ast.While(test=test):
                yield self._span(test), "False"
            case ast.comprehension():
                yield from ((self._span(test), "True") for test in node.ifs)
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
                yield self._span(node), "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if not scope.endswith("__init__.<locals>."):
                yield self._span(node), "pass"
            case ast.AugAssign():
                yield self._span(node), "pass"
                if words := ARITHMETIC.get(type(node.op)):
                    yield from between(node.target, node.value, (words[0] + "=", words[1] + "="))
            case ast.Break():
                yield self._span(node), "continue"
            case ast.Continue():
                yield self._span(node), "break"
            case ast.For(body=body):
                yield self._span(body[0], body[-1]), "pass"
            case ast.Call(func=ast.Name(id="min" | "max" as name)):
                yield self._span(node.func), {"min": "max", "max": "min"}[name]
            case ast.Call(args=[first, second, *_]) if not {type(first), type(second)} & {
                ast.Starred,
                ast.GeneratorExp,
            }:
                (a, b), (c, d) = self._span(first), self._span(second)
                yield (a, d), (self.source[c:d] + self.source[b:c] + self.source[a:b]).decode()

    def _walk(self, node: ast.AST, scope: str, outer: tuple[str, int] | None) -> None:
        if _is_left_out(node):
            return
        for (start, end), text in self._changes(node, scope):
            self._add(start, end, text, node, scope, outer)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return
        for field, value in ast.iter_fields(node):
            children = [
                child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)
            ]
            if field in ("annotation", "returns", "decorator_list", "bases", "keywords") and not isinstance(
                node, ast.Call
            ):
                continue
            inner, function = scope, outer
            if isinstance(node, ast.ClassDef):
                inner = f"{scope}{node.name}."
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and field == "body":
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                inner, function = f"{scope}{node.name}.<locals>.", outer or (f"{scope}{node.name}", first)
            for child in children:
                self._walk(child, inner, function)

    def _add(self, start: int, end: int, text: str, node: ast.AST, scope: str, outer: tuple[str, int] | None) -> None:
        first = self.source.rfind(b"\n", 0, start) + 1
        last = len(self.source) if (found := self.source.find(b"\n", end)) < 0 else found
        old, new = self.source[first:last], self.source[first:start] + text.encode() + self.source[end:last]
        line, until = self.source.count(b"\n", 0, start) + 1, self.source.count(b"\n", 0, end) + 1
        if isinstance(node, ast.For):  # its first line is enough
            old = self.source.splitlines()[node.lineno - 1]
            new = old + b" pass"
        self.found.append(
            Mutation(
                path=self.path,
                function=scope.replace(".<locals>", "").rstrip(".") or "<module>",
                old=" ".join(old.decode().split()),
                new=" ".join(new.decode().split()),
                line=line,
                last=until,
                start=start,
                end=end,
                text=text,
                outer=outer,
            )
        )


def _is_left_out(node: ast.AST) -> bool:
    """Texts, logs, types, and what only a debugger reads."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Raise(exc=ast.Call(func=ast.Name(id="AssertionError"))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.ClassDef(bases=[base, *_]) if "Protocol" in ast.unparse(base).split("["):
            return True
        case ast.keyword(arg="repr" | "kw_only" | "eq" | "strict"):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name))):
            return name in ("log", "_log")
        case ast.Expr(value=ast.Call() as call):
            return _is_left_out(call)
    return False


def sample(mutations: Iterable[Mutation], number: int, seed: int) -> list[Mutation]:
    """``number`` mutations of different lines, the same share for every package that has so many; 0 is all."""
    sites: dict[str, list[Mutation]] = defaultdict(list)
    for mutation in mutations:
        sites[mutation.rank(seed, site_only=True)].append(mutation)
    shares: dict[str, list[Mutation]] = defaultdict(list)
    for site in sorted(sites):
        for mutation in sorted(sites[site], key=lambda mutation: mutation.rank(seed, site_only=False))[
            : 1 if number else None
        ]:
            shares[mutation.package].append(mutation)
    if not number:
        return [mutation for share in shares.values() for mutation in share]
    drawn: list[Mutation] = []
    for left, share in zip(range(len(shares), 0, -1), sorted(shares.values(), key=len), strict=True):
        drawn += share[: -(-(number - len(drawn)) // left)]
    return drawn


# which tests execute which line


@attrs.define
class Facts:
    """What one test executes (a bit for each line, by path), how long it takes, and whether it passes."""

    stamp: str
    seconds: float
    passes: bool
    lines: dict[str, int]


def _uses(root: Path, mutation: Mutation) -> dict[str, int]:
    """The lines of the product and of tests that use the name that a statement run at import assigns."""
    if not (name := re.match(r"(\w+)\s*[:=]", mutation.old)):
        return {}
    word = re.compile(rf"\b{name[1]}\b")
    return {
        str(path.relative_to(root)): sum(
            1 << n for n, line in enumerate(path.read_text().splitlines(), 1) if word.search(line)
        )
        for path in [*root.glob("rmq/**/*.py"), *root.glob("tests/**/test_*.py")]
        if str(path.relative_to(root)) != mutation.path
    }


def _stamp(root: Path, test: str, paths: Iterable[str]) -> str:
    """Changes when the test's file or one of the files that it executes changes."""
    digest = hashlib.sha256()
    for path in [test.split("::")[0], *sorted(paths)]:
        digest.update(_file_digest(root / path))
    return digest.hexdigest()


@functools.cache
def _file_digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest() if path.exists() else b""


def measure(root: Path, items: list[pytest.Item], run: Callable[[pytest.Item], bool]) -> dict[str, Facts]:
    """Run every test once under coverage.py, a context each."""
    import coverage

    cover = coverage.Coverage(data_file=None, config_file=False, include=[f"{root}/rmq/*"])
    cover.start()
    seconds, passes = {}, {}
    for item in items:
        cover.switch_context(item.nodeid)
        began = time.process_time()
        passes[item.nodeid] = run(item)
        seconds[item.nodeid] = time.process_time() - began
    cover.stop()
    data = cover.get_data()
    lines: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in data.measured_files():
        name = str(Path(path).relative_to(root))
        for line, tests in data.contexts_by_lineno(path).items():
            for test in tests:
                lines[test][name] |= 1 << line
    return {
        test: Facts(_stamp(root, test, lines[test]), seconds[test], passes[test], dict(lines[test])) for test in seconds
    }


# running the mutations, as a plugin of pytest


@attrs.define
class Result:
    mutation: Mutation
    outcome: str
    tests: int
    seconds: float
    killer: str = ""


class Runner:
    """Takes the place of pytest's own loop over the collected tests."""

    def __init__(self, options: argparse.Namespace, mutations: list[Mutation], sources: dict[str, bytes]) -> None:
        self._options, self._mutations, self._sources = options, mutations, sources
        self._root = Path(options.root)
        self._failed = False
        self._facts: dict[str, Facts] = {}
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[tuple[str, str, int], list[types.FunctionType]] = {}
        self.results: list[Result] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    def _passes(self, item: pytest.Item) -> bool:
        self._failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self._failed

    def run_in_order(self, tests: list[str], limits: list[float], killer: str) -> int:
        """0 if all pass, 1 at the first that fails; a test that takes more CPU time than its limit ends the process."""
        for test, limit in zip(tests, limits, strict=True):
            Path(killer).write_text(test)
            signal.setitimer(signal.ITIMER_VIRTUAL, limit)
            if not self._passes(self._items[test]):
                return 1
        return 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        if self._options.inner:
            job = json.loads(Path(self._options.inner).read_text())
            os._exit(self.run_in_order(job["tests"], job["limits"], job["killer"]))
        self._functions = live_functions(self._root)
        gc.collect()
        gc.freeze()
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            self._measure(Path(folder), Path(self._options.coverage))
            self._run_all(Path(folder))
        return True

    def _child(self, folder: Path, work: Callable[[], int]) -> int:
        """Fork a process with its own group, temporary folder, limits and output."""
        folder.mkdir()
        sys.stdout.flush()
        if pid := os.fork():
            return pid
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            status = work()
        except BaseException:  # noqa: BLE001 - the child must not go on as if it were the parent
            traceback.print_exc()
            status = 1
        os._exit(status)

    def _measure(self, folder: Path, cache: Path) -> None:
        known: dict[str, Facts] = pickle.loads(cache.read_bytes()) if cache.exists() else {}
        stale = [
            item
            for test, item in self._items.items()
            if test not in known or known[test].stamp != _stamp(self._root, test, known[test].lines)
        ]
        known = {test: facts for test, facts in known.items() if test in self._items}
        if stale:
            print(f"\nmeasuring what {len(stale)} tests execute", flush=True)
            parts = [stale[index :: self._options.processes] for index in range(self._options.processes)]
            pids = [
                self._child(folder / f"measure-{index}", functools.partial(self._save, part, folder / f"part-{index}"))
                for index, part in enumerate(parts)
            ]
            for index, pid in enumerate(pids):
                if os.waitpid(pid, 0)[1]:
                    raise SystemExit(
                        f"measuring failed:\n{(folder / f'measure-{index}' / 'output').read_text()[-4000:]}"
                    )
                known |= pickle.loads((folder / f"part-{index}").read_bytes())
            cache.parent.mkdir(parents=True, exist_ok=True)
            cache.write_bytes(pickle.dumps(known))
        self._facts = {test: facts for test, facts in known.items() if facts.passes}
        for test in known.keys() - self._facts.keys():
            print(f"left out, it fails without any mutation: {test}")

    def _save(self, items: list[pytest.Item], path: Path) -> int:
        path.write_bytes(pickle.dumps(measure(self._root, items, self._passes)))
        return 0

    def _choose(self, mutation: Mutation) -> list[str]:
        """The tests that execute the changed lines, the nearest and quickest first, until the budget is used up."""
        wanted = {mutation.path: (1 << mutation.last + 1) - (1 << mutation.line)}
        if mutation.outer is None:  # runs at import: what executes a line that uses the name, or any of this file
            wanted = {mutation.path: -1} | _uses(self._root, mutation)
        near, stem = f"tests/{mutation.package}/", f"_{Path(mutation.path).stem}."
        chosen = []
        for test, facts in self._facts.items():
            file = test.split("::")[0]
            named = wanted.get(file) or (mutation.outer is None and stem in file)
            if named or any(facts.lines.get(path, 0) & lines for path, lines in wanted.items()):
                distance = not wanted.get(file), stem not in file, not test.startswith(near)
                chosen.append((*distance, facts.seconds, test))
        chosen.sort()
        total = 0.0
        within: list[str] = []
        for *_, seconds, test in chosen:
            total += seconds
            if within and total > self._options.budget:
                break
            within.append(test)
        return within

    def _start(self, mutation: Mutation, tests: list[str], folder: Path) -> int:
        path = str(self._root / mutation.path)
        source = self._sources[mutation.path]
        source = source if self._options.check else mutation.apply(source)
        limits = [self._options.limit + 10 * self._facts[test].seconds for test in tests]

        def work() -> int:
            killer = str(folder / "killer")
            functions = self._functions.get((path, *mutation.outer), []) if mutation.outer else []
            if exchange(functions, path, source):
                return self.run_in_order(tests, limits, killer)
            job = {"path": path, "source": source.decode(), "tests": tests, "limits": limits, "killer": killer}
            (folder / "job").write_text(json.dumps(job))
            files = sorted({test.split("::")[0] for test in tests})
            command = [sys.executable, "-m", __spec__.name, "--root", str(self._root), "--inner", str(folder / "job")]
            return os.execv(sys.executable, [*command, *files])

        return self._child(folder, work)

    def _run_all(self, folder: Path) -> None:
        running: dict[int, tuple[Mutation, int, float, Path]] = {}
        waiting = list(enumerate(self._mutations))
        while waiting or running:
            while waiting and len(running) < self._options.processes:
                number, mutation = waiting.pop(0)
                tests = self._choose(mutation)
                if not tests:
                    self._note(Result(mutation, "survived", 0, 0.0))
                    continue
                place = folder / str(number)
                running[self._start(mutation, tests, place)] = mutation, len(tests), time.monotonic(), place
            for pid, (mutation, count, began, place) in list(running.items()):
                seconds = time.monotonic() - began
                if seconds > WALL_LIMIT_S:
                    os.killpg(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    continue
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # what the tests may have started
                code = os.waitstatus_to_exitcode(status)
                outcome = {0: "survived", -signal.SIGVTALRM: "timeout", -signal.SIGKILL: "timeout"}.get(code, "killed")
                killer = (place / "killer").read_text() if (place / "killer").exists() else "import"
                self._note(Result(mutation, outcome, count, seconds, killer if outcome != "survived" else ""))
                shutil.rmtree(place, ignore_errors=True)
                del running[pid]
            time.sleep(0.02)

    def _note(self, result: Result) -> None:
        self.results.append(result)
        if self._options.verbose or result.outcome == "survived":
            done = f"{len(self.results)}/{len(self._mutations)} {result.outcome}"
            print(
                f"{done} after {result.seconds:.1f} s, {result.tests} tests, {result.killer}\n{shown(result.mutation)}"
            )
            sys.stdout.flush()


def shown(mutation: Mutation) -> str:
    return f"{mutation.path}:{mutation.line} {mutation.function}\n  - {mutation.old}\n  + {mutation.new}"


def live_functions(root: Path) -> dict[tuple[str, str, int], list[types.FunctionType]]:
    """The functions of the product by what a compiled code says of itself: file, name, first line."""
    found: dict[tuple[str, str, int], list[types.FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if isinstance(thing, types.FunctionType) and thing.__code__.co_filename.startswith(f"{root}/"):
            found[_identity(thing.__code__)].append(thing)
    return found


def _identity(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def exchange(functions: list[types.FunctionType], path: str, source: bytes) -> bool:
    """Give live functions the code that ``source`` has for them; False if that is not possible."""
    wanted = {_identity(function.__code__) for function in functions}
    codes = [compile(source, path, "exec", dont_inherit=True)]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    matching = [code for code in codes if _identity(code) in wanted]
    if len(matching) != 1:
        return False
    try:
        for function in functions:
            function.__code__ = matching[0]
    except ValueError:  # other free variables
        return False
    return bool(functions)


def compile_instead(path: str, source: str) -> None:
    """From now on the import of the file at ``path`` compiles ``source``."""
    original = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> types.CodeType | None:
        if os.path.realpath(loader.path) == path:
            return compile(source, path, "exec", dont_inherit=True)
        return original(loader, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


# the report

Key = tuple[str, str, str, str]


def key(mutation: Mutation) -> Key:
    return mutation.path, mutation.function, mutation.old, mutation.new


def read_known(path: Path) -> dict[Key, str]:
    """The reasons of the survivors that the file lists."""
    known = tomllib.loads(path.read_text()).get("survivor", []) if path.exists() else []
    return {(entry["path"], entry["function"], entry["old"], entry["new"]): entry["reason"] for entry in known}


def as_toml(mutation: Mutation, reason: str) -> str:
    names = ("path", "function", "old", "new")
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in zip(names, key(mutation), strict=True)
    ]
    return "\n".join(["[[survivor]]", *lines, f"reason = {json.dumps(reason, ensure_ascii=False)}", ""])


def report(results: list[Result], known: dict[Key, str]) -> tuple[str, bool]:
    """The table, the survivors, and whether the run is good: few survivors, a reason for each."""
    count = Counter((result.mutation.package, result.outcome) for result in results)
    lines = [_row("package", "mutations", "killed", "timeouts", "survived")]
    for package in [*SCOPE, "all"]:
        several = [*SCOPE] if package == "all" else [package]
        of = [sum(count[each, outcome] for each in several) for outcome in ("killed", "timeout", "survived")]
        lines.append(_row(package, sum(of), *of))
    survivors = [result for result in results if result.outcome == "survived"]
    without = 0
    for result in sorted(survivors, key=lambda result: (result.mutation.path, result.mutation.line)):
        reason = known.get(key(result.mutation), "")
        without += not reason
        reason = f"harmless: {reason}" if reason else f"NO REASON; {result.tests} tests execute it"
        lines += ["", shown(result.mutation), f"  {reason}"]
    few = len(survivors) <= ALLOWED * len(results)
    share = f"{100 * len(survivors) / max(len(results), 1):.1f} %, allowed {100 * ALLOWED:.0f} %"
    lines += ["", f"{len(survivors)} of {len(results)} survive ({share}), {without} without a reason"]
    return "\n".join(lines), few and not without


def _row(first: str, *cells: object) -> str:
    return f"{first:10}" + "".join(f"{cell:>11}" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.split("\n\n")[0].strip())
    parser.add_argument(
        "tests", nargs="*", default=TESTS, help="folders or files of tests (default: those of the packages)"
    )
    parser.add_argument("--number", type=int, default=420, help="how many mutations; 0: all (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which sample (default %(default)s)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only files that match, as rmq/store/*")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--budget", type=float, default=BUDGET_S, help="seconds of tests for one mutation (default %(default)s)"
    )
    parser.add_argument(
        "--limit", type=float, default=CPU_LIMIT_S, help="CPU seconds of a test that hangs (default %(default)s)"
    )
    parser.add_argument(
        "--known", type=Path, default=Path("tests/mutation_survivors.toml"), help="the reasons of survivors"
    )
    parser.add_argument("--listed", action="store_true", help="run the mutations of --known instead of a sample")
    parser.add_argument(
        "--save", type=Path, help="write the survivors without a reason to this file, in the form of --known"
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing: every 'mutation' must survive, or a test is flaky"
    )
    parser.add_argument("--verbose", action="store_true", help="print killed mutations too, with the test")
    parser.add_argument(
        "--coverage", type=Path, default=Path(".mutation"), help="keeps what each test executes (default %(default)s)"
    )
    parser.add_argument("--root", type=Path, default=Path.cwd(), help=argparse.SUPPRESS)
    parser.add_argument("--inner", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    wanted = {"RMQ_PURE_PYTHON": "1", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "RMQ_SEED": "1"}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]], os.environ | wanted)
    options.root = options.root.resolve()
    if options.inner:
        job = json.loads(options.inner.read_text())
        compile_instead(job["path"], job["source"])
    sources = {
        name: path.read_bytes()
        for path in sorted({path for patterns in SCOPE.values() for one in patterns for path in options.root.glob(one)})
        if fnmatch.fnmatch(name := str(path.relative_to(options.root)), options.only)
    }
    found = [mutation for path, source in sources.items() for mutation in Finder(path, source).found]
    known = read_known(options.known)
    chosen = [m for m in found if key(m) in known] if options.listed else sample(found, options.number, options.seed)
    # with RMQ_SEED every run draws the same examples; none of a mutation is remembered for the next one
    hypothesis.settings.register_profile("mutation", database=None, deadline=None)
    hypothesis.settings.load_profile("mutation")
    runner = Runner(options, chosen, sources)
    quiet = ["-q", "--capture=sys", "-p", "no:cacheprovider", "-o", "timeout=0", "-W", "ignore:Module already imported"]
    arguments = [*quiet, "-m", "not real and not smoke and not spark and not campaign"]
    status = pytest.main([*arguments, *options.tests], plugins=[runner])
    if status != pytest.ExitCode.OK:
        return 2
    text, good = report(runner.results, known)
    print(text)
    if options.save:
        options.save.write_text(
            "\n".join(
                as_toml(r.mutation, "")
                for r in runner.results
                if r.outcome == "survived" and not known.get(key(r.mutation))
            )
        )
    if options.listed:
        for gone in known.keys() - {key(r.mutation) for r in runner.results if r.outcome == "survived"}:
            print("listed, but killed or no longer in the code:", *gone)
    return not good


if __name__ == "__main__":
    raise SystemExit(main())
