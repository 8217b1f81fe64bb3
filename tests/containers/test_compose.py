"""`docker-compose.yml`: starts a RocketMQ that is reachable from the host."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import probe
from rocketmq_aio.testing.conf import CLUSTER_NAME
from rocketmq_aio.testing.ports import choose_port

COMPOSE_FILE: Final = Path(__file__).parents[2] / "docker-compose.yml"
READY_SECONDS: Final = 120


def compose_command() -> list[str]:
    """Return the Compose command: the docker plugin or the standalone program."""
    plugin = ["docker", "compose"]
    if subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode == 0:
        return plugin
    assert shutil.which("docker-compose"), "neither `docker compose` nor docker-compose is here"
    return ["docker-compose"]


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """All services of the file, under free ports."""
    names = ("NAMESRV_PORT", "BROKER_PORT", "PROXY_PORT", "PROXY_GRPC_PORT")
    chosen = {name: choose_port() for name in names}
    environment = {**os.environ, **{name: str(port) for name, port in chosen.items()}}
    project = ["-f", str(COMPOSE_FILE), "-p", f"rocketmq-aio-{os.getpid()}", "--profile", "proxy"]
    command = [*compose_command(), *project]
    try:
        subprocess.run([*command, "up", "-d"], env=environment, check=True)
        yield chosen
    finally:
        subprocess.run([*command, "down", "-v", "-t", "1"], env=environment, check=True)


def test_the_broker_is_reachable_at_its_registered_address(ports: dict[str, int]) -> None:
    expected = f"127.0.0.1:{ports['BROKER_PORT']}"

    wait_for_route(ports["NAMESRV_PORT"], expected)

    probe.wait_until(
        # A broker that has just registered may not return statistics yet.
        lambda: probe.ask(expected, RequestCode.GET_BROKER_RUNTIME_INFO),
        seconds=READY_SECONDS,
        what="no answer",
    )


def test_the_proxy_is_reachable_at_its_advertised_address(ports: dict[str, int]) -> None:
    expected = f"127.0.0.1:{ports['PROXY_PORT']}"

    wait_for_route(ports["PROXY_PORT"], expected)


def wait_for_route(port: int, expected: str) -> None:
    def check() -> None:
        found = probe.masters(f"127.0.0.1:{port}", CLUSTER_NAME)
        if found != {"broker-a": expected}:
            raise probe.ProbeError(f"found {found}")

    probe.wait_until(check, seconds=READY_SECONDS, what="no route")
