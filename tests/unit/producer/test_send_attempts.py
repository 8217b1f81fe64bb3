"""Send attempts after a failure."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import pytest

from rocketmq_aio.config.client import ClientConfig, Credentials
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.embedded.responses import Close, Raw, Response
from rocketmq_aio.errors import (
    AuthError,
    BrokerError,
    CodecError,
    ConnectionLostError,
    NotConnectedError,
    PermissionDeniedError,
    RequestTimeoutError,
    RocketMQError,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue, SendStatus
from rocketmq_aio.producer import retry as retry_module, send_attempts
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.send_attempts import EARLY_SECONDS
from rocketmq_aio.remoting.backoff import Backoff
from tests.fakes.cluster import FakeCluster
from tests.patience import PATIENCE_SECONDS
from tests.unit.producer.producer_env import (
    ORDER,
    SEND,
    ProducerEnv,
    connected,
    open_producer,
    reached,
    record_timeouts,
    stopped,
    time_out_sends,
)
from tests.unit.remoting.until import until

pytestmark = pytest.mark.usefixtures("short_pauses")

BUSY = Response(2, remark="system busy")
DOWN = Response(14, remark="service not available")
ILLEGAL = Response(13, remark="the message is illegal")
WEAKER = Response(10, ext={"msgId": "0A", "queueId": "0", "queueOffset": "9"})
ONCE = ProducerConfig(retries=0, send_timeout_seconds=PATIENCE_SECONDS)
BETTER = ProducerConfig(retry_other_broker=True, send_timeout_seconds=PATIENCE_SECONDS)


def causes(error: SendError) -> list[type[BaseException]]:
    return [type(attempt.cause) for attempt in error.attempts]


# --- other brokers -------------------------------------------------------------------------------


async def test_with_one_of_two_brokers_dead_no_send_fails(two_brokers: ProducerEnv) -> None:
    await connected(two_brokers)
    dead, alive = two_brokers.brokers
    await stopped(two_brokers, dead)
    results = [await two_brokers.producer.send(ORDER) for _ in range(100)]

    assert {each.queue.broker_name for each in results} == {alive.name}


async def test_a_retry_goes_to_another_broker_under_the_same_id(two_brokers: ProducerEnv) -> None:
    for broker in two_brokers.brokers:
        broker.faults.reset(SEND, executed=False, broker=broker.name)
    result = await two_brokers.producer.send(ORDER)

    tried = [str(each.broker_name) for each in two_brokers.sends()]
    assert sorted(tried[:2]) == ["broker-a", "broker-b"]
    assert len(tried) == 3
    assert two_brokers.ids() == {result.message_id}


async def test_a_hanging_broker_leaves_time_for_another(two_brokers: ProducerEnv) -> None:
    await reached(two_brokers)
    two_brokers.cluster.faults.drop(SEND, executed=False, times=None, broker="broker-a")
    given = time_out_sends(two_brokers, two_brokers.brokers[0])
    results = [await two_brokers.producer.send(ORDER, timeout_seconds=20) for _ in range(8)]

    assert {each.queue.broker_name for each in results} == {"broker-b"}
    assert given
    assert all(5 < each <= 10 for each in given)


async def test_copies_of_a_hanging_broker_have_the_same_id(two_brokers: ProducerEnv) -> None:
    await connected(two_brokers)
    sent = two_brokers.ids()
    held = [broker.faults.hold(SEND, broker=broker.name) for broker in two_brokers.brokers]
    time_out_sends(two_brokers, *two_brokers.brokers, times=2)
    result = await two_brokers.producer.send(ORDER)

    assert len(two_brokers.bodies()) == 2 + 3  # stored twice without an answer, then with one
    assert two_brokers.ids() - sent == {result.message_id}
    for each in held:
        each.release()


# --- the same broker -----------------------------------------------------------------------------


async def test_a_retry_goes_to_the_same_broker_if_there_is_no_other(env: ProducerEnv) -> None:
    env.broker.faults.handle(SEND, DOWN, times=2)
    result = await env.producer.send(ORDER)

    assert result.ok
    assert len(env.sends()) == 3
    assert env.ids() == {result.message_id}


async def test_a_final_error_is_raised_as_it_is(env: ProducerEnv) -> None:
    env.broker.faults.handle(SEND, ILLEGAL)
    with pytest.raises(BrokerError) as caught:
        await env.producer.send(ORDER)

    assert (caught.value.code, caught.value.remark) == (ILLEGAL.code, ILLEGAL.remark)
    assert caught.value.address == env.broker.address


@pytest.mark.parametrize(
    "refused",
    [
        Response(1, remark="AclException: No accessKey"),
        Response(16, remark="check signature failed."),
    ],
)
async def test_an_auth_error_is_not_retried(refused: Response) -> None:
    account = ClientConfig(credentials=Credentials(access_key="x", secret_key="y"))
    async with open_producer(client=account) as env:
        env.broker.faults.handle(SEND, refused, times=None)
        with pytest.raises(AuthError):
            await env.producer.send(ORDER)

        assert len(env.sends()) == 1


async def test_a_read_only_topic_raises_permission_denied() -> None:
    async with open_producer(config=ONCE) as env:
        env.broker.faults.refuse(SEND, 16, "the broker[broker-a] sending message is forbidden")
        with pytest.raises(SendError) as caught:
            await env.producer.send(ORDER)

        assert causes(caught.value) == [PermissionDeniedError]


async def test_a_chosen_queue_is_kept_over_all_attempts(two_brokers: ProducerEnv) -> None:
    two_brokers.cluster.faults.handle(SEND, BUSY, times=2, broker="broker-b")
    queue = two_brokers.queue(2, "broker-b")
    by_queue = await two_brokers.producer.send(ORDER, queue=queue)
    two_brokers.cluster.faults.close(SEND, executed=False, times=2, broker="broker-b")
    by_selector = await two_brokers.producer.send(ORDER, selector=lambda queues, _: queue)

    assert by_queue.queue == by_selector.queue == queue
    assert {(each.broker_name, each.queue_id) for each in two_brokers.sends()} == {("broker-b", 2)}
    assert len(two_brokers.sends()) == 6


async def test_a_send_waits_for_the_restart_of_its_only_broker(two_brokers: ProducerEnv) -> None:
    await connected(two_brokers)
    broker = two_brokers.brokers[0]
    await stopped(two_brokers, broker)
    queue = two_brokers.queue(0, "broker-a")
    send = two_brokers.producer.send(ORDER, queue=queue, timeout_seconds=60)
    sending = asyncio.create_task(send)
    backoff_left = two_brokers.producer.client.remoting.backoff_left
    # More failed connections than retries: each failure doubles the backoff.
    await until(lambda: backoff_left(broker.address) > 0.5, "several attempts", 20)
    assert not sending.done()

    await broker.start()
    assert (await sending).queue == queue


async def test_a_chosen_queue_on_a_dead_broker_fails(two_brokers: ProducerEnv) -> None:
    await connected(two_brokers)
    await stopped(two_brokers, two_brokers.brokers[0])
    before = len(two_brokers.bodies())
    queue = two_brokers.queue(0, "broker-a")
    with pytest.raises(SendError) as caught:
        await two_brokers.producer.send(ORDER, queue=queue, timeout_seconds=1)

    assert type(caught.value) is SendError
    assert len(two_brokers.bodies()) == before


# --- how it ends ---------------------------------------------------------------------------------


async def test_without_any_broker_a_send_raises_send_error(two_brokers: ProducerEnv) -> None:
    await connected(two_brokers)
    await stopped(two_brokers, *two_brokers.brokers)
    with pytest.raises(SendError) as caught:
        await two_brokers.producer.send(ORDER, timeout_seconds=3)

    assert type(caught.value) is SendError
    assert all(issubclass(each, NotConnectedError) for each in causes(caught.value))
    assert len(caught.value.attempts) >= 3
    tried = {attempt.address for attempt in caught.value.attempts}
    assert tried == {broker.address for broker in two_brokers.brokers}


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (Close(), ConnectionLostError),
        (Close(reset=True), ConnectionLostError),
        (Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), ConnectionLostError),
        (Raw(b"\x7f\xff\xff\xff"), ConnectionLostError),
        (Raw(b"\x00\x00\x00", close=True), ConnectionLostError),
        (None, RequestTimeoutError),
        (Response(ext={"msgId": "0A"}), CodecError),
        (Response(ext={"msgId": "0A", "queueId": "x", "queueOffset": "0"}), CodecError),
    ],
)
async def test_a_send_without_a_clear_response_raises_send_unknown(
    answer: object, cause: type[RocketMQError]
) -> None:
    async with open_producer(config=ONCE) as env:
        await connected(env)
        sent = env.ids()
        env.broker.faults.handle(SEND, answer)  # type: ignore[arg-type]  # each is an outcome
        if answer is None:
            time_out_sends(env, env.broker, times=1)
        with pytest.raises(SendUnknownError, match="may have been stored") as caught:
            await env.producer.send(ORDER)

        assert causes(caught.value) == [cause]
        assert {caught.value.message_id} == env.ids() - sent
        assert caught.value.topic == "orders"
        assert (await env.producer.send(ORDER)).ok


async def test_one_unknown_attempt_makes_the_send_unknown(env: ProducerEnv) -> None:
    env.broker.faults.close(SEND, executed=False)
    env.broker.faults.handle(SEND, DOWN, times=2)
    with pytest.raises(SendUnknownError) as caught:
        await env.producer.send(ORDER)

    assert causes(caught.value) == [ConnectionLostError, BrokerError, BrokerError]


async def test_a_final_error_after_an_unknown_attempt_stays_unknown(env: ProducerEnv) -> None:
    env.broker.faults.close(SEND, executed=False)
    env.broker.faults.handle(SEND, ILLEGAL)

    with pytest.raises(SendUnknownError):
        await env.producer.send(ORDER)


async def test_retries_limits_the_attempts() -> None:
    async with open_producer(config=ProducerConfig(retries=4)) as env:
        env.broker.faults.handle(SEND, DOWN, times=None)
        with pytest.raises(SendError) as caught:
            await env.producer.send(ORDER, timeout_seconds=10)

        assert len(env.sends()) == len(caught.value.attempts) == 5


async def test_a_busy_broker_is_retried_until_the_deadline(env: ProducerEnv) -> None:
    env.broker.faults.handle(SEND, BUSY, times=6)
    result = await env.producer.send(ORDER)

    assert result.ok
    assert len(env.sends()) == 7


async def test_the_deadline_covers_all_attempts_and_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_module, "Backoff", Backoff)
    config = ProducerConfig(send_timeout_seconds=0.5)
    async with open_producer(config=config) as env:
        env.broker.faults.handle(SEND, BUSY, times=None)
        given = record_timeouts(env)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(SendError):
            await asyncio.wait_for(env.producer.send(ORDER), 15)

        assert loop.time() - started > 0.3
        assert given == sorted(given, reverse=True)
        assert all(each <= 0.5 for each in given)
        assert len(env.sends()) < 10  # a busy broker is not hammered


async def test_a_timer_that_fires_early_does_not_repeat_a_send_without_pauses(
    env: ProducerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of uvloop may. Only the pauses let time pass here."""
    now = time.monotonic()
    pauses: list[float] = []

    async def sleep_early(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += max(seconds - EARLY_SECONDS / 2, EARLY_SECONDS / 100)

    monkeypatch.setattr(retry_module, "Backoff", partial(Backoff, first=20.0, longest=20.0))
    monkeypatch.setattr(send_attempts, "asyncio", SimpleNamespace(sleep=sleep_early))
    monkeypatch.setattr(send_attempts, "monotonic", lambda: now)
    env.broker.faults.handle(SEND, BUSY, times=None)
    with pytest.raises(SendError):
        await env.producer.send(ORDER, timeout_seconds=5)

    assert len(pauses) == 1  # to the end of the time


async def test_a_send_is_not_repeated_when_its_pause_ends_after_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop stalled; the message would be stored, and its send would fail."""
    pauses: list[float] = []

    class Long(Backoff):
        def next_pause(self) -> float:
            pauses.append(10.0)
            return pauses[-1]

    monkeypatch.setattr(retry_module, "Backoff", Long)
    async with open_producer(config=ProducerConfig(send_timeout_seconds=0.5)) as env:
        env.broker.faults.handle(SEND, BUSY, times=None)
        sending = asyncio.create_task(env.producer.send(ORDER))
        await until(lambda: pauses)
        before = len(env.sends())
        time.sleep(0.6)  # noqa: ASYNC251 - stalls the event loop
        with pytest.raises(SendError):
            await sending

        assert len(env.sends()) == before


async def test_a_send_is_not_written_after_its_deadline(env: ProducerEnv) -> None:
    """A selector or a hook stalled the event loop; the message would be stored, and sent again."""
    await connected(env)
    before = len(env.sends())

    def stall(queues: Sequence[MessageQueue], _message: Message) -> MessageQueue:
        time.sleep(0.03)
        return queues[0]

    with pytest.raises(SendError, match="deadline") as raised:
        await env.producer.send(ORDER, selector=stall, timeout_seconds=0.02)
    await env.producer.send(ORDER)

    assert not isinstance(raised.value, SendUnknownError)
    assert len(env.sends()) == before + 1


async def test_a_send_with_its_own_deadline_keeps_it(env: ProducerEnv) -> None:
    await connected(env)
    env.broker.faults.drop(SEND, executed=False, times=None)
    given = record_timeouts(env)
    with pytest.raises(SendUnknownError):
        await asyncio.wait_for(env.producer.send(ORDER, timeout_seconds=0.2), 14)

    assert all(each <= 0.2 for each in given)


# --- time of attempts ----------------------------------------------------------------------------


async def test_the_last_attempt_has_all_the_time_that_is_left() -> None:
    async with open_producer(brokers=2, config=ProducerConfig(retries=1)) as env:
        env.cluster.faults.handle(SEND, DOWN)
        given = record_timeouts(env)
        await env.producer.send(ORDER, timeout_seconds=60)

        first, last = given
        assert first <= 30 < last


async def test_an_attempt_that_only_one_broker_can_serve_has_all_the_time(
    two_brokers: ProducerEnv,
) -> None:
    two_brokers.cluster.faults.handle(SEND, BUSY)
    given = record_timeouts(two_brokers)
    await two_brokers.producer.send(ORDER, queue=two_brokers.queue(), timeout_seconds=60)

    assert len(given) == 2
    assert min(given) > 30


async def test_a_retry_at_the_only_broker_has_all_the_time(env: ProducerEnv) -> None:
    env.broker.faults.handle(SEND, BUSY)
    given = record_timeouts(env)
    await env.producer.send(ORDER, timeout_seconds=60)

    assert len(given) == 2
    assert min(given) > 30


@pytest.mark.parametrize(("seconds", "least", "most"), [(60, 3, 30), (5, 2.5, 3), (2, 1, 2)])
async def test_an_attempt_leaves_time_for_a_replica_that_may_follow(
    seconds: float, least: float, most: float
) -> None:
    """Half of the time, but no less than a response may take."""
    async with (
        FakeCluster(replicas=1, topics={"orders": 4}) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
    ):
        env = await reached(ProducerEnv(cluster, producer))
        given = record_timeouts(env)
        await producer.send(ORDER, timeout_seconds=seconds)

        assert least < given[0] <= most


# --- weaker guarantees ---------------------------------------------------------------------------


async def test_a_weaker_status_everywhere_is_returned() -> None:
    async with open_producer(brokers=2, config=BETTER) as env:
        for broker in env.brokers:
            broker.faults.handle(SEND, WEAKER, times=None, broker=broker.name)
        result = await env.producer.send(ORDER)

        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert Counter(each.broker_name for each in env.sends()) == {"broker-a": 1, "broker-b": 1}


@pytest.mark.parametrize("chosen", [False, True])
async def test_a_single_broker_stores_a_weaker_result_once(chosen: bool) -> None:
    async with open_producer(config=BETTER) as env:
        env.broker.faults.handle(SEND, WEAKER, times=None)
        result = await env.producer.send(ORDER, queue=env.queue() if chosen else None)

        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(env.sends()) == 1


async def test_a_failure_after_a_weaker_status_returns_the_weaker_result() -> None:
    async with open_producer(brokers=2, config=BETTER) as env:
        first = await env.producer.send(ORDER)
        env.cluster.faults.handle(SEND, WEAKER, times=None, broker="broker-a")
        env.cluster.faults.handle(SEND, ILLEGAL, times=None, broker="broker-b")
        results = []
        for _ in range(8):  # each queue comes first once
            try:
                results.append((await env.producer.send(ORDER)).status)
            except BrokerError:
                results.append(SendStatus.SEND_OK)  # the other broker came first

        assert first.ok
        assert SendStatus.FLUSH_DISK_TIMEOUT in results
