"""Backend selection, and the error without a backend."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from rocketmq_aio.testing.backends import open_backend
from rocketmq_aio.testing.errors import ClusterError, UnavailableError
from rocketmq_aio.testing.external import ExternalBackend


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Environment without programs, engine and backend variables."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.delenv("ROCKETMQ_NAMESRV", raising=False)
    monkeypatch.delenv("ROCKETMQ_AIO_BACKEND", raising=False)


def test_a_missing_backend_names_what_to_install() -> None:
    with pytest.raises(UnavailableError, match="java cannot be found; install with: apt-get"):
        open_backend("auto", "5.5.0")


def test_the_name_server_environment_variable_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", "a:1;b:2")

    backend = open_backend("auto", "5.5.0")

    assert isinstance(backend, ExternalBackend)
    assert backend.addresses == ["a:1", "b:2"]


def test_the_backend_environment_variable_precedes_the_name_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", "a:1")
    monkeypatch.setenv("ROCKETMQ_AIO_BACKEND", "jvm")

    with pytest.raises(UnavailableError, match="java"):
        open_backend("auto", "5.5.0")


def test_the_argument_precedes_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", "a:1")
    monkeypatch.setenv("ROCKETMQ_AIO_BACKEND", "jvm")

    assert open_backend("external", "5.5.0").name == "external"


def test_containers_need_a_responding_engine() -> None:
    with pytest.raises(UnavailableError, match="no container engine answers"):
        open_backend("containers", "5.5.0")


@pytest.mark.parametrize("address", ["", "localhost", "127.0.0.1:port", " ;"])
def test_an_external_cluster_needs_host_and_port(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", address)
    with pytest.raises(ClusterError, match="ROCKETMQ_NAMESRV"):
        open_backend("external", "5.5.0")


def test_an_unknown_backend_raises_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_AIO_BACKEND", "podman")

    with pytest.raises(ClusterError, match="'podman': choose one of auto, embedded, external"):
        open_backend("auto", "5.5.0")


@pytest.mark.parametrize("failing", ["network", "container"])
def test_an_error_of_the_engine_has_a_hint(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    containers = pytest.importorskip("rocketmq_aio.testing.containers")
    network, container = MagicMock(), MagicMock()
    fault = containers.docker.errors.ImageNotFound("no such image")
    broken = network.return_value.create if failing == "network" else container.return_value.start
    broken.side_effect = fault
    for name, fake in (("Network", network), ("DockerContainer", container)):
        monkeypatch.setattr(containers, name, fake)
    monkeypatch.setattr(containers, "_check_engine", lambda: None)
    monkeypatch.setattr(containers.testcontainers_config, "ryuk_disabled", False)
    container.return_value.with_env.return_value.with_kwargs.return_value = container.return_value

    def start() -> None:
        backend = open_backend("containers", "5.5.0")
        try:
            backend.namesrv("namesrv-0")
        finally:
            backend.close()

    with pytest.raises(ClusterError, match=r"no such image.*use the backend 'jvm'"):
        start()
