"""Cluster life cycle with fake servers and backend: closes all servers after any failure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.testing import Cluster, ClusterError, NotOwnedError, StartError, cluster, nodes
from rocketmq_aio.testing.server import Backend, BrokerSpec, Launched, Server
from tests.unit.testing.answering import AnsweringServer, answering

REQUESTS: Final[tuple[int, ...]] = (17, 28, 200, 207, 215, 216, 1005)


class FakeServer(Server):
    """Server that only has a running state."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self.versions: list[str | None] = []

    @property
    def pid(self) -> int | None:
        return self._pid

    def start(self, version: str | None = None) -> None:
        self._pid = 1
        self.versions.append(version)

    def kill(self) -> None:
        self._pid = None

    def stop(self) -> None:
        self._pid = None

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def log_tail(self) -> str:
        return "the last words"


class FakeBackend(Backend):
    """Backend with one answering server for all roles; *broker_error* makes brokers fail."""

    name = "fake"

    def __init__(self, address: str) -> None:
        self.address = address
        self.broker_pid: int | None = 1
        self.broker_error: BaseException | None = None
        self.closed = 0
        self.specs: list[BrokerSpec] = []
        self.servers: list[FakeServer] = []

    def namesrv(self, name: str, *, controller: bool = False) -> Launched:
        return Launched(name, self.address, FakeServer(1), "5.5.0")

    def controllers(self, names: Sequence[str]) -> list[Launched]:
        self.controller = self.address
        return [Launched(name, self.address, FakeServer(1), "5.5.0") for name in names]

    def broker(self, spec: BrokerSpec) -> Launched:
        if self.broker_error is not None:
            raise self.broker_error
        self.specs.append(spec)
        self.servers.append(FakeServer(self.broker_pid))
        return Launched(spec.name, self.address, self.servers[-1], spec.version)

    def mqadmin(self, arguments: Sequence[str]) -> str:
        return " ".join(arguments)

    def save_logs(self, folder: Path) -> None:
        (folder / "stdout.log").write_text("all it printed", encoding="utf-8")

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    """A name server that knows broker-a, and broker-a itself, behind one address."""
    answers = {code: Response() for code in REQUESTS}
    with answering(answers) as running:
        addresses = {"0": running.address, "1": running.address}
        data = {"brokerName": "broker-a", "brokerAddrs": addresses}
        answers[105] = Response(body=json.dumps({"brokerDatas": [data]}).encode())
        answers[106] = Response(body=json.dumps({"brokerAddrTable": {"broker-a": data}}).encode())
        yield running


@pytest.fixture
def backend(
    server: AnsweringServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> FakeBackend:
    monkeypatch.setenv("ROCKETMQ_AIO_LOGS", str(tmp_path / "kept"))
    fake = FakeBackend(server.address)
    monkeypatch.setattr(cluster, "open_backend", lambda name, version, security: fake)
    return fake


@pytest.fixture
def external(server: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", server.address)
    with ExitStack() as stack:
        yield stack.enter_context(Cluster.start(backend="external"))


def test_a_started_cluster_names_its_servers(backend: FakeBackend) -> None:
    with Cluster.start("4.9.7", namesrvs=2) as started:
        assert started.namesrv == f"{backend.address};{backend.address}"
        assert [broker.name for broker in started.brokers] == ["broker-a"]
        assert (started.version, started.backend) == ("4.9.7", "fake")

    assert backend.closed == 1


def test_a_server_that_exits_during_start_is_reported_with_its_logs(
    backend: FakeBackend, tmp_path: Path
) -> None:
    backend.broker_pid = None

    with pytest.raises(StartError, match="ended while it started") as raised:
        Cluster.start()

    assert "the last words" in str(raised.value)
    assert raised.value.logs is not None
    assert raised.value.logs.parent == tmp_path / "kept"
    assert (raised.value.logs / "stdout.log").read_text(encoding="utf-8") == "all it printed"
    assert backend.closed == 1


def test_a_server_that_is_not_ready_in_time_is_reported_with_the_reason(
    backend: FakeBackend, server: AnsweringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "START_SECONDS", 0)
    server.answers = {105: Response(code=17)}

    with pytest.raises(StartError, match="does not know broker-a on <Broker broker-a"):
        Cluster.start()

    assert backend.closed == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk full")])
def test_an_interrupted_start_closes_started_servers(
    backend: FakeBackend, error: BaseException
) -> None:
    backend.broker_error = error

    with pytest.raises(type(error)):
        Cluster.start()

    assert backend.closed == 1


def test_the_leader_of_the_controllers_is_the_running_one_that_they_name(
    server: AnsweringServer, backend: FakeBackend
) -> None:
    leader = {"controllerLeaderAddress": server.address}
    server.answers[1005] = Response(ext=leader)
    with Cluster.start(controllers=2) as started:
        first, second = started.controllers
        assert [first.name, second.name] == ["controller-a", "controller-b"]
        assert started.find_leader() is first
        first.kill()
        assert started.find_leader() is second
        second.kill()
        with pytest.raises(ClusterError, match="does not lead"):
            started.find_leader()
    with Cluster.start() as started, pytest.raises(ClusterError, match="of their own"):
        started.find_leader()


def test_a_master_is_started_before_its_slaves(backend: FakeBackend) -> None:
    with Cluster.start(slaves=1, sync_replication=True) as started:
        (broker,) = started.brokers
        (slave,) = broker.slaves

    assert [(spec.name, spec.sync_replication) for spec in backend.specs] == [
        ("broker-a", True),
        ("broker-a-slave-1", True),
    ]
    assert (slave.name, slave.broker_id, slave.master) == ("broker-a-slave-1", 1, broker)


def test_a_slave_is_ready_when_every_name_server_knows_it(
    backend: FakeBackend, server: AnsweringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "START_SECONDS", 0)

    with pytest.raises(StartError, match="does not know <Slave broker-a-slave-2"):
        Cluster.start(slaves=2)

    assert backend.closed == 1


def test_a_slave_that_exited_counts_as_not_running(backend: FakeBackend) -> None:
    with Cluster.start(slaves=1) as started:
        started.check_running()
        started.brokers[0].slaves[0].kill()
        with pytest.raises(ClusterError, match=r"broker-a-slave-1 at .* does not run"):
            started.check_running()


def copies(*ends: int) -> Iterator[Response]:
    """Responses with the offset behind the last message."""
    return iter([Response(ext={"offset": str(end)}) for end in ends])


def test_a_topic_is_copied_when_the_slave_has_the_end_of_each_queue(
    backend: FakeBackend, server: AnsweringServer
) -> None:
    topics = {"topicConfigTable": {"orders": {"readQueueNums": 2}}}
    with Cluster.start(slaves=1) as started:
        server.answers[21] = Response(body=json.dumps(topics).encode())
        # Queues 0 and 1 of the master, then of the slave, twice.
        server.series[30] = copies(3, 5, 3, 4, 3, 5)
        started.brokers[0].slaves[0].wait_copied("orders")

    assert [asked.code for asked in server.asked].count(30) == 6


def test_a_topic_that_is_not_copied_in_time_raises(
    backend: FakeBackend, server: AnsweringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "COPY_SECONDS", 0)
    topics = {"topicConfigTable": {"orders": {"readQueueNums": 1}}}
    with Cluster.start(slaves=1) as started:
        server.answers[21] = Response(body=json.dumps(topics).encode())
        server.series[30] = copies(3, 2)
        with pytest.raises(ClusterError, match=r"orders not copied .* has \[2\] of \[3\]"):
            started.brokers[0].slaves[0].wait_copied("orders")


def test_a_copy_of_a_stopped_master_is_not_awaited(backend: FakeBackend) -> None:
    with Cluster.start(slaves=1) as started:
        started.brokers[0].kill()
        with pytest.raises(ClusterError, match=r"broker-a at .* does not run"):
            started.brokers[0].slaves[0].wait_copied("orders")


def test_brokers_have_versions_of_their_own(backend: FakeBackend, server: AnsweringServer) -> None:
    both = [
        {"brokerName": name, "brokerAddrs": {"0": server.address}}
        for name in ("broker-a", "broker-b")
    ]
    server.answers[105] = Response(body=json.dumps({"brokerDatas": both}).encode())
    with Cluster.start("5.5.0", broker_versions=("4.9.7", "5.5.0")) as started:
        assert [broker.version for broker in started.brokers] == ["4.9.7", "5.5.0"]
        assert [server.version for server in started.namesrvs] == ["5.5.0"]


def test_another_number_of_brokers_than_versions_raises(backend: FakeBackend) -> None:
    with pytest.raises(ClusterError, match="brokers=3, but broker_versions has 2"):
        Cluster.start(brokers=3, broker_versions=("4.9.7", "5.5.0"))

    assert backend.closed == 1


def test_a_stopped_broker_is_started_with_another_version(backend: FakeBackend) -> None:
    with Cluster.start("4.9.7") as started:
        (broker,) = started.brokers
        broker.restart(version="5.5.0")
        assert broker.version == "5.5.0"
        broker.restart()
        broker.restart(version="5.5.0")

    assert backend.servers[0].versions == ["5.5.0", None, None]


@pytest.mark.parametrize("wrong", [{"brokers": 0}, {"brokers": 27}, {"namesrvs": 0}])
def test_an_invalid_number_of_servers_raises(backend: FakeBackend, wrong: dict[str, int]) -> None:
    name, value = next(iter(wrong.items()))

    with pytest.raises(ClusterError, match=f"{name}={value}"):
        Cluster.start(**wrong)  # type: ignore[arg-type]

    assert backend.closed == 1


def test_an_error_inside_the_block_gets_a_note_with_the_log_folder(backend: FakeBackend) -> None:
    with pytest.raises(KeyError) as raised, Cluster.start():
        raise KeyError

    (note,) = raised.value.__notes__
    assert Path(note.partition(": ")[2], "stdout.log").exists()
    assert backend.closed == 1


def test_errors_are_raised_although_logs_cannot_be_saved(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_AIO_LOGS", "/dev/null/logs")
    with pytest.raises(RuntimeError, match="of the test"), Cluster.start():
        raise RuntimeError("of the test")
    backend.broker_pid = None
    with pytest.raises(StartError, match="ended while it started") as raised:
        Cluster.start()

    assert raised.value.logs is None
    assert backend.closed == 2


def test_a_topic_is_created_on_every_master(backend: FakeBackend, server: AnsweringServer) -> None:
    with Cluster.start() as started:
        started.create_topic("orders", queues=3)

    (asked,) = [asked for asked in server.asked if asked.code == 17]
    assert asked.fields["topic"] == "orders"
    assert asked.fields["readQueueNums"] == asked.fields["writeQueueNums"] == "3"


def test_a_topic_without_a_route_is_reported_with_what_to_do(
    backend: FakeBackend, server: AnsweringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ROUTE_SECONDS", 0)
    with Cluster.start() as started:
        server.answers[105] = Response(code=17)
        with pytest.raises(ClusterError, match=r"no route of topic orders.*`check_running`"):
            started.create_topic("orders")


def test_a_topic_at_a_killed_broker_is_reported_with_what_to_do() -> None:
    with Cluster.start(backend="embedded") as started:
        started.brokers[0].kill()
        with pytest.raises(ClusterError, match=r"broker-a .*does not respond.*start it"):
            started.create_topic("orders")


def test_a_topic_is_deleted_at_the_broker_before_the_name_server(
    backend: FakeBackend, server: AnsweringServer
) -> None:
    with Cluster.start() as started:
        server.asked.clear()
        started.delete_topic("orders")

    assert [asked.code for asked in server.asked] == [215, 216]


def test_a_group_is_created_and_deleted_with_its_offsets(
    backend: FakeBackend, server: AnsweringServer
) -> None:
    with Cluster.start() as started:
        server.asked.clear()
        started.create_group("billing")
        started.delete_group("billing")

    created, deleted = server.asked
    assert (created.code, json.loads(created.body)["groupName"]) == (200, "billing")
    assert (deleted.code, deleted.fields["cleanOffset"]) == (207, "true")


def test_an_external_cluster_is_found_through_its_name_server(
    external: Cluster, server: AnsweringServer
) -> None:
    assert external.backend == "external"
    assert external.namesrv == server.address
    assert [(b.name, b.address) for b in external.brokers] == [("broker-a", server.address)]
    external.check_running()
    assert external.save_logs() is None


@pytest.mark.parametrize("action", ["kill", "stop", "pause", "resume", "start", "restart"])
def test_servers_of_an_external_cluster_are_not_stopped(external: Cluster, action: str) -> None:
    for server in (external.brokers[0], external.namesrvs[0]):
        with pytest.raises(NotOwnedError, match="ROCKETMQ_NAMESRV"):
            getattr(server, action)()


@pytest.mark.parametrize(
    "choice",
    [
        {"slaves": 1},
        {"sync_replication": True},
        {"controller": True},
        {"controllers": 3},
        {"broker_versions": ["5.5.0"]},
    ],
)
def test_replicas_and_versions_of_an_external_cluster_cannot_be_chosen(
    server: AnsweringServer, monkeypatch: pytest.MonkeyPatch, choice: dict[str, Any]
) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", server.address)

    with pytest.raises(NotOwnedError, match="slaves, sync_replication, controllers and"):
        Cluster.start(backend="external", **choice)


def test_an_unreachable_external_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", "127.0.0.1:1")

    with pytest.raises(StartError, match=r"no name server answers at 127\.0\.0\.1:1"):
        Cluster.start(backend="external")


def test_an_external_cluster_without_brokers_raises(
    server: AnsweringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", server.address)
    server.answers = {106: Response(body=b'{"brokerAddrTable": {}}')}

    with pytest.raises(StartError, match="no broker is registered"):
        Cluster.start(backend="external")


def test_a_cluster_that_is_not_started_names_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"use Cluster.start\(\)"):
        Cluster("jvm", "5.5.0")  # type: ignore[arg-type]
