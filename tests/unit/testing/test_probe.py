"""Probe: sends one request and accepts only a complete response."""

from __future__ import annotations

import json

import pytest

from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.testing import ClusterError, probe
from tests.unit.testing.answering import Asked, answering

BROKERS = [
    {"brokerName": "broker-a", "brokerAddrs": {"0": "127.0.0.1:1", "1": "127.0.0.1:2"}},
    {"brokerName": "broker-b", "brokerAddrs": {"1": "127.0.0.1:3"}},
]
# As 4.9 brokers write it: numbers as keys, without quotes.
OLD_JSON = (
    b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"broker-a"}}}'
)


def test_a_request_is_encoded_correctly() -> None:
    with answering({17: Response()}) as server:
        probe.ask(server.address, 17, {"topic": "t", "perm": 6}, b"body")

    assert server.asked == [Asked(17, {"topic": "t", "perm": "6"}, b"body")]


def test_an_error_response_keeps_its_remark() -> None:
    with (
        answering({17: Response(code=1, remark="no permission")}) as server,
        pytest.raises(probe.ProbeError, match="request 17 with 1: no permission"),
    ):
        probe.ask(server.address, 17)


def test_masters_have_id_zero() -> None:
    body = json.dumps({"brokerDatas": BROKERS}).encode()

    with answering({105: Response(body=body)}) as server:
        found = probe.masters(server.address, "t")

    assert found == {"broker-a": "127.0.0.1:1"}


def test_a_controller_that_responds_names_the_leader() -> None:
    with (
        answering({1005: Response()}) as candidate,
        answering({1005: Response(ext={"controllerLeaderAddress": "h:1"})}) as follower,
    ):
        addresses = f"127.0.0.1:1;{candidate.address};{follower.address}"
        assert probe.leader(addresses) == "h:1"
        with pytest.raises(probe.ProbeError, match="no leader"):
            probe.leader(candidate.address)


def test_an_unknown_topic_has_no_masters() -> None:
    with answering({105: Response(code=17)}) as server:
        assert probe.masters(server.address, "t") == {}


def test_non_standard_json_of_old_brokers_is_decoded() -> None:
    with answering({106: Response(body=OLD_JSON)}) as server:
        assert probe.cluster_masters(server.address) == {"broker-a": "h:1"}


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"\0\0\0", b"\0\0\0\x40\0\0\0\x20{", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        *(b"\0\0\0\x05\0\0\0\x01{", b"\0\0\0\x06\0\0\0\x02[]", b"\0\0\0\x06\0\0\0\x02{}"),
        b"\0\0\0\0\0\0\0\x01",
    ],
)
def test_an_incomplete_or_malformed_frame_is_an_error(raw: bytes) -> None:
    with EmbeddedCluster(0) as cluster:
        cluster.faults.connect(data=raw)
        with pytest.raises(OSError):  # noqa: PT011
            probe.request(cluster.namesrv, 28)


def test_a_malformed_body_is_an_error() -> None:
    with (
        answering({106: Response(body=b"{half")}) as server,
        pytest.raises(probe.ProbeError, match="malformed"),
    ):
        probe.cluster_masters(server.address)


def test_waiting_ends_with_the_first_success() -> None:
    answers = iter([ConnectionRefusedError(), probe.ProbeError("not yet"), None])
    left: list[object] = []

    def check() -> None:
        answer = next(answers)
        if answer is not None:
            raise answer
        left.extend(answers)

    probe.wait_until(check, seconds=10, what="not ready")

    assert left == []


def test_a_wait_timeout_reports_the_last_error() -> None:
    def check() -> None:
        raise probe.ProbeError("no route")

    with pytest.raises(ClusterError, match=r"not ready after 0 s: no route") as raised:
        probe.wait_until(check, seconds=0, what="not ready")

    assert isinstance(raised.value.__cause__, probe.ProbeError)


def test_an_unexpected_error_ends_the_wait() -> None:
    def check() -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        probe.wait_until(check, seconds=10, what="not ready")
