"""PushConsumer faults: failing handlers, error responses, lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count

import pytest
import pytest_asyncio

from rocketmq_aio.consumer.common.events import (
    CommitFailed,
    HandlerStuck,
    MessageDeadLettered,
    OffsetCorrected,
    PullFailed,
)
from rocketmq_aio.consumer.push.handlers import RetryLater
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import DLQ_PREFIX
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from tests.fakes.cluster import FakeCluster
from tests.fakes.frame_rules import duplicate
from tests.fakes.proxy import FaultProxy
from tests.faults.proxied import QUICK, proxied_config, shorten_timeout
from tests.faults.pushing import RETRIES, SOON, Behaviour, Group, group_of
from tests.history import Outcome
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, committed, numbers, put
from tests.unit.consumer.parts import queue
from tests.unit.remoting.until import until

PULL = RequestCode.PULL_MESSAGE
BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2

REFUSALS = [
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.FLOW_CONTROL,
    ResponseCode.NO_PERMISSION,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    999,
]


@pytest_asyncio.fixture
async def group(cluster: FakeCluster) -> AsyncIterator[Group]:
    async with group_of(cluster) as group:
        yield group


@pytest.fixture(autouse=True)
def local_retries_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketmq_aio.consumer.push.concurrent.LOCAL_RETRY_SECONDS", SOON)


def once(error: Callable[[], BaseException], *bodies: str) -> Behaviour:
    """Raise at the first delivery of each of *bodies*."""
    met: set[bytes] = set()

    async def behave(message: MessageExt) -> None:
        if message.body.decode() in bodies and message.body not in met:
            met.add(message.body)
            raise error()

    return behave


# --- handlers ------------------------------------------------------------------------------------


class Odd(BaseException):
    """A `BaseException`, as raised by test tools and some frameworks."""


@pytest.mark.parametrize(
    "error",
    [ValueError, RetryLater, asyncio.CancelledError, TimeoutError, StopAsyncIteration, Odd],
    ids=lambda error: error.__name__,
)
async def test_message_whose_handler_raises_is_redelivered(
    cluster: FakeCluster, group: Group, error: type[BaseException]
) -> None:
    put(cluster, *numbers(20))
    await group.join(once(error, "3", "7"))
    await group.have(*numbers(20))
    await group.drained()

    assert sorted(group.handled()) == sorted(numbers(20))
    assert len(cluster.broker.requests_of(BACK)) == 2


async def test_message_that_always_fails_goes_to_the_dlq_without_blocking(
    cluster: FakeCluster, group: Group
) -> None:
    async def behave(message: MessageExt) -> None:
        if message.body == b"3":
            raise ValueError("poison")

    put(cluster, *numbers(10))
    await group.join(behave, max_reconsume_times=3)
    await until(lambda: group.events_of(MessageDeadLettered), "the event")
    await group.drained()

    assert group.handled(Outcome.FAIL) == ["3"] * 4
    assert [run.tries for run in group.history.handled if run.body == b"3"] == [0, 1, 2, 3]
    (dead,) = cluster.broker.messages(DLQ_PREFIX + GROUP)
    assert dead.body == b"3"


async def test_stuck_handler_is_reported_cancelled_and_its_message_redelivered(
    cluster: FakeCluster, group: Group
) -> None:
    tries = count()

    async def behave(message: MessageExt) -> None:
        if message.body == b"3" and next(tries) == 0:
            await asyncio.Event().wait()

    put(cluster, *numbers(10))
    await group.join(behave, consume_timeout_seconds=0.2, stuck_seconds=0.05)
    await group.have(*numbers(10))
    await group.drained()

    (stuck,) = group.events_of(HandlerStuck)
    assert (stuck.queue, stuck.offset) == (queue(), 3)
    assert group.handled(Outcome.UNKNOWN) == ["3"]


async def test_result_after_the_timeout_is_ignored(cluster: FakeCluster, group: Group) -> None:
    tries = count()
    running: list[int] = []
    begun_meanwhile: list[int] = []

    async def behave(message: MessageExt) -> None:
        running.append(len(running))
        if next(tries) == 0:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            for _ in range(50):  # the retry takes time, too
                await asyncio.sleep(0)
            begun_meanwhile.append(len(running))

    put(cluster, "a")
    await group.join(behave, consume_timeout_seconds=0.1)
    await group.have("a")
    await group.drained()

    assert [run.outcome for run in group.history.handled] == [Outcome.UNKNOWN, Outcome.OK]
    assert begun_meanwhile == [1]  # it came again only after its handler
    assert len(cluster.broker.requests_of(BACK)) == 1


async def test_stuck_handler_holds_its_offset_only(cluster: FakeCluster, group: Group) -> None:
    let_go = asyncio.Event()

    async def behave(message: MessageExt) -> None:
        if message.body == b"3":
            await let_go.wait()

    put(cluster, *numbers(500))
    put(cluster, *(f"b{number}" for number in range(500)), queue_id=1)
    await group.join(behave, pull_threshold_per_queue=50, pull_batch_size=16)
    await group.have(*(f"b{number}" for number in range(500)))
    await until(lambda: cluster.broker.committed(GROUP, TOPIC, 1) == 500)
    await committed(cluster, {0: 3})
    let_go.set()
    await group.have(*numbers(500))
    await group.drained()


# --- send back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", REFUSALS)
async def test_refused_send_back_sends_a_copy(
    cluster: FakeCluster, group: Group, code: int
) -> None:
    cluster.faults.refuse("send_back", code)
    put(cluster, *numbers(5))
    await group.join(once(ValueError, "3"))
    await group.have(*numbers(5))
    await group.drained()

    assert len(cluster.broker.requests_of(SEND)) == 1


@pytest.mark.parametrize("code", REFUSALS)
async def test_failed_send_back_retries_locally(
    cluster: FakeCluster, group: Group, code: int
) -> None:
    tries = count()

    async def behave(message: MessageExt) -> None:
        if message.body == b"3" and next(tries) < 3:
            raise ValueError

    cluster.faults.refuse(("send_back", "send"), code, times=None)
    put(cluster, *numbers(10))
    await group.join(behave)
    await group.have(*numbers(10))
    await group.drained()

    assert [run.tries for run in group.history.handled if run.body == b"3"] == [0, 1, 2, 3]
    assert "%RETRY%billing" not in {e.queue.topic for e in group.history.handled}


@pytest.mark.parametrize("how", ["closed", "reset", "silent"])
async def test_connection_lost_during_send_back_duplicates_but_loses_nothing(
    cluster: FakeCluster, proxy: FaultProxy, group: Group, how: str
) -> None:
    faults = cluster.faults
    {"closed": faults.close, "reset": faults.reset, "silent": faults.drop}[how]("send_back")
    put(cluster, *numbers(5))
    consumer = await group.join(once(ValueError, "3"), client=proxied_config(proxy, cluster))
    shorten_timeout(consumer.client)
    await group.have(*numbers(5))
    await group.drained()

    assert group.handled().count("3") == 2


async def test_repeated_connection_losses_lose_nothing(
    cluster: FakeCluster, proxy: FaultProxy, group: Group
) -> None:
    async def behave(message: MessageExt) -> None:
        await asyncio.sleep(0)
        if message.reconsume_times == 0 and int(message.body) % 10 == 3:
            raise ValueError

    await group.join(behave, client=proxied_config(proxy, cluster), pull_batch_size=8)
    for round_ in range(10):
        put(cluster, *numbers(40, first=40 * round_), queue_id=round_ % 2)
        await group.have(str(40 * round_))
        proxy.cut(reset=round_ % 2 == 0)
    await group.have(*numbers(400))
    await group.drained()


# --- error responses -----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [*REFUSALS, ResponseCode.SUBSCRIPTION_NOT_EXIST])
async def test_pulling_continues_after_any_response(
    cluster: FakeCluster, group: Group, code: int
) -> None:
    put(cluster, *numbers(5))
    cluster.faults.refuse("pull", code, times=4)
    await group.join()
    await group.have(*numbers(5))
    await group.drained()

    assert sorted(group.handled()) == numbers(5)


@pytest.mark.parametrize("code", REFUSALS)
async def test_commit_is_repeated_after_any_failure(
    cluster: FakeCluster, group: Group, code: int
) -> None:
    put(cluster, *numbers(5))
    cluster.faults.refuse("commit", code, times=3)
    await group.join()
    await group.drained()

    assert len(group.events_of(CommitFailed)) >= 1
    assert cluster.broker.committed(GROUP, TOPIC, 0) == 5


@pytest.mark.parametrize("how", ["responses come twice", "requests come twice"])
async def test_repeated_pulls_deliver_each_message_once(
    cluster: FakeCluster, proxy: FaultProxy, group: Group, how: str
) -> None:
    if how == "responses come twice":
        cluster.faults.duplicate("pull", times=None)
    else:
        proxy.up.on(duplicate, code=PULL, times=None)
    put(cluster, *numbers(100))
    await group.join(client=proxied_config(proxy, cluster), pull_batch_size=8)
    await group.drained()

    assert sorted(group.handled()) == sorted(numbers(100))


async def test_unanswered_pull_is_repeated(
    cluster: FakeCluster, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketmq_aio.consumer.pull_loop.pull_request.HOLD_SLACK_SECONDS", QUICK)
    cluster.faults.drop("pull", times=4)
    put(cluster, *numbers(5))
    await group.join(long_poll_seconds=QUICK)
    await group.drained()

    assert group.events_of(PullFailed)


async def test_consumption_continues_without_a_name_server(
    cluster: FakeCluster, group: Group
) -> None:
    consumer = await group.join(once(ValueError, "3"))
    retries = MessageQueue(RETRIES, cluster.broker.name, 0)
    await until(lambda: retries in consumer.assignment(), "the route of retries")
    await cluster.name_server.stop()
    put(cluster, *numbers(10))
    await group.have(*numbers(10))
    await cluster.name_server.start()


async def test_retries_without_a_route_wait_for_the_name_server(
    cluster: FakeCluster, group: Group
) -> None:
    ignored = cluster.faults.handle("heartbeat", Response(), times=None)  # so it makes no topic yet
    consumer = await group.join(once(ValueError, "3"))
    await cluster.name_server.stop()
    ignored.remove()
    await consumer.client.heartbeats.send_all()
    put(cluster, *numbers(10))
    await group.have(*(each for each in numbers(10) if each != "3"))
    await cluster.name_server.start()
    await group.have("3")
    await group.drained()


async def test_restarted_broker_redelivers_only_messages_in_flight(
    cluster: FakeCluster, group: Group
) -> None:
    await group.join(once(ValueError, "13", "93"), long_poll_seconds=0.2)
    for round_ in range(5):
        put(cluster, *numbers(20, first=20 * round_))
        await group.have(str(20 * round_))
        await cluster.broker.restart()
    await group.have(*numbers(100))
    await group.drained()


# --- corrected and reset offsets -----------------------------------------------------------------


async def test_a_corrected_offset_loses_nothing_while_handlers_run(
    cluster: FakeCluster, group: Group
) -> None:
    let_go = asyncio.Event()

    async def behave(message: MessageExt) -> None:
        if message.body in (b"7", b"8"):
            await let_go.wait()

    put(cluster, *numbers(10))
    await group.join(behave, long_poll_seconds=0.1)
    await committed(cluster, {0: 7})
    log = cluster.broker.topics[TOPIC].queues[0]
    del log.messages[8:]  # a broker that lost its last messages
    await until(lambda: group.events_of(OffsetCorrected), "the event")
    let_go.set()
    put(cluster, "new 8", "new 9")
    group.unchecked.add("I8")  # two messages had these offsets
    await group.have("new 8", "new 9", "7")
    await group.drained()


@pytest.mark.parametrize("target", [2, 15], ids=["back", "on"])
async def test_reset_ignores_results_of_running_handlers(
    cluster: FakeCluster, group: Group, target: int
) -> None:
    let_go = asyncio.Event()

    async def behave(message: MessageExt) -> None:
        if message.body in (b"7", b"9"):
            await let_go.wait()

    put(cluster, *numbers(20))
    consumer = await group.join(behave)
    await group.have("19")
    # A commit on its way would be recorded after the reset.
    await committed(cluster, {0: 7})
    group.recorder.reset(GROUP, queue(), target)
    await consumer._engine.reset_offsets(TOPIC, {queue(): target})
    assert cluster.broker.committed(GROUP, TOPIC, 0) == target
    await until(lambda: group.handled().count("19") == 2)
    let_go.set()
    await group.drained()
    assert len(group.handled()) == 20 + 20 - target
