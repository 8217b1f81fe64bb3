"""Life of embedded servers: kill, freeze, restart, replicas, full disks, name servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
import pytest

from rocketmq_aio.embedded import server as server_module
from rocketmq_aio.embedded.broker import broker as broker_module
from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.broker.locks import KEPT_SECONDS
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.notifier import WAIT_SECONDS
from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.model.address import VIP_OFFSET, vip_address
from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.bodies import MAX_QUEUES
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.requests.admin import CreateTopic
from rocketmq_aio.protocol.requests.groups import GetRouteInfo, LockBatchMQ, UnregisterClient
from rocketmq_aio.protocol.requests.offsets import (
    GetMaxOffset,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from rocketmq_aio.protocol.requests.send import ConsumerSendMsgBack, EndTransaction, RecallMessage
from rocketmq_aio.testing.ports import are_free
from tests.fakes.conformance.case_env import CaseEnv, pull_header, send_header
from tests.fakes.conformance.locking import body as lock_body, lock
from tests.fakes.conformance.membership import heartbeat, members
from tests.fakes.conformance.popping import pop_header
from tests.fakes.raw_client import RawClient
from tests.history import Resources
from tests.unit.remoting.until import settle

CASE_ENV = CaseEnv("", "", "5.5.0", "orders", "billing")
MAX_OFFSET = GetMaxOffset(topic="orders", queue_id=0)
ROUTE = GetRouteInfo(topic="orders", accept_standard_json_only=True)
NOT_HELD = 4
SEND_BACK = ConsumerSendMsgBack(
    offset=0, group="billing", delay_level=1, origin_topic="orders", max_reconsume_times=16
)
COMMIT = EndTransaction(
    producer_group="p",
    tran_state_table_offset=0,
    commit_log_offset=0,
    commit_or_rollback=8,
    from_transaction_check=False,
    msg_id="x",
    transaction_id="x",
)


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(brokers=2, topics={"orders": 4}) as cluster:
        yield cluster


async def route(cluster: EmbeddedCluster) -> dict[str, dict[str, str]]:
    """Return the addresses of the brokers with the topic, by broker id."""
    async with RawClient(cluster.namesrv) as client:
        answer = await client.ask(ROUTE)
    if answer.code:
        return {}
    brokers = msgspec.json.decode(answer.body)["brokerDatas"]
    return {each["brokerName"]: each["brokerAddrs"] for each in brokers}


# --- life ----------------------------------------------------------------------------------------


async def test_a_cluster_ends_without_leftovers() -> None:
    async def run() -> Resources:
        async with EmbeddedCluster(brokers=2, replicas=1) as cluster:
            for server in cluster.servers:
                async with RawClient(server.address) as client:
                    client.send(pull_header(CASE_ENV, 0))
                    await server.wait_for_connections(1)
        await asyncio.sleep(0)
        return Resources.now()

    after_first = await run()  # event loops open some descriptors on first use

    assert await run() == after_first
    assert len(asyncio.all_tasks()) == 1


async def test_a_cluster_can_start_again_with_its_messages() -> None:
    cluster = EmbeddedCluster(topics={"orders": 4})
    async with cluster:
        cluster.broker.put("orders", b"one")
    async with cluster, RawClient(cluster.broker.address) as client:
        assert (await client.ask(MAX_OFFSET)).ext_fields() == {"offset": "1"}


async def test_delayed_messages_are_delivered_by_a_cluster_that_starts_again() -> None:
    cluster = EmbeddedCluster(topics={"orders": 1})
    header = send_header(CASE_ENV, properties="DELAY\x012\x02")
    async with cluster, RawClient(cluster.broker.address) as client:
        await client.ask(header, b"before")
    async with cluster, RawClient(cluster.broker.address) as client:
        await client.ask(header, b"after")
        cluster.clock.advance(10)

        bodies = [message.body for message in cluster.broker.messages("orders")]

    assert bodies == [b"before", b"after"]


async def test_kill_resets_connections_and_loses_locks_but_no_messages_or_offsets(
    cluster: EmbeddedCluster,
) -> None:
    broker = cluster.broker
    async with RawClient(broker.address) as client:
        await client.ask(send_header(CASE_ENV), b"one")
        broker.commit("billing", "orders", 0, 1)
        assert await lock(client, CASE_ENV, "c@1", 0) == [0]
        broker.kill()
        with pytest.raises(ConnectionResetError):
            await client.ask(MAX_OFFSET)
    with pytest.raises(ConnectionRefusedError):
        await RawClient(broker.address).__aenter__()
    await broker.start()
    async with RawClient(broker.address) as client:
        assert (await client.ask(MAX_OFFSET)).ext_fields() == {"offset": "1"}
        assert broker.committed("billing", "orders", 0) == 1
        assert await lock(client, CASE_ENV, "c@2", 0) == [0]


# 2: a closed server of asyncio would not close the connection (CPython issue 109564).
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4])
async def test_a_connection_that_is_accepted_while_its_broker_stops_ends(
    cluster: EmbeddedCluster, turns: int
) -> None:
    broker = cluster.broker
    with socket.create_connection((broker.host, broker.port)) as client:
        client.setblocking(False)
        await settle(turns=turns)  # of the event loop, each a step of accepting
        async with asyncio.timeout(WAIT_SECONDS):
            await broker.stop()
            with suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


class StuckHandler:
    """Handler of a fault that ignores cancellations until `end` is set."""

    def __init__(self) -> None:
        self.begun, self.end = asyncio.Event(), asyncio.Event()
        self.interruptions = 0

    async def __call__(self, _command: Command, _connection: ServerConnection) -> Outcome:
        self.begun.set()
        while not self.end.is_set():
            try:
                await self.end.wait()
            except asyncio.CancelledError:
                self.interruptions += 1
        return Response()


@pytest.fixture
async def stuck(cluster: EmbeddedCluster) -> AsyncIterator[StuckHandler]:
    """A handler that is at work."""
    handler = StuckHandler()
    cluster.faults.handle(30, handler)
    async with RawClient(cluster.broker.address) as client:
        client.send(MAX_OFFSET)
        await handler.begun.wait()
        yield handler
        handler.end.set()


async def test_a_stop_after_a_cancelled_one_waits_for_handlers(
    cluster: EmbeddedCluster, stuck: StuckHandler
) -> None:
    first = asyncio.ensure_future(cluster.broker.stop())
    await cluster.broker.wait_for_connections(0)
    first.cancel()
    await asyncio.wait([first])

    second = asyncio.ensure_future(cluster.broker.stop())
    done, _ = await asyncio.wait([second], timeout=0)
    stuck.end.set()
    await second
    assert not done


async def test_a_stop_interrupts_a_handler_once(
    cluster: EmbeddedCluster, stuck: StuckHandler
) -> None:
    stop = asyncio.ensure_future(cluster.broker.stop())
    await cluster.broker.wait_for_connections(0)
    stuck.end.set()
    await stop

    assert stuck.interruptions == 1


async def test_a_handler_that_does_not_end_fails_the_stop(
    cluster: EmbeddedCluster, stuck: StuckHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "WAIT_SECONDS", 0.05)

    with pytest.raises(TimeoutError, match="handlers of faults"):
        await cluster.broker.stop()
    assert not stuck.end.is_set()


async def test_concurrent_starts_and_stops_take_turns(cluster: EmbeddedCluster) -> None:
    broker = cluster.broker
    async with RawClient(broker.address) as client:
        client.send(pull_header(CASE_ENV, 0))
        await broker.wait_for_connections(1)
        await asyncio.gather(broker.restart(), broker.restart(), broker.stop(), broker.restart())
        assert broker.is_running

        left = asyncio.ensure_future(broker.restart())
        await asyncio.sleep(0)
        await broker.stop()
        await left
    assert not broker.is_running


async def test_a_broker_also_listens_on_its_vip_port(cluster: EmbeddedCluster) -> None:
    broker = cluster.broker
    port, vip = broker.port, vip_address(broker.address)
    await broker.restart()
    broker.kill()
    with pytest.raises(ConnectionRefusedError):
        async with RawClient(vip):
            pass
    await broker.start()

    async with RawClient(vip) as client:
        assert (await client.ask(MAX_OFFSET)).code == 0
    assert broker.port == port


async def test_a_broker_whose_vip_port_is_taken_runs_without_it() -> None:
    async with EmbeddedBroker() as other:
        port = other.port + VIP_OFFSET
        async with EmbeddedBroker(preferred_port=port) as broker:
            assert broker.port == port
        async with RawClient(other.address) as client:
            assert (await client.ask(MAX_OFFSET)).code == 0


@pytest.mark.parametrize("taken", [1, 3])
async def test_free_ports_are_tried_until_a_vip_port_is_free(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    bind = EmbeddedBroker._bind

    async def bound(self: EmbeddedBroker, port: int) -> asyncio.Server:
        tried.append(port)
        if port and len(tried) <= 2 * taken:
            raise OSError("taken")
        return await bind(self, port)

    monkeypatch.setattr(EmbeddedBroker, "_bind", bound)
    monkeypatch.setattr(broker_module, "PORT_TRIES", 3)

    async with EmbeddedBroker() as broker:
        assert len(tried) == 2 * min(taken + 1, 3)
        assert len(broker._servers) == (2 if taken == 1 else 1)
        async with RawClient(broker.address) as client:
            assert (await client.ask(MAX_OFFSET)).code == 0


@pytest.mark.parametrize("vip", [False, True])
async def test_a_port_that_another_socket_listens_at_first_is_not_used(
    vip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind = EmbeddedBroker._bind
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # both can bind, one listens
        other.bind(("127.0.0.1", 0))
        taken = other.getsockname()[1]

        async def bound(self: EmbeddedBroker, port: int) -> asyncio.Server:
            server = await bind(self, port)
            if port == taken:
                other.listen()
            return server

        monkeypatch.setattr(EmbeddedBroker, "_bind", bound)

        async with EmbeddedBroker(preferred_port=taken + VIP_OFFSET * vip) as broker:
            assert (broker.port == taken + VIP_OFFSET) is vip
            assert len(broker._servers) == (1 if vip else 2)
            async with RawClient(broker.address) as client:
                assert (await client.ask(MAX_OFFSET)).code == 0


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancelled_start_of_a_broker_keeps_no_port(turns: int) -> None:
    async with EmbeddedBroker() as broker:
        port = broker.port
    start = asyncio.ensure_future(broker.start())
    await settle(turns=turns)
    start.cancel()
    with suppress(asyncio.CancelledError):
        await start
    await broker.stop()
    await settle(turns=3)  # uvloop closes in the next turn

    assert are_free([port, port - VIP_OFFSET])


async def test_a_kill_during_a_start_leaves_the_broker_stopped(cluster: EmbeddedCluster) -> None:
    broker = cluster.broker
    for turns in range(100):
        await broker.stop()
        start = asyncio.ensure_future(broker.start())
        await settle(turns=turns)
        broker.kill()
        await start
        if not broker.is_running:
            break
    else:
        pytest.fail("no kill came between the beginning of a start and its end")


async def test_a_request_to_clients_needs_one(cluster: EmbeddedCluster) -> None:
    with pytest.raises(ConnectionError, match="no client is connected to broker-a"):
        await cluster.broker.push(MAX_OFFSET)


async def test_expired_locks_are_removed(cluster: EmbeddedCluster) -> None:
    async with RawClient(cluster.broker.address) as client:
        await lock(client, CASE_ENV, "c@1", 0, 1)
        cluster.clock.advance(KEPT_SECONDS + 1)
        await lock(client, CASE_ENV._replace(group="shipping"), "c@2", 0)

        assert {group: len(held) for group, held in cluster.broker.locks.owners.items()} == {
            "shipping": 1
        }


async def test_idle_connections_are_closed_if_the_cluster_shall() -> None:
    async with (
        EmbeddedCluster(topics={"orders": 1}, idle_seconds=120) as cluster,
        RawClient(cluster.broker.address) as idle,
        RawClient(cluster.broker.address) as busy,
    ):
        await cluster.broker.wait_for_connections(2)
        cluster.clock.advance(100)
        await busy.ask(MAX_OFFSET)
        cluster.clock.advance(100)
        with pytest.raises(ConnectionResetError):
            await idle.ask(MAX_OFFSET)

        assert (await busy.ask(MAX_OFFSET)).code == 0


async def test_members_without_heartbeats_leave_although_they_pull() -> None:
    async with (
        EmbeddedCluster(topics={"orders": 1}, idle_seconds=120) as cluster,
        RawClient(cluster.broker.address) as silent,
        RawClient(cluster.broker.address) as member,
        RawClient(cluster.broker.address) as left,
    ):
        for number, client in enumerate((silent, member, left)):
            await heartbeat(client, CASE_ENV, f"c@{number}")
        await left.ask(UnregisterClient(client_id="c@2", consumer_group="billing"))
        for _ in range(2):
            cluster.clock.advance(70)
            await heartbeat(member, CASE_ENV, "c@1")
            await left.ask(MAX_OFFSET)
            with suppress(ConnectionResetError, EOFError):
                await silent.ask(MAX_OFFSET)

        assert await members(member, CASE_ENV) == ["c@1"]
        assert (await left.ask(MAX_OFFSET)).code == 0


async def test_a_topic_of_too_many_queues_is_refused(cluster: EmbeddedCluster) -> None:
    """Real brokers accept any number, even negative ones; memory here is that of the tests."""
    header = CreateTopic(
        topic="wide",
        default_topic="TBW102",
        read_queue_nums=4,
        write_queue_nums=MAX_QUEUES + 1,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )
    async with RawClient(cluster.broker.address) as client:
        response = await client.ask(header)

        assert (response.code, "wide" in cluster.broker.topics) == (1, False)
        assert "at most 65536 queues" in (response.remark or "")


async def test_a_frozen_broker_accepts_connections_but_responds_after_resume(
    cluster: EmbeddedCluster,
) -> None:
    broker = cluster.broker
    async with RawClient(broker.address) as before:
        await broker.wait_for_connections(1)
        held = before.send(pull_header(CASE_ENV, 0))
        await before.ask(MAX_OFFSET)
        broker.freeze()
        broker.put("orders", b"one")
        opaque = before.send(MAX_OFFSET)
        async with RawClient(broker.address) as during:
            new = during.send(MAX_OFFSET)
            for client, waiting in ((before, held), (before, opaque), (during, new)):
                with pytest.raises(TimeoutError):
                    await client.answer(waiting, seconds=0.05)
            broker.resume()

            assert (await during.answer(new)).ext_fields() == {"offset": "1"}
        assert (await before.answer(opaque)).code == 0
        assert (await before.answer(held)).code == 0


async def test_a_frozen_broker_can_be_killed_and_started(cluster: EmbeddedCluster) -> None:
    cluster.broker.freeze()
    cluster.broker.kill()
    await cluster.broker.start()
    await cluster.broker.start()

    async with RawClient(cluster.broker.address) as client:
        assert (await client.ask(MAX_OFFSET)).code == 0


# --- name server ---------------------------------------------------------------------------------


async def test_brokers_that_do_not_run_are_in_no_route(cluster: EmbeddedCluster) -> None:
    cluster.broker.kill()
    without = await route(cluster)
    await cluster.broker.start()

    assert list(without) == ["broker-b"]
    assert list(await route(cluster)) == ["broker-a", "broker-b"]


async def test_a_name_server_that_forgets_brokers_gets_them_back_with_time(
    cluster: EmbeddedCluster,
) -> None:
    cluster.name_server.forget_brokers()
    empty = await route(cluster)
    cluster.clock.advance(30)

    assert empty == {}
    assert list(await route(cluster)) == ["broker-a", "broker-b"]


async def test_a_killed_name_server_starts_on_its_port(cluster: EmbeddedCluster) -> None:
    cluster.name_server.kill()
    with pytest.raises(ConnectionRefusedError):
        await route(cluster)
    await cluster.name_server.start()

    assert list(await route(cluster)) == ["broker-a", "broker-b"]


# --- replicas and full disks ---------------------------------------------------------------------


@pytest.fixture(params=["4.9.7", "5.5.0"])
async def replicated(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedCluster]:
    topics = {"orders": 4}
    async with EmbeddedCluster(version=request.param, replicas=1, topics=topics) as cluster:
        yield cluster


async def test_a_replica_is_registered_with_broker_id_1(replicated: EmbeddedCluster) -> None:
    both = await route(replicated)
    (replica,) = replicated.broker.replicas
    replicated.broker.kill()
    one = await route(replicated)
    replica.kill()

    assert both == {"broker-a": {"0": replicated.broker.address, "1": replica.address}}
    assert one == {"broker-a": {"1": replica.address}}
    assert await route(replicated) == {}


async def test_a_replica_serves_messages_and_offsets_without_its_master(
    replicated: EmbeddedCluster,
) -> None:
    replicated.broker.put("orders", b"one")
    replicated.broker.commit("billing", "orders", 0, 1)
    replicated.broker.kill()
    (replica,) = replicated.broker.replicas
    offset = QueryConsumerOffset(consumer_group="billing", topic="orders", queue_id=0)
    commit = UpdateConsumerOffset(
        consumer_group="billing", topic="orders", queue_id=0, commit_offset=0
    )
    async with RawClient(replica.address) as client:
        assert (await client.ask(pull_header(CASE_ENV, 0, sys_flag=NOT_HELD))).code == 0
        assert (await client.ask(pull_header(CASE_ENV, 1, sys_flag=NOT_HELD))).code == 19
        assert (await client.ask(MAX_OFFSET)).ext_fields() == {"offset": "1"}
        assert (await client.ask(offset)).ext_fields() == {"offset": "1"}
        assert (await client.ask(commit)).code == 0
        assert (await client.ask(LockBatchMQ(), lock_body(CASE_ENV, "c@1", (0,)))).code == 0


async def test_a_promoted_replica_is_the_master(replicated: EmbeddedCluster) -> None:
    old, (new,) = replicated.broker, replicated.broker.replicas
    old.put("orders", b"one")
    new.promote()
    assert await route(replicated) == {"broker-a": {"0": new.address, "1": old.address}}
    async with RawClient(new.address) as at_new, RawClient(old.address) as at_old:
        assert (await at_new.ask(send_header(CASE_ENV), b"two")).code == 0
        assert (await at_old.ask(send_header(CASE_ENV), b"three")).code != 0
        popped = await at_new.ask(pop_header(CASE_ENV))
        assert popped.code == 0 or not old.version.is_5

    new.kill()
    assert await route(replicated) == {"broker-a": {"1": old.address}}
    old.promote()
    async with RawClient(old.address) as at_old:
        assert (await at_old.ask(send_header(CASE_ENV), b"three")).code == 0
    assert [each.body for each in old.messages("orders", 0)] == [b"one", b"two", b"three"]


async def test_a_promoted_replica_recalls_timed_messages_of_its_master() -> None:
    async with EmbeddedCluster(replicas=1, topics={"orders": 1}) as cluster:
        old, (new,) = cluster.broker, cluster.broker.replicas
        old.state.update_settings({"recallMessageEnable": "true"})
        properties = encode_properties({"TIMER_DELAY_SEC": "3600", "UNIQ_KEY": "A1"})
        async with RawClient(old.address) as client:
            sent = await client.ask(send_header(CASE_ENV, properties=properties), b"later")
        old.kill()
        new.promote()
        recall = RecallMessage(
            topic="orders", recall_handle=sent.ext_fields()["recallHandle"], producer_group="shop"
        )
        async with RawClient(new.address) as client:
            assert (await client.ask(recall)).code == 0
        cluster.clock.advance(2 * 3600)

        assert new.messages("orders") == []


async def test_a_replica_rejects_writes_like_real_ones(replicated: EmbeddedCluster) -> None:
    is_5 = replicated.broker.version.is_5
    async with RawClient(replicated.broker.replicas[0].address) as client:
        send = await client.ask(send_header(CASE_ENV), b"one")
        send_back = await client.ask(SEND_BACK)
        commit = await client.ask(COMMIT)
        pop = await client.ask(pop_header(CASE_ENV))

    busy = (2, "[REJECTREQUEST]system busy, start flow control for a while")
    assert (send.code, send_back.code) == ((2, 2) if is_5 else (14, 1))
    assert (send_back.code, send_back.remark) == (busy if is_5 else (1, "SERVICE_NOT_AVAILABLE"))
    assert (commit.code, commit.remark) == (11, "not set any response code")
    assert pop.code == (210 if is_5 else 3)
    assert replicated.broker.messages("orders") == []


async def test_a_broker_with_a_full_disk_serves_reads_only(replicated: EmbeddedCluster) -> None:
    broker = replicated.broker
    broker.put("orders", b"one")
    broker.disk_full = True
    async with RawClient(broker.address) as client:
        send = await client.ask(send_header(CASE_ENV), b"two")
        read = await client.ask(pull_header(CASE_ENV, 0, sys_flag=NOT_HELD))
        send_back = await client.ask(SEND_BACK)
        commit = await client.ask(COMMIT)
        pop = await client.ask(pop_header(CASE_ENV))
        broker.disk_full = False
        again = await client.ask(send_header(CASE_ENV), b"two")

    assert (send.code, read.code, again.code) == (14, 0, 0)
    assert "the broker's disk is full" in (send.remark or "")
    assert (send_back.code, send_back.remark) == (1, "SERVICE_NOT_AVAILABLE")
    assert (commit.code, pop.code) == (14, 210 if broker.version.is_5 else 3)


async def test_a_callback_for_events_that_raises_fails_no_request() -> None:
    def fail(event: object) -> None:
        raise OSError("no space left")

    async with (
        EmbeddedCluster(topics={"orders": 1}) as cluster,
        RawClient(cluster.broker.address) as client,
    ):
        cluster.on_event(fail)
        answer = await client.ask(send_header(CaseEnv("", "", "5.5.0", "orders", "")), b"body")
        errors = list(cluster.broker.errors)
        cluster.broker.errors.clear()  # otherwise the cluster raises them now

    assert (answer.code, [str(each) for each in errors]) == (0, ["no space left"])
