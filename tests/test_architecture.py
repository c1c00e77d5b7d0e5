"""The direction of imports, and what only the edges of the system may touch, as one table and one ban list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).resolve().parent.parent

#: package of rmq -> packages of rmq that it may import (itself included implicitly)
MAY_IMPORT: dict[str, set[str]] = {
    "wire": set(),
    "runtime": {"wire"},
    "remoting": {"runtime", "wire"},
    "store": {"runtime", "wire"},
    "ha": {"store", "runtime", "wire"},
    "namesrv": {"remoting", "runtime", "wire"},
    "broker": {"ha", "store", "remoting", "runtime", "wire"},
    "sim": {"broker", "namesrv", "ha", "store", "remoting", "runtime", "wire"},
    "admin": {"remoting", "runtime", "wire"},
    "local": {"runtime"},
}

#: the Spark job reads stores with these modules and nothing else of rmq
SPARK_MAY_IMPORT = {"rmq.wire.record", "rmq.wire.compiled", "rmq.wire.loosejson", "rmq.store.layout"}

#: modules that those above may import of rmq, so that the job ships without Twisted
PURE_MODULES = {
    "rmq/wire/record.py": {"rmq.wire"},
    "rmq/wire/loosejson.py": set(),
    # chooses the compiled kernel, imports the standard library only
    "rmq/wire/compiled.py": set(),
    "rmq/store/layout.py": {"rmq.wire"},
}

BANNED_NAMES = {
    "time.time",
    "time.monotonic",
    "time.perf_counter",
    "time.sleep",
    "os.urandom",
    "uuid.uuid4",
    "datetime.now",
    "datetime.datetime.now",
    "datetime.utcnow",
    "twisted.internet.reactor",
    "twisted.internet.task.LoopingCall",
}
BANNED_MODULES = {"threading", "random", "secrets", "uuid"}
#: what `typing` needs of a banned module is harmless: the class of an injected generator, never the module's functions
ALLOWED_FROM = {("random", "Random")}

EXCEPT_EXCEPTION_FILES = {
    "rmq/remoting/responders.py",
    "rmq/remoting/protocol.py",
    "rmq/runtime/clock.py",
    "rmq/runtime/leanreactor.py",
}


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield every Python file below ``folders`` as (path relative to the root, syntax tree)."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Yield (module, name or None) of every import statement, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "." * node.level + (node.module or ""), None
            for alias in node.names:
                yield node.module or "", alias.name


def is_edge(path: str) -> bool:
    """The files that join the product to the operating system."""
    return path.startswith("rmq/runtime/") or path.endswith(("/tap.py", "/__main__.py")) or path == "rmq/local.py"


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def used_modules(tree: ast.Module) -> set[str]:
    """Return the rmq modules (and possibly names) that are imported, in both spellings."""
    found = set()
    for module, name in imports(tree):
        found.add(module)
        if name is not None:
            found.add(f"{module}.{name}")
    return {name for name in found if name == "rmq" or name.startswith("rmq.")}


def banned_uses(tree: ast.Module) -> Iterator[str]:
    for module, name in imports(tree):
        full = f"{module}.{name}" if name else module
        if (module in BANNED_MODULES and (module, name) not in ALLOWED_FROM) or full in BANNED_NAMES:
            yield f"import of {full}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and dotted(node) in BANNED_NAMES:
            yield f"{dotted(node)} in line {node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "LoopingCall"):
            yield f"{node.func.id}() in line {node.lineno}"


def forbidden_imports(path: str, tree: ast.Module) -> Iterator[str]:
    package = path.split("/")[1].removesuffix(".py")
    allowed = MAY_IMPORT.get(package, set()) | {package, "__init__"}
    for name in sorted(used_modules(tree)):
        parts = name.split(".")
        if len(parts) > 1 and parts[1] not in allowed:
            yield f"{path} imports {name}"


class ImportDirectionTests(SynchronousTestCase):
    def test_every_package_is_in_the_table(self) -> None:
        """A new package of rmq must say what it may import."""
        packages = {path.split("/")[1].removesuffix(".py") for path, _ in modules("rmq")} - {"__init__"}
        self.assertEqual(packages - set(MAY_IMPORT), set())

    def test_nothing_points_upward(self) -> None:
        """Each package imports only what the table allows."""
        wrong = [
            line for path, tree in modules("rmq") if path != "rmq/__init__.py" for line in forbidden_imports(path, tree)
        ]
        self.assertEqual(wrong, [])

    def test_wire_is_pure(self) -> None:
        """Nothing under rmq/wire imports Twisted."""
        wrong = [
            f"{path} imports {module}"
            for path, tree in modules("rmq/wire")
            for module, _ in imports(tree)
            if module.split(".")[0] in ("twisted", "zope")
        ]
        self.assertEqual(wrong, [])

    def test_spark_job_reads_stores_with_few_modules(self) -> None:
        """The audit imports the record format, the store layout and the JSON reader, and all load without Twisted."""
        wrong = []
        for path, tree in modules("spark"):
            for name in used_modules(tree):
                if not any(
                    name == ok or name.startswith(ok + ".") or ok.startswith(name + ".") for ok in SPARK_MAY_IMPORT
                ):
                    wrong.append(f"{path} imports {name}")
        for path, allowed in PURE_MODULES.items():
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            wrong += [f"{path} imports {m}" for m, _ in imports(tree) if m.split(".")[0] in ("twisted", "zope")]
            wrong += [
                f"{path} imports {name}"
                for name in used_modules(tree)
                if not any(name == ok or name.startswith(ok + ".") for ok in allowed)
            ]
        self.assertEqual(wrong, [])


class EdgeTests(SynchronousTestCase):
    def test_clocks_chance_threads_and_files_enter_at_the_edges(self) -> None:
        """Outside rmq/runtime and the tap files nobody reaches for the outside world."""
        wrong = [f"{path}: {use}" for path, tree in modules("rmq") if not is_edge(path) for use in banned_uses(tree)]
        self.assertEqual(wrong, [])

    def test_few_places_catch_everything(self) -> None:
        """``except Exception`` stands in a few files only."""
        wrong = []
        for path, tree in modules("rmq"):
            if path in EXCEPT_EXCEPTION_FILES:
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.ExceptHandler):
                    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                    if any(kind is None or dotted(kind) in ("Exception", "BaseException") for kind in kinds):
                        wrong.append(f"{path}:{node.lineno}")
        self.assertEqual(wrong, [])

    def test_the_checks_can_fail(self) -> None:
        """A planted clock, thread, file, loop and upward import are each found."""
        planted = ast.parse(
            "import threading\nimport time\nfrom random import random\nfrom twisted.internet import reactor\n"
            "from rmq.broker.service import build_broker\n"
            "time.time()\nopen('x')\nLoopingCall(print)\n"
        )
        self.assertEqual(len(list(banned_uses(planted))), 6)
        self.assertEqual(len(list(forbidden_imports("rmq/store/x.py", planted))), 2)


class PluginFolderTests(SynchronousTestCase):
    def test_twisted_folders_stay_namespace_folders(self) -> None:
        """An __init__.py in twisted/ or twisted/plugins/ would hide Twisted itself."""
        self.assertEqual([str(p) for p in (ROOT / "twisted").rglob("__init__.py")], [])
