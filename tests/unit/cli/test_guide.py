"""The commands of the guide by task."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rocketmq_aio.cli.app import run
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.testing import Account
from tests.unit.cli.test_rmq import commands

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "rmq.md"
ENDLESS = {"rmq top": " --count 1"}
TASKS = (
    "my consumer lags",
    "replay yesterday",
    "dead letters",
    "move a group",
    "add queues",
    "who consumes this topic?",
    "rotate accounts",
)


def tasks() -> dict[str, list[str]]:
    """Return the commands by task."""
    table = GUIDE.read_text().partition("## By task\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ", 1) for line in table.splitlines() if line[:3] != "|--"]
    return {
        row[0].strip(): re.findall(r"`((?:RMQ_NEW_SECRET=\S+ )?rmq .+?)`", row[1])
        for row in rows
        if len(row) == 2 and "`" in row[1]
    }


@pytest.fixture
def servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[None]:
    account = Account(access_key="admin", secret_key="12345678", admin=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("RMQ_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("RMQ_NEW_SECRET", "87654321")
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "admin")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "12345678")
    with EmbeddedCluster(2, topics={"orders": 2}, accounts=[account]) as cluster:
        monkeypatch.setenv("ROCKETMQ_NAMESRV", cluster.namesrv)
        yield


def call(command: str) -> None:
    if "|" in command:
        subprocess.run(["bash", "-c", f"set -eo pipefail; {command}"], check=True)
    else:
        assert run(shlex.split(command.partition("rmq ")[2])) == 0, command


@cache
def asking() -> frozenset[str]:
    """Return the commands that ask."""
    return frozenset(
        name
        for name, each in commands().items()
        if any("--yes" in param.opts for param in each.params)
    )


def unasked(command: str) -> str:
    """Return *command* with ``--yes`` if it asks, and with an end."""
    words = command.partition("rmq ")[2].split()
    asks = {words[0], " ".join(words[:2])} & asking()
    return command.replace("\\|", "|") + (" --yes" if asks else "") + ENDLESS.get(command, "")


def test_every_task_has_commands() -> None:
    assert {*TASKS} <= tasks().keys()
    assert all(tasks().values())


@pytest.mark.parametrize("task", tasks())
@pytest.mark.usefixtures("servers")
def test_the_commands_of_a_task_run_as_they_stand(
    task: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text("one\n")
    for prepare in (
        "rmq topic create %DLQ%billing --queues 1",
        "rmq group create billing",
        "rmq user create app",
        "rmq acl create-policy User:app Pub --resources Topic:orders",
        "rmq produce orders in --key 42 --tag paid",
        "rmq produce %DLQ%billing in --key 42",
        f"rmq context set new -n {os.environ['ROCKETMQ_NAMESRV']}",
    ):
        call(prepare)
    capfd.readouterr()
    call("rmq message by-key orders 42 -o json")
    (found,) = json.loads(capfd.readouterr().out)

    for command in tasks()[task]:
        if command == "rmq trace ID":
            continue  # the message was sent without a trace
        own = command.replace(" ID", f" {found['message_id']}")
        own = own.replace("resend billing", "resend billing --to-topic orders")
        call(unasked(own))
