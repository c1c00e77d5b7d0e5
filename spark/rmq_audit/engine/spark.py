"""
The same work on Spark: tasks go out in partitions, answers come back, log bytes never pass through the JVM.

A partition is one number of an RDD. Its worker looks the tasks up in a broadcast, reads the files itself, and hands
back digests, runs and findings as a few small objects a task. ``mapInArrow`` would do the same and was measured
equal; but it needs pandas.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from rmq_audit.engine.bundle import write_bundle
from rmq_audit.engine.engines import Done, EngineError, Progress, packed
from rmq_audit.worker.work import Work

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
except ImportError as error:
    raise EngineError(
        f"the Spark engine needs PySpark, which is not installed here ({error}): "
        "pip install 'txrocketmq[audit]', or use --engine local"
    ) from error

#: PySpark 4 runs on this Java and newer
MIN_JAVA = 17

Task = TypeVar("Task")
Answer = TypeVar("Answer")

#: how often the progress of a job is looked at
PROGRESS_S = 0.5

#: what Spark's launcher gives to the JVM ahead of the options that a user has set for it
JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
#: The JVM only hands tasks to Python and answers back, so code made in haste does: the first audit of 512 MiB takes
#: 1.8 CPU s of Java instead of 3.2, and each one behind it 0.2 instead of 0.6.
_QUICK_CODE = "-XX:TieredStopAtLevel=1"

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # answers are small each, but there is no limit to the number of splits
    "spark.driver.maxResultSize": "0",
}


class SparkEngine:
    """Runs work as Spark jobs in the context that is given."""

    def __init__(self, context: SparkContext, log: str | None = None) -> None:
        self._context = context
        self._log = log
        self._failed = False
        self.progress: Progress | None = None
        self._folder = tempfile.mkdtemp(prefix="rmq-audit-")
        # a name of its own: a context refuses two different files of one name
        self._group = os.path.basename(self._folder)
        bundle = os.path.join(self._folder, self._group + ".zip")
        write_bundle(bundle)
        context.addPyFile(bundle)
        # it is there for workers: here it would hide the rest of the package from processes that this one starts
        sys.path[:] = [path for path in sys.path if os.path.basename(path) != os.path.basename(bundle)]
        self.name = f"spark {context.version}, {context.master}"

    def run(self, work: Work[Task, Answer], tasks: Sequence[Task]) -> list[Answer]:
        if not tasks:
            return []
        context, name = self._context, work.name
        groups = list(packed(tasks, work.cost, context.defaultParallelism))
        shared = context.broadcast([[(index, tasks[index]) for index in group] for group in groups])
        sizes = [sum(work.cost(tasks[index]) for index in group) for group in groups]
        done = context.accumulator(0)

        def answer(partitions: Iterable[int]) -> Iterator[tuple[int, Any]]:
            if not gc.get_freeze_count():
                # Spark collects garbage behind every task: modules are none, and take 25 to 60 ms to look through
                gc.freeze()
            for partition in partitions:
                for index, task in shared.value[partition]:
                    yield index, work.do(task)
                done.add(sizes[partition])

        def collect() -> list[tuple[int, Any]]:
            context.setJobGroup(self._group, f"rmq-audit {name}: {len(tasks)} tasks")
            found: list[tuple[int, Any]] = (
                context.parallelize(range(len(groups)), len(groups)).mapPartitions(answer).collect()
            )
            return found

        try:
            answers = dict(self._watched(collect, Done(name, sum(sizes), self.progress), lambda: int(done.value)))
        except (PySparkException, Py4JError) as error:
            self._failed = True
            raise EngineError(f"Spark failed during {name}: {_first_line(error)}{self._where()}") from error
        finally:
            shared.unpersist()
        if len(answers) != len(tasks):
            self._failed = True
            raise EngineError(f"Spark gave {len(answers)} answers to {len(tasks)} tasks of {name}{self._where()}")
        return [answers[index] for index in range(len(tasks))]

    def _watched(self, job: Callable[[], Answer], done: Done, count: Callable[[], int]) -> Answer:
        """Run the job; in a thread of its own, while this one tells how far it is, if anybody wants to know."""
        if self.progress is None:
            return job()
        with ThreadPoolExecutor(1) as aside:
            running = aside.submit(job)
            try:
                while not wait((running,), timeout=PROGRESS_S).done:
                    done.reach(count())
            except BaseException:
                self._context.cancelJobGroup(self._group)
                raise
            answer = running.result()
        done.finish()
        return answer

    def close(self) -> None:
        """Remove the shipped file; the context belongs to its creator."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _where(self) -> str:
        return f"; Spark's own log is {self._log}" if self._log else ""


class OwnedSparkEngine(SparkEngine):
    """A Spark engine with a session of its own, local unless spark-submit or ``master`` says otherwise."""

    def __init__(self, master: str | None = None) -> None:
        check_java()
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        self._log_folder: str | None = None
        if submitted:
            super().__init__(_start_submitted(master))
        else:
            self._log_folder = tempfile.mkdtemp(prefix="rmq-audit-log-")
            log = os.path.join(self._log_folder, "spark.log")
            super().__init__(_start(master, log), log)

    def close(self) -> None:
        super().close()
        self._context.stop()
        # the message of a failure names the log, so it stays
        if self._log_folder is not None and not self._failed:
            shutil.rmtree(self._log_folder, ignore_errors=True)


def check_java() -> None:
    """Raise EngineError, in one line, when there is no Java that Spark can run on."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")
    hint = f"install a JDK {MIN_JAVA} or newer, or use --engine local"
    if java is None:
        where = (
            f"JAVA_HOME is {home}, which has no bin/java" if home else "JAVA_HOME is not set and no java is on the PATH"
        )
        raise EngineError(f"the Spark engine needs a JDK and there is none ({where}): {hint}")
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"the Spark engine needs a JDK, and {java} does not run ({error}): {hint}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if found is not None and int(found[1]) < MIN_JAVA:
        raise EngineError(f"the Spark engine needs Java {MIN_JAVA} or newer, {java} is Java {found[1]}: {hint}")


def _start_submitted(master: str | None) -> SparkContext:
    """Return a context under spark-submit: the JVM runs already, with its settings; only what is missing is added."""
    SparkContext._ensure_initialized()
    conf = SparkConf(_jvm=SparkContext._jvm)
    for key, value in _SETTINGS.items():
        conf.setIfMissing(key, value)
    conf.setIfMissing("spark.master", master or "local[*]").setIfMissing("spark.app.name", "rmq-audit")
    if str(conf.get("spark.master", "")).startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    context = SparkContext(conf=conf)
    context.setLogLevel("ERROR")
    return context


def _start(master: str | None, path: str) -> SparkContext:
    """Return a context with a JVM of its own, whose output goes to the file ``path``."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setAppName("rmq-audit").setMaster(master or "local[*]").setAll(list(_SETTINGS.items()))
    local = conf.get("spark.master", "").startswith("local[")
    if local:
        # no name service, no other interface: a laptop behind a VPN must not matter
        conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    with open(path, "wb") as log:
        try:
            with _jvm_options(_QUICK_CODE if local else ""):
                gateway = launch_gateway(conf, {"stdout": log, "stderr": log})
            context = SparkContext(conf=conf, gateway=gateway)
        except (PySparkException, Py4JError) as error:
            raise EngineError(f"Spark did not start: {_first_line(error)}; its log is {path}") from error
    context.setLogLevel("ERROR")
    return context


@contextmanager
def _jvm_options(options: str) -> Iterator[None]:
    """Start a JVM with these options; where the environment says otherwise, that holds."""
    before = os.environ.get(JVM_OPTIONS)
    os.environ[JVM_OPTIONS] = f"{options} {before or ''}".strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ[JVM_OPTIONS]
        else:
            os.environ[JVM_OPTIONS] = before


def _first_line(error: BaseException) -> str:
    """Return what an error of Spark says in one line: the Python error of a worker if there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"\w*(Error|Exception)\b.*:", line)]
    return (python or lines or [type(error).__name__])[-1 if python else 0][:300]
