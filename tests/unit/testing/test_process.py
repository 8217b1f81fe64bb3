"""Guarded processes: a server (here `sleep`) never outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketmq_aio.testing import probe
from rocketmq_aio.testing.errors import ClusterError
from rocketmq_aio.testing.process import GuardedProcess

SLEEP = ["sleep", "600"]

# Prints the pids of the server and of its guard. {before_waiting} may fork, exit, raise ...
OWNER = """
import os, signal, sys, time
from pathlib import Path
from rocketmq_aio.testing.process import GuardedProcess
# A test run started in the background ignores SIGINT, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
folder = Path(sys.argv[1])
where = {"folder": folder, "log": folder / "log", "remove": folder.parent}
process = GuardedProcess(["sleep", "600"], **where)
print(process.pid, process._guard.pid, flush=True)
exec(sys.argv[2])
time.sleep(600)
"""


class Owner:
    """A Python process that started a server and then ran *behaviour*."""

    def __init__(self, folder: Path, behaviour: str) -> None:
        self.home = folder / "cluster" / "server"
        self.home.mkdir(parents=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(self.home), behaviour],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.server, self.guard = map(int, self.read_line().split())

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def check_cleaned_up(self) -> None:
        if is_alive(self.server) or is_alive(self.guard):
            raise probe.ProbeError("still alive")
        if self.home.parent.exists():
            raise probe.ProbeError(f"{self.home} still exists")


@pytest.fixture
def start_owner(tmp_path: Path) -> Iterator[Callable[[str], Owner]]:
    """Starts an owner with a behaviour; it is killed after the test."""
    started: list[Owner] = []

    def start(behaviour: str) -> Owner:
        started.append(Owner(tmp_path, behaviour))
        return started[-1]

    yield start
    for owner in started:
        owner.process.kill()
        owner.process.communicate()


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[GuardedProcess]:
    process = GuardedProcess(SLEEP, folder=tmp_path, log=tmp_path / "log")
    yield process
    process.kill()


def is_alive(pid: int) -> bool:
    return state(pid) not in {"", "Z"}


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_for_state(pid: int, wanted: str) -> None:
    def check() -> None:
        if state(pid) not in wanted:
            raise probe.ProbeError(f"{pid} is in state {state(pid)}")

    probe.wait_until(check, seconds=10, what="no change")


@pytest.mark.parametrize(
    "behaviour",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.kill(os.getpid(), signal.SIGINT)",
        "os._exit(1)",
        "sys.exit(0)",
        "raise MemoryError",
    ],
)
def test_a_server_ends_with_its_owner_and_its_folder_is_removed(
    behaviour: str, start_owner: Callable[[str], Owner]
) -> None:
    owner = start_owner(behaviour)

    probe.wait_until(owner.check_cleaned_up, seconds=10, what="left behind")


def test_the_folders_of_stopped_servers_are_removed_with_those_of_running_ones(
    start_owner: Callable[[str], Owner],
) -> None:
    behaviour = """
stopped = folder.parent / "stopped"
stopped.mkdir()
other = GuardedProcess(
    ["sleep", "600"], folder=stopped, log=stopped / "log", remove=folder.parent
)
other.kill()
os.kill(os.getpid(), signal.SIGKILL)
"""
    owner = start_owner(behaviour)

    probe.wait_until(owner.check_cleaned_up, seconds=10, what="left behind")


def test_a_server_ends_with_its_owner_although_a_fork_survives(
    start_owner: Callable[[str], Owner],
) -> None:
    behaviour = """
fork = os.fork()
if fork:
    print(fork, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    owner = start_owner(behaviour)
    fork = int(owner.read_line())

    try:
        probe.wait_until(owner.check_cleaned_up, seconds=10, what="left behind")
        assert is_alive(fork)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_a_server_ends_with_its_guard(start_owner: Callable[[str], Owner]) -> None:
    owner = start_owner("")

    os.kill(owner.guard, signal.SIGKILL)

    wait_for_state(owner.server, "Z")


def test_a_server_outlives_the_thread_that_started_it(start_owner: Callable[[str], Owner]) -> None:
    behaviour = """
import threading
def start():
    other = GuardedProcess(["sleep", "600"], **where)
    print(other.pid, flush=True)
    globals()["kept"] = other
thread = threading.Thread(target=start)
thread.start()
thread.join()
while len(os.listdir("/proc/self/task")) > 1:  # the kernel's thread ends a moment later
    time.sleep(0.001)
print("joined", flush=True)
"""
    owner = start_owner(behaviour)
    pid = int(owner.read_line())

    assert owner.read_line() == "joined\n"

    wait_for_state(pid, "S")


def test_signals_reach_the_server(sleeper: GuardedProcess) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    wait_for_state(sleeper.pid, "T")

    sleeper.send_signal(signal.SIGCONT)
    wait_for_state(sleeper.pid, "S")


def test_kill_returns_after_the_server_has_exited(sleeper: GuardedProcess) -> None:
    sleeper.kill()

    assert not sleeper.running
    assert state(sleeper.pid) == ""


def test_a_frozen_server_can_be_killed(sleeper: GuardedProcess) -> None:
    sleeper.send_signal(signal.SIGSTOP)

    sleeper.kill()

    assert state(sleeper.pid) == ""


def test_an_exited_server_is_detected(tmp_path: Path) -> None:
    process = GuardedProcess(["true"], folder=tmp_path, log=tmp_path / "log")

    assert process.wait(10)
    assert not process.running


def test_killing_an_exited_server_does_nothing(tmp_path: Path) -> None:
    process = GuardedProcess(["true"], folder=tmp_path, log=tmp_path / "log")
    process.wait(10)

    process.kill()
    process.kill()

    assert not process.running


def test_server_output_is_appended_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n", encoding="utf-8")

    GuardedProcess(["sh", "-c", "echo out; echo err >&2"], folder=tmp_path, log=log).wait(10)

    assert log.read_text(encoding="utf-8") == "first\nout\nerr\n"


def test_a_process_that_does_not_end_is_named(
    sleeper: GuardedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketmq_aio.testing.process.KILL_SECONDS", 0.01)
    guard = sleeper._guard.pid
    os.kill(guard, signal.SIGSTOP)
    try:
        with pytest.raises(ClusterError, match=f"process {sleeper.pid} has not ended"):
            sleeper.kill()
    finally:
        os.kill(guard, signal.SIGCONT)
        sleeper._guard.wait(60)
