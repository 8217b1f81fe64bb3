"""Spark servers from the pyspark distribution as local processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

import psutil  # type: ignore[import-untyped]  # it has no stubs

from rocketmq_aio.testing.ports import choose_port
from rocketmq_aio.testing.process import GuardedProcess
from tests.spark.class_archive import SPARK_HOME, jvm_options
from tests.spark.support import settings_in, wait_until

MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
CONNECT: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_SECONDS: Final = 300.0
STOP_SECONDS: Final = 20.0


class SparkServer:
    """A JVM of Spark with its folder; *environment* comes on top of this process's."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, *, environment: Mapping[str, str]
    ) -> None:
        folder.mkdir(parents=True)
        self.log = folder / "stdout.log"
        variables = [f"{name}={value}" for name, value in environment.items()]
        command = ["env", *variables, *arguments]
        self._process = GuardedProcess(command, folder=folder, log=self.log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, text: str) -> None:
        """Wait until it has printed *text*.

        :raises AssertionError: it ended or was too slow; with what it printed
        """
        try:
            wait_until(lambda: text in self._output(), text, seconds=START_SECONDS)
        except AssertionError as error:
            error.add_note(self.log.read_text(encoding="utf-8"))
            raise

    def stop(self) -> None:
        """Ask it to end, which ends its executors too."""
        self._process.send_signal(signal.SIGTERM)
        if not self._process.wait(STOP_SECONDS):
            self._process.kill()

    def _output(self) -> str:
        output = self.log.read_text(encoding="utf-8")
        assert self._process.running, "it ended"
        return output


class SparkCluster:
    """A standalone master and its workers, each with one core and a host of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = ExitStack()
        self._workers: list[SparkServer] = []
        port = choose_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._master = self._start(MASTER, "master", "--port", str(port))

    @classmethod
    @contextmanager
    def start(cls, workers: int = 1) -> Iterator[Self]:
        """A cluster that is ready; gone after the block."""
        folder = Path(tempfile.mkdtemp(prefix="spark-cluster-"))
        cluster = cls(folder)
        try:
            cluster._start_workers(workers)
            yield cluster
        finally:
            cluster._running.close()
            shutil.rmtree(folder, ignore_errors=True)

    def logs(self) -> Iterator[Path]:
        """The files that servers and executors have written."""
        return (path for path in self._folder.rglob("*") if path.suffix != ".jar")

    def kill_executor_of(self, pid: int) -> str:
        """Kill the executor whose Python process is *pid*; return the id of the executor.

        The master starts another one on the same worker.
        """
        workers = {worker.pid for worker in self._workers}
        (executor,) = (
            each
            for each in psutil.Process(pid).parents()
            if each.ppid() in workers and EXECUTOR in each.cmdline()
        )
        words = executor.cmdline()
        executor.kill()
        executor.wait(STOP_SECONDS)
        return str(words[words.index("--executor-id") + 1])

    def _start_workers(self, count: int) -> None:
        self._master.wait_for("I have been elected leader")
        self._workers = [
            self._start(
                WORKER,
                f"worker-{number}",
                *("--cores", "1", "--memory", "700m"),
                *("--work-dir", str(self._folder / f"work-{number}"), self.master),
                host=number + 1,
            )
            for number in range(count)
        ]
        for worker in self._workers:
            worker.wait_for("Successfully registered with master")

    def _start(self, main: str, name: str, *options: str, host: int = 1) -> SparkServer:
        address = f"127.0.0.{host}"
        bind = ("--host", address, "--webui-port", str(choose_port()))
        server = SparkServer(
            [str(SPARK_HOME / "bin" / "spark-class"), main, *bind, *options],
            self._folder / name,
            environment={**environment(), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": address},
        )
        self._running.callback(server.stop)
        return server


@contextmanager
def connect_server(python: str = sys.executable) -> Iterator[str]:
    """A Spark Connect server over `local[2,4]` that runs *python*; its remote address."""
    folder = Path(tempfile.mkdtemp(prefix="spark-connect-"))
    port = choose_port()
    chosen = {
        **settings_in(folder),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    pairs = [f"--conf={name}={value}" for name, value in chosen.items()]
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2,4]"]
    command = [*submit, "--class", CONNECT, *pairs, "spark-internal"]
    variables = {**environment(), "PYSPARK_PYTHON": python}
    server = SparkServer(command, folder / "server", environment=variables)
    try:
        wait_until(lambda: listens(port), "a port for Spark Connect", seconds=START_SECONDS)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def environment() -> dict[str, str]:
    """Environment of a server of Spark and of its Python processes."""
    return {
        "PATH": os.environ["PATH"],
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": jvm_options(),
    }
