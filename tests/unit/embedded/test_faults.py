"""Faults of embedded clusters: which requests they meet, and what the client sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.faults import (
    GARBAGE,
    KINDS,
    UNKNOWN_OPAQUE,
    Fault,
    Faults,
    Requests,
    names_of,
)
from rocketmq_aio.embedded.responses import Close, Outcome, Raw, Response
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.requests.groups import GetRouteInfo, LockBatchMQ
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset, UpdateConsumerOffset
from tests.fakes.conformance.case_env import CaseEnv, send_header
from tests.fakes.conformance.locking import body as lock_body
from tests.fakes.raw_client import RawClient

MAX_OFFSET = GetMaxOffset(topic="orders", queue_id=0)
SEND = RequestCode.SEND_MESSAGE_V2
ORDERS = CaseEnv("", "", "5.5.0", "orders", "billing")
PAYMENTS = ORDERS._replace(topic="payments")
MINUTE = 60.0


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(brokers=2, topics={"orders": 4, "payments": 4}) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: EmbeddedCluster) -> AsyncIterator[RawClient]:
    async with RawClient(cluster.broker.address) as client:
        yield client


async def codes_of_sends(client: RawClient, count: int, env: CaseEnv = ORDERS) -> list[int]:
    return [(await client.ask(send_header(env), b"body")).code for _ in range(count)]


def stored(cluster: EmbeddedCluster) -> int:
    return len(cluster.broker.messages("orders"))


# --- selection -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("add", "reason"),
    [
        (lambda faults: faults.drop("sned"), "requests='sned': choose from send, send_back"),
        (lambda faults: faults.drop(()), r"requests=\(\): choose from send"),
        (lambda faults: faults.drop(("send", 1.5)), "requests=1.5: choose from send"),
        (lambda faults: faults.drop("send", tpic="orders"), "tpic: this fault has no such"),
        (lambda faults: faults.refuse("send", topic=["a"]), r"topic=\['a'\]: expected one name"),
        (lambda faults: faults.handle("send", None, executed=False), "executed: this fault has no"),
        (lambda faults: faults.hold("send", times="2"), "times='2': expected a whole number"),
        (lambda faults: faults.drop(1.5), "requests=1.5: choose from"),
        (lambda faults: faults.handle("send", 5), "handler=5: expected a Callable or a Response"),
        (lambda faults: faults.hold("send", times=0), "times=0: expected 1 or more, or None"),
        (lambda faults: faults.drop("send", broker="broker-z"), "choose from namesrv, broker-a, "),
        (lambda faults: faults.refuse("send", "BUSY"), "code='BUSY': expected a response code"),
        (lambda faults: faults.delay("send", -1), "seconds=-1: expected a number from 0 on"),
        (lambda faults: faults.delay("send", float("nan")), "seconds=nan: expected a number"),
    ],
)
def test_arguments_that_no_request_can_meet_raise(
    add: Callable[[Faults], object], reason: str
) -> None:
    faults = EmbeddedCluster(brokers=2).faults

    with pytest.raises((ValueError, TypeError), match=reason):
        add(faults)

    assert not faults.active


async def test_a_fault_is_applied_once_by_default(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    fault = cluster.faults.refuse("send")

    assert await codes_of_sends(client, 3) == [ResponseCode.SYSTEM_BUSY, 0, 0]
    assert (fault.count, [each.code for each in fault.requests]) == (1, [SEND])
    assert not cluster.faults.active


async def test_a_fault_without_a_limit_stays_until_it_is_removed(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    with cluster.faults.refuse("send", 14, times=None) as fault:
        assert await codes_of_sends(client, 3) == [14, 14, 14]

    assert await codes_of_sends(client, 1) == [0]
    fault.remove()


async def test_limited_faults_come_first_in_order_then_the_newest_kept_one(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    cluster.faults.refuse("send", 1, times=None)
    cluster.faults.refuse("send", 2, times=None)
    cluster.faults.refuse("send", 14)
    cluster.faults.refuse("send", 13, times=2)

    assert await codes_of_sends(client, 5) == [14, 13, 13, 2, 2]


@pytest.mark.parametrize(
    ("requests", "met"),
    [
        ("send", True),
        (SEND, True),
        ({SEND, 11}, True),
        (("commit", "send"), True),
        (None, True),
        ("pull", False),
        (RequestCode.SEND_BATCH_MESSAGE, False),
    ],
    ids=str,
)
async def test_requests_are_chosen_by_kind_code_codes_or_all(
    cluster: EmbeddedCluster, client: RawClient, requests: Requests, met: bool
) -> None:
    cluster.faults.refuse(requests, 14)

    assert await codes_of_sends(client, 1) == [14 if met else 0]


async def test_requests_are_chosen_by_topic(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.faults.refuse("send", 14, topic="payments", times=None)

    assert await codes_of_sends(client, 1) == [0]
    assert await codes_of_sends(client, 1, PAYMENTS) == [14]


async def test_requests_are_chosen_by_group(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.faults.refuse(None, 14, group="billing", times=None)
    commit = UpdateConsumerOffset(
        consumer_group="billing", topic="orders", queue_id=0, commit_offset=1
    )

    assert (await client.ask(commit)).code == 14
    assert (await client.ask(LockBatchMQ(), lock_body(ORDERS, "c@1", (0,)))).code == 14
    assert (await client.ask(send_header(ORDERS, producer_group="billing"), b"x")).code == 14
    assert (await client.ask(send_header(ORDERS), b"body")).code == 0


async def test_requests_are_chosen_by_broker(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.faults.refuse(None, 14, broker="broker-b", times=None)

    assert await codes_of_sends(client, 1) == [0]
    async with RawClient(cluster.brokers[1].address) as other:
        assert await codes_of_sends(other, 1) == [14]


def test_servers_are_chosen_by_their_present_names() -> None:
    cluster = EmbeddedCluster()
    cluster.name_server.name = "namesrv-0"

    assert cluster.faults.drop("route", broker="namesrv-0").count == 0


async def test_name_servers_have_faults_too(cluster: EmbeddedCluster) -> None:
    cluster.faults.refuse("route", 17, "no route", broker="namesrv")
    async with RawClient(cluster.namesrv) as client:
        answer = await client.ask(GetRouteInfo(topic="orders"))
        again = await client.ask(GetRouteInfo(topic="orders"))

    assert (answer.code, answer.remark, again.code) == (17, "no route", 0)


def test_names_in_heartbeats_and_acks_are_found() -> None:
    heartbeat = b'{"consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t"}]}]}'
    acks = b'{"acks":[{"c":"g","t":"t"}]}'

    assert names_of(Command(34, 0, body=heartbeat)) == ({"t"}, {"g"})
    assert names_of(Command(200151, 0, body=acks)) == ({"t"}, {"g"})
    assert names_of(Command(34, 0, body=b"no json")) == (set(), set())


def test_every_kind_is_a_set_of_codes() -> None:
    assert all(KINDS.values())
    assert not frozenset.intersection(KINDS["send"], KINDS["pull"])


async def test_clear_removes_all_faults_and_releases_held_responses(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    held = cluster.faults.hold("send", times=None)
    opaque = client.send(send_header(ORDERS), b"body")
    await held.wait(1)
    cluster.faults.refuse("send", times=None)
    cluster.faults.clear()

    assert (await client.answer(opaque)).code == 0
    assert await codes_of_sends(client, 1) == [0]


# --- what the client sees ------------------------------------------------------------------------


async def test_a_refused_request_is_not_executed(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    cluster.faults.refuse("send", ResponseCode.SERVICE_NOT_AVAILABLE, "no room")
    answer = await client.ask(send_header(ORDERS), b"body")

    assert (answer.code, answer.remark, stored(cluster)) == (14, "no room", 0)


async def test_an_executed_request_can_be_answered_with_another_code(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    cluster.faults.refuse("send", ResponseCode.FLUSH_DISK_TIMEOUT, executed=True)
    answer = await client.ask(send_header(ORDERS), b"body")

    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert answer.ext_fields()["queueOffset"] == "0"
    assert stored(cluster) == 1


@pytest.mark.parametrize("executed", [True, False])
async def test_a_dropped_response_is_never_sent(
    cluster: EmbeddedCluster, client: RawClient, executed: bool
) -> None:
    fault = cluster.faults.drop("send", executed=executed)
    opaque = client.send(send_header(ORDERS), b"body")
    await fault.wait()
    with pytest.raises(TimeoutError):
        await client.answer(opaque, seconds=0.05)

    assert stored(cluster) == executed


@pytest.mark.parametrize(("how", "error"), [("close", EOFError), ("reset", ConnectionResetError)])
@pytest.mark.parametrize("executed", [True, False])
async def test_a_connection_can_be_closed_or_reset_instead_of_a_response(
    cluster: EmbeddedCluster, client: RawClient, how: str, error: type[Exception], executed: bool
) -> None:
    getattr(cluster.faults, how)("send", executed=executed)
    with pytest.raises(error):
        await client.ask(send_header(ORDERS), b"body")

    assert stored(cluster) == executed


@pytest.mark.parametrize("executed", [True, False])
async def test_a_delay_is_measured_by_the_clock_of_the_cluster(
    cluster: EmbeddedCluster, client: RawClient, executed: bool
) -> None:
    fault = cluster.faults.delay("send", MINUTE, executed=executed)
    opaque = client.send(send_header(ORDERS), b"body")
    await fault.wait()
    with pytest.raises(TimeoutError):
        await client.answer(opaque, seconds=0.05)
    before = stored(cluster)
    cluster.clock.advance(MINUTE)

    assert (await client.answer(opaque)).code == 0
    assert (before, stored(cluster)) == (executed, 1)


@pytest.mark.parametrize("executed", [True, False])
async def test_held_responses_are_released_in_any_order(
    cluster: EmbeddedCluster, client: RawClient, executed: bool
) -> None:
    held = cluster.faults.hold("send", executed=executed, times=2)
    opaques = [client.send(send_header(ORDERS), b"%d" % n) for n in range(3)]
    await held.wait(2)
    before = stored(cluster)
    held.release(1)
    second = await client.answer(opaques[1])
    held.release()

    assert second.code == 0
    assert (await client.answer(opaques[0])).code == 0
    assert (before, stored(cluster)) == (3 if executed else 1, 3)


async def test_a_held_response_of_a_closed_connection_is_forgotten(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    held = cluster.faults.hold("send")
    client.send(send_header(ORDERS), b"body")
    await held.wait(1)
    await client.close()
    await cluster.broker.wait_for_connections(0)
    await asyncio.sleep(0)

    assert held.held == []


RAW: list[tuple[Callable[[Faults], Fault], bytes]] = [
    (lambda faults: faults.garbage(30), GARBAGE),
    (lambda faults: faults.garbage(30, b"HTTP/1.1 400"), b"HTTP/1.1 400"),
    (lambda faults: faults.handle(30, Raw(b"raw", close=True)), b"raw"),
    (lambda faults: faults.handle(30, Close()), b""),
]


@pytest.mark.parametrize(("add", "data"), RAW)
async def test_any_bytes_can_be_sent_instead_of_a_response(
    cluster: EmbeddedCluster, client: RawClient, add: Callable[[Faults], Fault], data: bytes
) -> None:
    fault = add(cluster.faults)
    client.send(MAX_OFFSET)
    await fault.wait()
    await client.received(len(data))
    await cluster.broker.stop()

    assert await client.end() == data


async def test_a_response_can_be_cut_doubled_or_sent_to_another_opaque(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    cluster.faults.duplicate(30)
    opaque = client.send(MAX_OFFSET)
    first, second = await client.answer(opaque), await client.answer(opaque)
    cluster.faults.wrong_opaque(30)
    client.send(MAX_OFFSET)
    foreign = await client.answer(UNKNOWN_OPAQUE)
    cluster.faults.truncate(30)
    client.send(MAX_OFFSET)
    half = await client.end()
    whole = cluster.broker.frame(Command(30, opaque + 2), Response(0, first.ext_fields()))

    assert first.ext_fields() == second.ext_fields() == foreign.ext_fields() == {"offset": "0"}
    assert half == whole[: len(whole) // 2]


async def test_a_handler_can_change_the_normal_response(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    async def handler(command: Command, connection: ServerConnection) -> Outcome:
        outcome = await cluster.broker.execute(command, connection)
        assert isinstance(outcome, Response)
        return Response(outcome.code, {"offset": "42"})

    cluster.faults.handle(30, handler)

    assert (await client.ask(MAX_OFFSET)).ext_fields() == {"offset": "42"}


async def test_an_error_in_a_handler_closes_the_connection_and_is_raised_at_the_end() -> None:
    def broken(_command: Command, _connection: ServerConnection) -> Outcome:
        raise LookupError("a mistake in a test")

    async def run() -> None:
        async with EmbeddedCluster() as cluster, RawClient(cluster.broker.address) as client:
            cluster.faults.handle(30, broken)
            client.send(MAX_OFFSET)
            assert await client.end() == b""

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(LookupError)


@pytest.mark.parametrize("is_coroutine", [True, False])
async def test_a_failure_of_the_test_in_a_handler_is_raised_at_the_end(is_coroutine: bool) -> None:
    def fail(_command: Command, _connection: ServerConnection) -> Outcome:
        pytest.fail("no request is expected")  # raises no Exception, but a BaseException

    async def fail_later(command: Command, connection: ServerConnection) -> Outcome:
        return fail(command, connection)

    async def run() -> None:
        async with EmbeddedCluster() as cluster, RawClient(cluster.broker.address) as client:
            cluster.faults.handle(30, fail_later if is_coroutine else fail)
            client.send(MAX_OFFSET)
            assert await client.end() == b""

    with pytest.raises(BaseExceptionGroup) as caught:
        await run()
    assert caught.group_contains(pytest.fail.Exception, match="no request is expected")


async def test_a_handler_that_is_cancelled_from_outside_is_an_error() -> None:
    async def cancelled(_command: Command, _connection: ServerConnection) -> Outcome:
        raise asyncio.CancelledError("of another task")

    async def run() -> None:
        async with (
            EmbeddedCluster(topics={"orders": 1}) as cluster,
            RawClient(cluster.broker.address) as client,
        ):
            cluster.faults.handle("send", cancelled)
            with pytest.raises(EOFError):
                await client.ask(send_header(ORDERS), b"body")

    with pytest.raises(ExceptionGroup, match="a handler failed"):
        await run()


async def test_new_connections_can_be_greeted_closed_or_reset(cluster: EmbeddedCluster) -> None:
    cluster.faults.connect(data=b"HTTP/1.1 400")
    cluster.faults.connect()
    cluster.faults.connect(reset=True)
    ends = []
    for _ in range(3):
        async with RawClient(cluster.broker.address) as client:
            ends.append(await client.end())
    async with RawClient(cluster.broker.address) as client:
        assert (await client.ask(MAX_OFFSET)).code == 0

    assert ends == [b"HTTP/1.1 400", b"", b""]


async def test_a_handler_may_restart_its_server(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    restarted = asyncio.Event()

    async def restart(_command: Command, _connection: ServerConnection) -> Outcome:
        await cluster.broker.restart()
        restarted.set()
        return Response()

    cluster.faults.handle("send", restart)
    with pytest.raises(EOFError):
        await client.ask(send_header(ORDERS), b"body")
    await restarted.wait()

    async with RawClient(cluster.broker.address) as again:
        assert await codes_of_sends(again, 1) == [0]


async def test_a_clear_releases_the_responses_of_a_fault_that_is_used_up(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    held = cluster.faults.hold("send")
    opaque = client.send(send_header(ORDERS), b"body")
    await held.wait()
    cluster.faults.clear()

    assert (await client.answer(opaque)).code == 0
    assert held.held == []
