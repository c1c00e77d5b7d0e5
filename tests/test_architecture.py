"""The direction of imports, and what only the edges of the system may touch, as one table and one ban list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).resolve().parent.parent

#: package of rmq -> packages of rmq that it may import (itself included implicitly)
MAY_IMPORT: dict[str, set[str]] = {
    "__main__": set(),
    "container": {"runtime"},
    "errors": set(),
    "wire": {"errors"},
    "runtime": {"wire"},
    "remoting": {"errors", "runtime", "wire"},
    "store": {"runtime", "wire"},
    "ha": {"store", "runtime", "wire"},
    "namesrv": {"errors", "remoting", "runtime", "wire"},
    "broker": {"errors", "ha", "store", "remoting", "runtime", "wire"},
    "sim": {"broker", "client", "errors", "namesrv", "ha", "store", "remoting", "runtime", "tx", "wire"},
    # the servers for `config check`, which reads their files with their own code
    "admin": {"broker", "client", "errors", "namesrv", "remoting", "runtime", "store", "tx", "wire"},
    "local": {"runtime"},
    "client": {"errors", "wire"},
    "aio": {"client", "errors", "runtime", "wire"},
    "blocking": {"aio", "client", "errors", "wire"},
    "tx": {"client", "errors", "remoting", "runtime", "wire"},
    "testing": {
        "aio",
        "blocking",
        "broker",
        "client",
        "errors",
        "local",
        "namesrv",
        "remoting",
        "runtime",
        "sim",
        "store",
        "tx",
        "wire",
    },
}

#: the parts of the test kit that start processes, wait for them, or run a test's loop
KIT_EDGES = {f"rmq/testing/{name}.py" for name in ("blocking", "handle", "plugin", "server", "tx")}

#: the Spark job reads stores with these modules and nothing else of rmq
SPARK_MAY_IMPORT = {"rmq.wire.record", "rmq.wire.compiled", "rmq.wire.loosejson", "rmq.store.layout"}

#: folder of spark/rmq_audit -> folders of it that it may import (itself included implicitly)
AUDIT_MAY_IMPORT: dict[str, set[str]] = {
    "worker": set(),
    "engine": {"worker"},
    "driver": {"engine", "worker"},
    "report": {"driver", "worker"},
    "cli": {"driver", "engine", "report", "worker"},
}

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
    "rmq/broker/longpoll.py",
    "rmq/broker/replylane.py",
    "rmq/store/dispatch.py",
    "rmq/remoting/responders.py",
    "rmq/remoting/protocol.py",
    "rmq/runtime/clock.py",
    "rmq/runtime/disk/flusher.py",
    "rmq/runtime/leanreactor.py",
    "rmq/client/flows/attempt.py",
    "rmq/client/flows/usercode.py",
}


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield every Python file below ``folders`` as (path relative to the root, syntax tree)."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), parsed(path)


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file; the checks share it, so none may change it."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
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
    return (
        path.startswith("rmq/runtime/")
        or path.endswith(("/tap.py", "/__main__.py"))
        or path in KIT_EDGES
        or path
        in (
            "rmq/container.py",
            "rmq/local.py",
            "rmq/aio/host.py",
            "rmq/tx/host.py",
            "rmq/client/stacks.py",
            "rmq/tx/client.py",
            "rmq/blocking/client.py",
        )
    )


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


def run_time_imports(tree: ast.AST) -> Iterator[str]:
    """Yield what a module imports when it runs, in functions too, but not what it imports for annotations only."""
    if isinstance(tree, ast.If) and dotted(tree.test) == "TYPE_CHECKING":
        return
    if isinstance(tree, ast.Import | ast.ImportFrom):
        yield from (f"{module}.{name}" if name else module for module, name in imports(tree))
    for child in ast.iter_child_nodes(tree):
        yield from run_time_imports(child)


def import_graph(trees: Iterable[tuple[str, ast.Module]]) -> dict[str, set[str]]:
    """Return which modules of ``trees`` each of them imports when it runs."""
    found = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): tree for path, tree in trees}
    return {
        name: {
            module
            for used in run_time_imports(tree)
            for module in (used, used.rpartition(".")[0])
            if module in found and module != name and (module == used or used not in found)
        }
        for name, tree in found.items()
    }


class ImportDirectionTests(SynchronousTestCase):
    def test_no_import_circles(self) -> None:
        """No module of rmq needs, when it runs, a module that needs it; imports inside of functions count."""
        self.assertEqual(circles(import_graph(modules("rmq"))), [])
        planted = [("rmq/a.py", "def f(): from rmq import b"), ("rmq/b.py", "from rmq.a import f"), ("rmq/c.py", "")]
        planted += [("rmq/d.py", "if TYPE_CHECKING:\n    import rmq.e"), ("rmq/e.py", "import rmq.d")]
        self.assertEqual(circles(import_graph((path, ast.parse(text)) for path, text in planted)), ["rmq.a", "rmq.b"])

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
            tree = parsed(ROOT / path)
            wrong += [f"{path} imports {m}" for m, _ in imports(tree) if m.split(".")[0] in ("twisted", "zope")]
            wrong += [
                f"{path} imports {name}"
                for name in used_modules(tree)
                if not any(name == ok or name.startswith(ok + ".") for ok in allowed)
            ]
        self.assertEqual(wrong, [])


def audit_modules() -> dict[str, ast.Module]:
    """Return the modules of the audit that lie in its folders, by path from spark/rmq_audit."""
    return {
        path.removeprefix("spark/rmq_audit/"): tree
        for path, tree in modules("spark/rmq_audit")
        if path.count("/") == 3 and not path.endswith("__init__.py")
    }


def audit_imports(path: str, tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (path, folder/module) for what a module of the audit imports of the audit."""
    for module, name in imports(tree):
        parts = [*module.split("."), *([] if name is None else [name])]
        if parts[0] == "rmq_audit" and len(parts) > 2:
            yield path, "/".join(parts[1:3])


def wrong_audit_imports(path: str, tree: ast.Module) -> Iterator[str]:
    folder = path.split("/")[0]
    for _, name in audit_imports(path, tree):
        if name.split("/")[0] not in AUDIT_MAY_IMPORT[folder] | {folder}:
            yield f"{path} imports {name}"


def declares_work(tree: ast.Module) -> bool:
    """Whether a module has a statement ``NAME = Work(...)``."""
    return any(
        isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and dotted(node.value.func) == "Work"
        for node in tree.body
    )


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes that lie on a circle, or that only lead to one."""
    left = {node: targets & graph.keys() for node, targets in graph.items()}
    while free := [node for node, targets in left.items() if not targets & left.keys()]:
        for node in free:
            del left[node]
    return sorted(left)


class AuditFolderTests(SynchronousTestCase):
    def test_every_folder_is_in_the_table(self) -> None:
        """A new folder of the audit must say what it may import."""
        self.assertEqual({path.split("/")[0] for path in audit_modules()}, set(AUDIT_MAY_IMPORT))

    def test_imports_point_to_the_workers(self) -> None:
        """What is sent to Spark's executors needs no other folder; judging needs no report, and a report no options."""
        found = audit_modules()
        self.assertEqual([line for path, tree in found.items() for line in wrong_audit_imports(path, tree)], [])
        planted = ast.parse("from rmq_audit.driver import audit\nfrom rmq_audit.worker.scan import Scan\n")
        self.assertEqual(list(wrong_audit_imports("worker/x.py", planted)), ["worker/x.py imports driver/audit"])

    def test_each_check_has_a_driver_and_a_worker_file(self) -> None:
        """A worker file that declares work has a driver file of the same name, which uses it."""
        found = audit_modules()
        checks = sorted(path for path, tree in found.items() if path.startswith("worker/") and declares_work(tree))
        self.assertEqual(len(checks), 7, checks)
        for check in checks:
            driver = check.replace("worker/", "driver/")
            used = {name for _, name in audit_imports(driver, found[driver])}
            self.assertIn(check.removesuffix(".py"), used)

    def test_no_import_circles(self) -> None:
        """No module of the audit needs, while it is imported, a module that needs it."""
        graph: dict[str, set[str]] = {}
        for path, tree in audit_modules().items():
            # at the top level: not in functions, and not for annotations only
            body = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
            graph[path.removesuffix(".py")] = {name for _, name in audit_imports(path, body)}
        self.assertEqual(circles(graph), [])
        self.assertEqual(circles({"a": {"b"}, "b": {"a"}, "c": set()}), ["a", "b"])


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


class PackageTests(SynchronousTestCase):
    def test_reading_orders_name_what_there_is(self) -> None:
        """Every module that the reading order of a package's docstring names is in the package."""
        wrong, listed = [], 0
        for path, tree in modules("rmq"):
            if path.endswith("/__init__.py") and path.count("/") < 4:
                folder = ROOT / Path(path).parent
                for name in reading_order(ast.get_docstring(tree) or ""):
                    listed += 1
                    if not any((folder / f"{name}{end}").exists() for end in (".py", ".pyx", "/__init__.py")):
                        wrong.append(f"{path}: {name}")
        self.assertGreater(listed, 100)
        self.assertEqual(wrong, [])

    def test_every_package_says_what_it_is_for(self) -> None:
        """The docstring of each package has a purpose and what always holds."""
        silent = [
            path
            for path, tree in modules("rmq")
            if path.endswith("/__init__.py") and "hat always holds" not in (ast.get_docstring(tree) or "")
        ]
        self.assertEqual(silent, [])


def reading_order(text: str) -> Iterator[str]:
    """Yield the modules that the items of a package's docstring name before their colons."""
    for line in text.splitlines():
        if line.startswith("* `"):
            for part in line[2:].split("; "):
                yield from re.findall(r"`(\w+)`", part.split(": ")[0])


def functions(path: Path) -> set[str]:
    """Return the functions of a module, those of its classes as ``Class.function``."""
    found = set()
    for node in parsed(path).body:
        parts = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        found |= {f"{prefix}{part.name}" for part in parts if isinstance(part, kinds)}
    return found


def missing_functions(text: str) -> Iterator[str]:
    """Yield the names of the form ``module:function`` that name no function of ours."""
    for module, name in re.findall(r"`([a-z_.]+):([\w.]+)`", text):
        folder = ROOT / "spark" if module.startswith("rmq_audit") else ROOT
        path = folder / f"{module.replace('.', '/')}.py"
        if not path.exists() or name not in functions(path):
            yield f"{module}:{name}"


class WalkTests(SynchronousTestCase):
    def test_every_function_of_the_walks_exists(self) -> None:
        """The walks of docs/architecture.md have at most a dozen steps, and each names a function that is there."""
        text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
        walks = text.split("\n### ")[1:]
        self.assertEqual(len(walks), 4)
        for walk in walks:
            steps = re.findall(r"^\d+\. `[a-z_.]+:", walk, re.MULTILINE)
            self.assertTrue(10 <= len(steps) <= 12, walk[:60])
        self.assertEqual(list(missing_functions(text)), [])

    def test_a_planted_name_is_found(self) -> None:
        """A function that was renamed, and a module that moved, are each named."""
        text = "`rmq.wire.frames:gone` and `rmq.gone:x`, but `rmq.wire.frames:FrameDecoder.receive`"
        self.assertEqual(list(missing_functions(text)), ["rmq.wire.frames:gone", "rmq.gone:x"])
