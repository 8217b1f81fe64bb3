"""Port selection: a server can bind and keep the ports."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rocketmq_aio.testing import ports
from rocketmq_aio.testing.errors import ClusterError


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", ports.choose_port())) as listener:
        while ports._reserved:  # or it would be avoided for that reason
            socket.close(ports._reserved.popleft())
        yield listener.getsockname()[1]


def test_the_ports_of_a_broker_are_free() -> None:
    port = ports.choose_port(ports.BROKER)

    assert ports.are_free([port, port - 2, port + 1])


def test_ports_are_below_the_ephemeral_range() -> None:
    port = ports.choose_port(ports.BROKER)

    assert ports.LOWEST <= port < ports.HIGHEST < 32_768


def test_a_listening_port_is_not_free(taken: int) -> None:
    assert not ports.are_free([taken])


def test_a_port_is_not_chosen_again_before_its_server_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = ports.choose_port()
    monkeypatch.setattr(ports, "LOWEST", port)
    monkeypatch.setattr(ports, "HIGHEST", port + 1)

    with pytest.raises(ClusterError, match="no free port"):
        ports.choose_port()


def test_a_port_that_another_process_has_chosen_is_not_chosen() -> None:
    port = ports.choose_port()
    chooses = (
        "from rocketmq_aio.testing import ports\n"
        f"ports.LOWEST, ports.HIGHEST = {port}, {port + 1}\n"
        "ports.choose_port()"
    )
    child = subprocess.run([sys.executable, "-c", chooses], capture_output=True, text=True)

    assert "no free port" in child.stderr


def test_few_ports_are_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "MAX_RESERVED", 7)
    for _ in range(5):
        ports.choose_port(ports.BROKER)

    assert len(ports._reserved) == 7


@pytest.mark.parametrize("offset", ports.BROKER)
def test_a_port_whose_neighbour_is_in_use_is_not_chosen(
    offset: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "LOWEST", taken - offset)
    monkeypatch.setattr(ports, "HIGHEST", taken - offset + 1)

    with pytest.raises(ClusterError, match="no free port"):
        ports.choose_port(ports.BROKER)
