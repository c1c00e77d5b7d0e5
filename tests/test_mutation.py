"""The tool behind ``tox -e mutation``: what it changes, what it leaves alone, and that it reports what survives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attrs
from twisted.trial.unittest import SynchronousTestCase

from tests.mutation import ALLOWED, SCOPE, Finder, Mutation, Result, as_toml, key, read_known, report, sample

ROOT = Path(__file__).resolve().parent.parent

#: a statement, and what becomes of it
OPERATORS: list[tuple[str, set[str]]] = [
    ("x = a < b", {"x = a <= b"}),
    ("x = a >= b", {"x = a > b"}),
    ("x = a == b", {"x = a != b"}),
    ("x = a is not None", {"x = a is None"}),
    ("x = a not in b", {"x = a in b"}),
    ("x = a < b <= c", {"x = a <= b <= c", "x = a < b < c"}),
    ("x = a and b", {"x = a or b"}),
    ("x = not a", {"x = a"}),
    ("x = not (a)", {"x = (a)"}),
    ("x = a + b", {"x = a - b"}),
    ("x = (a) % (b)", {"x = (a) // (b)"}),
    ("x = 7", {"x = 8", "x = 0", "x = 70"}),
    ("x = -1", {"x = 1"}),
    ("x = True", {"x = False"}),
    ("x += y", {"pass", "x -= y"}),
    ("wake(x)", {"pass"}),
    ("await sync()", {"pass"}),
    ("self._x = y", {"pass"}),
    ("x[y] = z", {"pass"}),
    ("del x[y]", {"pass"}),
    ("raise x", {"pass"}),
    ("return x", {"return None"}),
    ("x = f(a, b)", {"x = f(b, a)"}),
    ("x = min(a, b)", {"x = max(a, b)"}),
    ("x = [a for a in b if c]", {"x = [a for a in b if True]"}),
    ("x = a if b else c", {"x = a if True else c", "x = a if False else c"}),
    ("if x: y", {"if True: y", "if False: y"}),
    ("while x: y", {"while False: y"}),
    ("for x in y: z", {"for x in y: z pass"}),
    ("while x:\n        break", {"while False:", "continue"}),
    ("while x:\n        continue", {"while False:", "break"}),
]
LEFT_OUT = [
    '"""A text."""',
    "x: Final[Literal[3]] = y",
    "assert x > 0",
    'raise AssertionError("never reached")',
    'self._log.info("{n} more than {m}", n=x + 1, m=y)',
    'x = f"{y + 1:03}"',
    "if TYPE_CHECKING:\n        x = 3",
    "return None",
    "flags = os.O_WRONLY | os.O_CLOEXEC",
]


def found(source: str, path: str = "rmq/store/tiny.py") -> list[Mutation]:
    return Finder(path, source.encode()).found


class ScopeTests(SynchronousTestCase):
    def test_scope_names_files(self) -> None:
        """A module that moved does not drop out of the run unnoticed, neither does the subfolder of a package."""
        for patterns in SCOPE.values():
            for pattern in patterns:
                self.assertTrue(list(ROOT.glob(pattern)), f"SCOPE names {pattern}: there is no such file")
        self.assertIn(ROOT / "rmq/ha/rejoin/divergence.py", [*ROOT.glob(SCOPE["ha"][0])])

    def test_listed_survivors_are_in_the_code(self) -> None:
        """A listed survivor is still a change that the run makes: an entry of lines that are gone excuses nothing."""
        listed = read_known(ROOT / "tests/mutation_survivors.toml")
        files = {ROOT / path for path, *_ in listed} & {
            path for patterns in SCOPE.values() for pattern in patterns for path in ROOT.glob(pattern)
        }
        made = {
            key(mutation) for path in files for mutation in Finder(str(path.relative_to(ROOT)), path.read_bytes()).found
        }
        self.assertEqual(set(listed) - made, set())
        self.assertEqual([name for name, reason in listed.items() if not reason.strip()], [])


class FinderTests(SynchronousTestCase):
    def test_operators(self) -> None:
        """Each kind of statement is changed in the ways that the table names, and each change compiles."""
        for statement, changes in OPERATORS:
            source = f"async def f(self):\n    {statement}\n"
            mutations = found(source)
            self.assertEqual({mutation.new for mutation in mutations}, changes, statement)
            for mutation in mutations:
                changed = mutation.apply(source.encode())
                self.assertNotEqual(changed, source.encode())
                compile(changed, mutation.path, "exec")
                self.assertEqual((mutation.function, mutation.outer), ("f", ("f", 1)))

    def test_left_out(self) -> None:
        """Texts, logs, types and assertions are not changed: no user would notice."""
        for statement in LEFT_OUT:
            self.assertEqual(found(f"def f(self):\n    {statement}\n"), [], statement)
        self.assertEqual(found("class A(Protocol[T]):\n    def f(self, x: int = 3) -> int:\n        return x\n"), [])
        self.assertEqual(found("@attrs.frozen(slots=True)\nclass A(B, k=3):\n    def __repr__(self): return 3\n"), [])

    def test_names_of_functions(self) -> None:
        """A method is named as Python names it, with the line of its first decorator; a default runs at import."""
        source = "class A:\n    @property\n    def f(self, x=3):\n        def g():\n            return x\n"
        default, inner = sorted(
            (mutation for mutation in found(source) if mutation.new in ("def f(self, x=4):", "return None")),
            key=lambda mutation: mutation.line,
        )
        self.assertEqual((default.function, default.outer), ("A", None))
        self.assertEqual((inner.function, inner.outer), ("A.f.g", ("A.f", 2)))


class SampleTests(SynchronousTestCase):
    def test_packages_have_the_same_share(self) -> None:
        """A package with few lines gives all of them, the others share the rest; a line is changed once."""
        many = "".join(f"x{n} = a{n} < b{n}\n" for n in range(50))
        mutations = [
            *found(many, "rmq/store/a.py"),
            *found(many, "rmq/ha/a.py"),
            *found("x = 7\ny = 7\n", "rmq/sim/a.py"),
        ]
        drawn = [mutation.package for mutation in sample(mutations, 42, seed=1)]
        self.assertEqual({name: drawn.count(name) for name in drawn}, {"sim": 2, "store": 20, "ha": 20})
        self.assertEqual(len(sample(mutations, 0, seed=1)), len(mutations))

    def test_sample_stays_when_other_lines_change(self) -> None:
        """The same seed draws the same lines after other lines came; another seed draws others."""
        source = "".join(f"x{n} = a{n} < b{n}\n" for n in range(50))
        drawn = sample(found(source), 10, seed=1)
        self.assertEqual(sample(found("y = z\n" * 9 + source), 10, seed=1), drawn)
        self.assertNotEqual(sample(found(source), 10, seed=2), drawn)


class ReportTests(SynchronousTestCase):
    def test_survivors_need_a_reason_and_are_few(self) -> None:
        """A run is good with few survivors that are all listed; one more, or one without a reason, is not."""
        mutations = found("".join(f"x{n} = a{n} < b{n}\n" for n in range(100)))
        few = int(ALLOWED * len(mutations))
        results = [Result(each, "survived" if n < few else "killed", 3, 0.1) for n, each in enumerate(mutations)]
        known = {key(mutation): "nobody can tell" for mutation in mutations}
        text, good = report(results, known)
        self.assertTrue(good, text)
        self.assertIn(f"{len(mutations):11}{len(mutations) - few:11}{0:11}{few:11}\n", text)
        self.assertIn(
            "rmq/store/tiny.py:1 <module>\n  - x0 = a0 < b0\n  + x0 = a0 <= b0\n  harmless: nobody can tell", text
        )
        text, good = report(results, {name: reason for name, reason in known.items() if name != key(mutations[0])})
        self.assertFalse(good)
        self.assertIn("NO REASON; 3 tests execute it", text)
        self.assertFalse(report([*results, attrs.evolve(results[0])], known)[1])

    def test_listed_reasons_are_found_again(self) -> None:
        """What --save writes is what --known reads, whatever the line holds."""
        mutations = found('x = y["\\n\\u00e9", \'"\'] < 3  # ü\n')
        path = Path(self.mktemp())
        path.write_text("".join(as_toml(mutation, f"reason {n}") for n, mutation in enumerate(mutations)))
        self.assertEqual(read_known(path), {key(mutation): f"reason {n}" for n, mutation in enumerate(mutations)})


PRODUCT = """
STEP = 1

def count(limit):
    done = 0
    while done < limit:
        done += STEP
    return done

def is_small(number):
    return number < 10

def unused(number):
    return number
"""
PRODUCT_TESTS = """
from rmq.store.tiny import count, is_small

def test_count():
    assert count(0) == 0 and count(3) == 3

def test_small():
    assert is_small(1) and not is_small(50)

def test_broken():
    assert is_small(99)
"""


class WholeRunTests(SynchronousTestCase):
    def test_outcomes(self) -> None:
        """
        A run tells a change that a test notices from one that hangs it and one that nothing notices.

        An edge that no test reaches and code that no test executes survive; a test that fails anyway kills nothing.
        """
        root = Path(self.mktemp()).resolve()
        for name, text in (("rmq/__init__.py", ""), ("rmq/store/__init__.py", ""), ("rmq/store/tiny.py", PRODUCT)):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "test_tiny.py").write_text(PRODUCT_TESTS)
        (root / "pytest.ini").write_text("[pytest]\n")
        options = ["--number", "0", "--limit", "0.3", "--verbose", "--save", "saved", "test_tiny.py"]
        run = subprocess.run(
            [sys.executable, "-m", "tests.mutation", *options],
            cwd=root,
            # the plugin of rmq.testing would be looked for in the tiny rmq
            env=os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertIn("left out, it fails without any mutation: test_tiny.py::test_broken", run.stdout)
        saved = {(function, new) for _, function, _, new in read_known(root / "saved")}
        self.assertEqual(
            saved,
            {("is_small", "return number <= 10"), ("is_small", "return number < 11"), ("unused", "return None")},
            run.stdout,
        )
        self.assertRegex(run.stdout, r"timeout after [^\n]*test_count\n[^\n]*\n  - done \+= STEP\n  \+ done -= STEP")
        self.assertRegex(run.stdout, r"killed after [^\n]*test_count\n[^\n]*<module>\n  - STEP = 1\n  \+ STEP = 2")
