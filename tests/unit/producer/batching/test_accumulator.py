"""Batch accumulator."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from time import monotonic
from typing import Any

import pytest
import pytest_asyncio

from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.errors import (
    BackpressureError,
    BrokerError,
    ClosedError,
    ConfigError,
    InvalidMessageError,
    NotRunningError,
    NotSupportedError,
    RocketMQError,
    RouteNotFoundError,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.hooks import SendContext
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.producer import send_attempts as attempts_module
from rocketmq_aio.producer.batching import accumulator as accumulator_module
from rocketmq_aio.producer.batching.accumulator import BatchAccumulator, Entries, fail
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.command import Command
from tests.unit.producer.producer_env import (
    ORDER,
    ROUTE,
    SEND,
    SEND_BATCH,
    ProducerEnv,
    connected,
    open_producer,
    reached,
    record_timeouts,
)
from tests.unit.remoting.until import settle, until

LONG = 25.0  # a linger that no test waits for
WAIT = 15  # less than that
PATIENT = 60.0
READ_ONLY = 4
TURN = ProducerConfig(auto_batch=AutoBatch(linger_seconds=0), send_timeout_seconds=PATIENT)


@pytest_asyncio.fixture
async def turn_env() -> AsyncIterator[ProducerEnv]:
    """A producer that batches the sends of one turn of the loop."""
    async with open_producer(config=TURN) as env:
        yield env


def waiting(max_messages: int = 256, **settings: Any) -> ProducerConfig:  # noqa: ANN401 - those of ProducerConfig
    """Batches leave when they are full or flushed."""
    batch = AutoBatch(linger_seconds=LONG, max_messages=max_messages)
    return ProducerConfig(auto_batch=batch, **{"send_timeout_seconds": PATIENT, **settings})


@pytest.fixture(autouse=True)
def wide_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that a slow machine sends with pauses share a batch, too."""
    monkeypatch.setattr(accumulator_module, "SPREAD_SECONDS", 10.0)


@pytest_asyncio.fixture
async def departures(monkeypatch: pytest.MonkeyPatch) -> dict[float, Callable[[], object]]:
    """Timers that are set, with their delays: batches are sent by time only through them."""
    due: dict[float, Callable[[], object]] = {}
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def noted(delay: float, callback: Callable[..., object], *args: Any, **named: Any) -> object:  # noqa: ANN401 - passed on
        if getattr(callback, "__self__", None).__class__ is BatchAccumulator:
            due[delay] = partial(callback, *args)
            delay = 3600.0
        return call_later(delay, callback, *args, **named)

    monkeypatch.setattr(loop, "call_later", noted, raising=False)
    return due


def messages(count: int, first: int = 0) -> list[Message]:
    return [Message("orders", b"%d" % number) for number in range(first, first + count)]


def begun(sends: Iterable[Awaitable[SendResult]]) -> list[asyncio.Future[SendResult]]:
    return [asyncio.ensure_future(send) for send in sends]


def send_all(
    env: ProducerEnv,
    what: Iterable[Message],
    **how: Any,  # noqa: ANN401 - arguments of send
) -> list[asyncio.Future[SendResult]]:
    return begun(env.producer.send(each, **how) for each in what)


def requests(env: ProducerEnv) -> list[int]:
    """The codes of the sends that reached a broker."""
    return [
        each.command.code
        for broker in env.brokers
        for each in broker.requests
        if each.command.code in (SEND, SEND_BATCH)
    ]


# --- together ------------------------------------------------------------------------------------


async def test_concurrent_sends_share_a_batch_and_get_their_own_results(
    turn_env: ProducerEnv,
) -> None:
    results = await asyncio.gather(*send_all(turn_env, messages(50)))

    assert requests(turn_env) == [SEND_BATCH]
    stored = {each.message_id: each for each in turn_env.broker.messages("orders")}
    for number, result in enumerate(results):
        assert stored[result.offset_message_id].body == b"%d" % number
        assert stored[result.offset_message_id].offset == result.queue_offset
        assert stored[result.offset_message_id].properties["UNIQ_KEY"] == result.message_id
    assert len({each.message_id for each in results}) == 50
    assert turn_env.room_taken() == (0, 0)


async def test_a_batch_has_the_bodies_that_messages_had_when_they_were_sent(
    turn_env: ProducerEnv,
) -> None:
    await turn_env.producer.publish_queues("orders")
    reused = Message("orders", b"?")
    sent = []
    for number in range(3):
        reused.body = b"%d" % number
        sent.append(turn_env.producer.send_nowait(reused))
    await asyncio.gather(*sent)

    assert [each.body for each in turn_env.broker.messages("orders")] == [b"0", b"1", b"2"]


async def test_a_message_that_waits_keeps_its_body_and_its_bytes_in_flight() -> None:
    """Counted with one body and released with another, bytes would stay in flight."""
    async with open_producer(
        config=ProducerConfig(auto_batch=AutoBatch(linger_seconds=0), max_in_flight=1)
    ) as env:
        held = env.broker.faults.hold(SEND)
        reused = Message("orders", b"first")
        sends = send_all(env, [reused])
        await held.wait(1)
        reused.body = b"second"
        sends += send_all(env, [reused])
        await asyncio.sleep(0)
        reused.body = b"3"
        held.release()
        await asyncio.gather(*sends)

        assert sorted(env.bodies()) == [b"first", b"second"]
        assert env.room_taken() == (0, 0)


async def test_without_auto_batch_each_message_is_sent_alone(env: ProducerEnv) -> None:
    await asyncio.gather(*send_all(env, messages(5)))

    assert requests(env) == [SEND] * 5


async def test_a_batch_is_sent_after_linger_seconds(
    departures: dict[float, Callable[[], object]],
) -> None:
    async with open_producer(config=waiting()) as env:
        await env.producer.publish_queues("orders")
        sends = send_all(env, messages(3))
        await settle()
        sends += send_all(env, messages(3))
        await settle()
        departures[LONG]()
        await asyncio.gather(*sends)

        assert requests(env) == [SEND_BATCH]


async def test_a_single_message_is_not_sent_as_a_batch(turn_env: ProducerEnv) -> None:
    result = await turn_env.producer.send(ORDER)

    assert requests(turn_env) == [SEND]
    assert result.message_id in turn_env.ids()


async def test_a_full_batch_is_sent_at_once() -> None:
    async with open_producer(config=waiting(max_messages=4)) as env:
        results = await asyncio.gather(*send_all(env, messages(8)))

        assert requests(env) == [SEND_BATCH, SEND_BATCH]
        assert all(each.ok for each in results)


async def test_max_bytes_limits_a_batch() -> None:
    batch = AutoBatch(linger_seconds=0, max_bytes=1000)
    async with open_producer(config=ProducerConfig(auto_batch=batch)) as env:
        bodies = [Message("orders", bytes([n]) * 300) for n in range(1, 8)]
        too_large = Message("orders", bytes(2000))
        await asyncio.gather(*send_all(env, [*bodies, too_large]))

        sizes = [
            len(each.command.body)
            for each in env.broker.requests
            if each.command.code == SEND_BATCH
        ]
        assert sizes
        assert max(sizes) <= 1000
        assert len(env.bodies()) == 8


async def test_topics_wait_flags_and_timeouts_are_not_mixed(turn_env: ProducerEnv) -> None:
    turn_env.broker.create_topic("payments")
    await turn_env.producer.client.routes.fetch("payments")
    fast = Message("orders", b"x", wait_store_ok=False)
    pay = Message("payments", b"x")
    sends = [*send_all(turn_env, [ORDER, fast, pay] * 2)]
    sends += send_all(turn_env, [ORDER] * 2, timeout_seconds=30)
    await asyncio.gather(*sends)

    assert requests(turn_env) == [SEND_BATCH] * 4


async def test_a_send_with_an_earlier_deadline_gets_its_own_batch() -> None:
    async with open_producer(config=waiting()) as env:
        await env.producer.publish_queues("orders")
        loop_time = monotonic()
        batcher, room = env.producer._batched_sends.accumulator, env.producer._in_flight
        for left in (60.0, 30.0, 60.0):  # as after a long wait for room
            assert room.try_acquire(1)
            batcher.add(Message("orders", b"x"), None, 60.0, loop_time + left)
        await env.producer.flush()

        assert requests(env) == [SEND, SEND, SEND]


async def test_a_batch_ends_at_the_earliest_deadline_of_its_messages() -> None:
    async with open_producer(config=waiting()) as env:
        await reached(env)
        given, now = record_timeouts(env), monotonic()
        batcher, room = env.producer._batched_sends.accumulator, env.producer._in_flight
        for left in (60.0, 51.0, 55.0):  # as after a wait for room
            assert room.try_acquire(1)
            batcher.add(Message("orders", b"x"), None, 60.0, now + left)
        await env.producer.flush()

        assert requests(env) == [SEND_BATCH]
        assert given[0] <= 51.0


async def test_a_message_above_max_bytes_is_sent_at_once() -> None:
    batch = AutoBatch(linger_seconds=LONG, max_bytes=1000)
    config = ProducerConfig(auto_batch=batch, compression=None, send_timeout_seconds=PATIENT)
    async with open_producer(config=config) as env:
        sending = env.producer.send(Message("orders", bytes(1000)))
        assert (await asyncio.wait_for(sending, WAIT)).ok


async def test_a_body_above_max_message_bytes_is_rejected() -> None:
    config = waiting(max_message_bytes=1000, compress_above_bytes=5000)
    async with open_producer(config=config) as env:
        for queue in (None, env.queue()):
            with pytest.raises(InvalidMessageError, match="max_message_bytes"):
                await env.producer.send(Message("orders", bytes(1001)), queue=queue)

        assert env.room_taken() == (0, 0)


async def test_other_timeouts_keep_the_order_of_a_queue() -> None:
    async with open_producer(config=waiting()) as env:
        await env.producer.publish_queues("orders")
        sends = send_all(env, messages(2), queue=env.queue(1))
        sends += send_all(env, messages(2, first=2), queue=env.queue(1), timeout_seconds=30)
        sends += send_all(env, messages(2, first=4), queue=env.queue(1))
        await settle()
        await env.producer.flush()
        results = await asyncio.gather(*sends)

        assert [each.queue_offset for each in results] == list(range(6))


async def test_lingering_leaves_half_of_the_timeout(
    departures: dict[float, Callable[[], object]],
) -> None:
    async with open_producer(config=waiting()) as env:
        await env.producer.publish_queues("orders")
        (sending,) = send_all(env, [ORDER], timeout_seconds=20)
        await until(lambda: departures)
        ((seconds, leave),) = departures.items()
        leave()

        assert (await sending).ok
        assert 0 < seconds <= 10


@pytest.mark.parametrize(
    "alone",
    [
        Message("orders", b"later", delay_level=1),
        Message("orders", b"urgent", priority=7),
        Message("orders", b"light", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}),
        Message("orders", b"lite", properties={"__LITE_TOPIC": "a"}),
        Message("orders", b"large " * 1000),  # it will be compressed
        Message("%RETRY%billing", b"again"),
    ],
)
async def test_unbatchable_messages_are_sent_alone_at_once(alone: Message) -> None:
    async with open_producer(config=waiting()) as env:
        assert (await asyncio.wait_for(env.producer.send(alone), WAIT)).ok

        assert requests(env) == [SEND]


# --- order ---------------------------------------------------------------------------------------


async def test_batches_to_one_queue_are_sequential() -> None:
    async with open_producer(config=waiting(max_messages=10)) as env:
        held = env.broker.faults.hold(SEND_BATCH)
        sends = send_all(env, messages(30), queue=env.queue(1))
        await held.wait(1)
        await settle()
        assert requests(env) == [SEND_BATCH]
        held.release()
        results = await asyncio.gather(*sends)

        assert [each.queue_offset for each in results] == list(range(30))
        assert env.bodies() == [b"%d" % number for number in range(30)]


async def test_an_unbatchable_message_keeps_its_order_in_the_queue(turn_env: ProducerEnv) -> None:
    await connected(turn_env)
    large = Message("orders", b"large " * 1000)
    what = [*messages(3), large, *messages(3, first=3)]
    queue = turn_env.queue(2)
    results = await asyncio.gather(
        *send_all(turn_env, what, selector=lambda _queues, _message: queue)
    )

    assert [each.queue_offset for each in results] == list(range(7))
    assert requests(turn_env)[1:] == [SEND_BATCH, SEND, SEND_BATCH]


async def test_a_batch_is_retried_before_the_next_to_its_queue() -> None:
    async with open_producer(brokers=2, config=waiting(max_messages=5)) as env:
        queue = env.queue(0, "broker-b")
        env.cluster.faults.refuse(SEND_BATCH, 2, "busy", broker="broker-b")
        await asyncio.gather(*send_all(env, messages(10), queue=queue))

        assert [each.body for each in env.brokers[1].messages("orders", 0)] == [
            b"%d" % number for number in range(10)
        ]
        assert requests(env) == [SEND_BATCH] * 3


async def test_a_message_that_stays_in_line_until_its_deadline_is_not_sent() -> None:
    async with open_producer(config=waiting(max_messages=2, retries=0)) as env:
        await reached(env)
        env.broker.faults.drop(SEND_BATCH, executed=False)
        sends = send_all(env, messages(4), queue=env.queue(), timeout_seconds=0.3)
        await asyncio.wait(sends)

        kinds = [type(each.exception()) for each in sends]
        assert kinds == [SendUnknownError, SendUnknownError, SendError, SendError]
        assert requests(env) == [SEND_BATCH]


async def test_keyed_sends_share_batches_in_the_order_of_the_calls(turn_env: ProducerEnv) -> None:
    first = await turn_env.producer.send(Message("orders", b"0", sharding_key="42"))
    own = [Message("orders", b"%d" % number, sharding_key="42") for number in range(1, 30)]
    sends = send_all(turn_env, own)
    sends += send_all(turn_env, messages(30, first=30), sharding_key="42")
    results = [first, *await asyncio.gather(*sends)]

    stored = turn_env.broker.messages("orders")
    assert [each.body for each in stored] == [b"%d" % number for number in range(60)]
    assert {each.properties["__SHARDINGKEY"] for each in stored} == {"42"}
    assert [each.queue_offset for each in results] == list(range(60))
    assert len({each.queue for each in results}) == 1
    assert requests(turn_env) == [SEND, SEND_BATCH]


async def test_keyed_sends_keep_their_order_while_the_route_is_fetched(
    turn_env: ProducerEnv,
) -> None:
    sends = send_all(turn_env, messages(20), sharding_key="42")
    await asyncio.gather(*sends)

    assert turn_env.bodies() == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("chosen", ["queue", "selector"])
async def test_sends_to_a_chosen_queue_keep_their_order_while_the_route_comes(chosen: str) -> None:
    async with open_producer(config=TURN) as env:
        queue = env.queue(1)
        how = {"queue": queue} if chosen == "queue" else {"selector": lambda *_: queue}
        held = env.cluster.name_server.faults.hold(ROUTE)
        sends = send_all(env, messages(3), **how)
        await held.wait(1)
        held.release()
        while not all(each.done() for each in sends[:3]):  # in each turn, so also in that one
            sends += send_all(env, messages(1, first=len(sends)), **how)
            await asyncio.sleep(0)
        await asyncio.gather(*sends)

        assert [int(each) for each in env.bodies()] == [*range(len(sends))]


async def test_all_messages_that_wait_for_room_are_sent() -> None:
    config = ProducerConfig(
        auto_batch=AutoBatch(linger_seconds=0), send_timeout_seconds=PATIENT, max_in_flight=1
    )
    async with open_producer(config=config) as env:
        sent = await asyncio.gather(*send_all(env, messages(4)))

        assert len({each.message_id for each in sent}) == len(env.bodies()) == 4


async def test_the_delivery_time_of_a_keyed_message_needs_a_broker_that_supports_it() -> None:
    timed = Message("orders", b"later", delay_seconds=30, sharding_key="ann")
    async with open_producer(config=TURN, version="4.9.7") as env:
        with pytest.raises(NotSupportedError):
            await env.producer.send(timed)

        assert env.sends() == []


@pytest.mark.parametrize("way", ["deadline", "cancellation"])
async def test_a_keyed_message_that_finds_no_room_does_not_hold_up_its_key(way: str) -> None:
    config = ProducerConfig(
        auto_batch=AutoBatch(linger_seconds=0), send_timeout_seconds=PATIENT, max_in_flight=1
    )
    async with open_producer(config=config) as env:
        await reached(env)
        held = env.broker.faults.hold(SEND)
        (first,) = send_all(env, [ORDER])
        await held.wait(1)
        seconds = 0.02 if way == "deadline" else PATIENT
        (waiting,) = send_all(env, [ORDER], sharding_key="ann", timeout_seconds=seconds)
        await settle()
        if way == "cancellation":
            waiting.cancel()
        await asyncio.wait([waiting])
        held.release()
        await first

        assert waiting.cancelled() or isinstance(waiting.exception(), SendError)
        assert (await env.producer.send(ORDER, sharding_key="ann")).ok


async def test_a_key_whose_queue_is_writable_again_is_sent_after_another_route_request() -> None:
    async with open_producer(brokers=2, config=TURN) as env:
        keys = [f"k{number}" for number in range(20)]
        queues = await env.producer.queues_of_keys("orders", keys)
        key, queue = next(
            each for each in zip(keys, queues, strict=True) if each[1].broker_name == "broker-b"
        )
        env.brokers[1].create_topic("orders", 4, READ_ONLY)
        await env.producer.client.routes.fetch("orders")
        await env.producer.send(ORDER)
        env.brokers[1].create_topic("orders", 4)

        assert (await env.producer.send(ORDER, sharding_key=key)).queue == queue


async def test_a_message_that_gets_its_key_with_the_call_is_not_changed(
    turn_env: ProducerEnv,
) -> None:
    message = Message("orders", b"x")
    await turn_env.producer.send(message, sharding_key="42")
    await turn_env.producer.send(message, sharding_key="43")

    assert message.sharding_key is None
    keys = [each.properties["__SHARDINGKEY"] for each in turn_env.broker.messages("orders")]
    assert sorted(keys) == ["42", "43"]


async def test_messages_behind_a_batch_in_flight_share_the_next_one(turn_env: ProducerEnv) -> None:
    await connected(turn_env)
    begun_with = len(requests(turn_env))
    held = turn_env.broker.faults.hold(SEND)
    sends = send_all(turn_env, messages(1), sharding_key="42")
    await held.wait(1)
    for number in range(1, 9):
        sends += send_all(turn_env, messages(1, first=number), sharding_key="42")
        await settle()
    held.release()
    results = await asyncio.gather(*sends)

    assert requests(turn_env)[begun_with:] == [SEND, SEND_BATCH]
    assert [each.queue_offset for each in results] == list(range(9))


async def test_waiting_behind_other_batches_ends_at_the_deadline(turn_env: ProducerEnv) -> None:
    await connected(turn_env)
    held = turn_env.broker.faults.hold(SEND)
    first = send_all(turn_env, messages(1), sharding_key="42")
    await held.wait(1)
    late = send_all(turn_env, messages(2, first=1), sharding_key="42", timeout_seconds=0.2)
    for each in late:
        with pytest.raises(SendError, match="took all the time"):
            await each
    assert not first[0].done()
    held.release()
    last = send_all(turn_env, messages(1, first=3), sharding_key="42")
    assert [each.ok for each in await asyncio.gather(*first, *last)] == [True, True]

    assert turn_env.bodies()[-2:] == [b"0", b"3"]
    assert turn_env.room_taken() == (0, 0)


async def test_a_message_behind_an_expired_batch_ends_at_its_own_deadline(
    turn_env: ProducerEnv,
) -> None:
    await connected(turn_env)
    held = turn_env.broker.faults.hold(SEND)
    first = send_all(turn_env, messages(1), queue=turn_env.queue())
    await held.wait(1)
    for each in messages(2, first=1):
        sending = turn_env.producer.send(each, queue=turn_env.queue(), timeout_seconds=0.1)
        with pytest.raises(SendError, match="took all the time"):
            await asyncio.wait_for(sending, WAIT)
    assert not first[0].done()
    held.release()
    await asyncio.gather(*first)

    assert turn_env.room_taken() == (0, 0)


async def test_closing_the_client_fails_batches_in_line(turn_env: ProducerEnv) -> None:
    await connected(turn_env)
    held = turn_env.broker.faults.hold(SEND)
    sends = send_all(turn_env, messages(1), sharding_key="42")
    await held.wait(1)
    sends += send_all(turn_env, messages(2, first=1), sharding_key="42")
    await settle()
    await turn_env.producer.client.close()
    await asyncio.wait(sends, timeout=WAIT)

    kinds = [type(each.exception()) for each in sends]
    assert kinds[1:] == [ClosedError, ClosedError]
    assert turn_env.room_taken() == (0, 0)
    held.release()


# --- errors --------------------------------------------------------------------------------------


async def test_each_caller_gets_its_own_error(turn_env: ProducerEnv) -> None:
    turn_env.broker.faults.close(SEND_BATCH, executed=False, times=None)
    sends = send_all(turn_env, messages(3))
    await asyncio.wait(sends)
    errors = [each.exception() for each in sends]

    assert all(type(each) is SendUnknownError for each in errors)
    assert len({getattr(each, "message_id", "") for each in errors}) == 3
    assert turn_env.room_taken() == (0, 0)


async def test_errors_have_the_ids_under_which_the_messages_may_be_stored(
    turn_env: ProducerEnv,
) -> None:
    turn_env.broker.faults.close(SEND_BATCH, times=None)
    errors = await asyncio.gather(*send_all(turn_env, messages(3)), return_exceptions=True)
    stored = [each.properties["UNIQ_KEY"] for each in turn_env.broker.messages("orders")]

    ids = [each.message_id for each in errors if isinstance(each, SendUnknownError)]
    assert ids == stored[:3]


async def test_an_unknown_queue_fails_every_caller(turn_env: ProducerEnv) -> None:
    sends = [
        turn_env.producer.send_nowait(ORDER, queue=turn_env.queue(0, "gone")) for _ in range(2)
    ]
    await asyncio.wait(sends)

    assert [type(each.exception()) for each in sends] == [RouteNotFoundError] * 2
    assert sends[0].exception() is not sends[1].exception()


async def test_an_invalid_message_is_rejected_before_it_joins_a_batch() -> None:
    config = waiting(max_message_bytes=1000, compression=None)
    async with open_producer(config=config) as env:
        with pytest.raises(InvalidMessageError, match="max_message_bytes"):
            await env.producer.send(Message("orders", bytes(1001)))
        with pytest.raises(InvalidMessageError):
            env.producer.send_nowait(Message("orders", b"x", properties={"p": "v" * 32_700}))

        assert env.room_taken() == (0, 0)


async def test_a_rejected_message_does_not_fail_the_rest_of_its_batch() -> None:
    def refusing(command: Command, connection: ServerConnection) -> Outcome:
        if b"poison" in command.body:
            return Response(13, remark="the message is illegal")
        outcome = env.broker.process(command, connection)
        assert isinstance(outcome, Response)
        return outcome

    async with open_producer(config=TURN) as env:
        for code in (SEND, SEND_BATCH):
            env.broker.faults.handle(code, refusing, times=None)
        what = [*messages(5), Message("orders", b"poison"), *messages(5, first=5)]
        sends = send_all(env, what)
        await asyncio.wait(sends)

        assert [number for number, each in enumerate(sends) if each.exception()] == [5]
        assert isinstance(sends[5].exception(), BrokerError)
        assert sorted(env.bodies(), key=int) == [b"%d" % number for number in range(10)]


# --- cancellation --------------------------------------------------------------------------------


async def test_a_cancelled_message_is_removed_from_a_pending_batch() -> None:
    async with open_producer(config=waiting()) as env:
        sends = send_all(env, messages(5))
        await settle()
        sends[2].cancel()
        await settle()
        await env.producer.flush()

        assert [each.cancelled() for each in sends] == [False, False, True, False, False]
        assert env.bodies() == [b"0", b"1", b"3", b"4"]
        assert env.room_taken() == (0, 0)


async def test_a_batch_with_only_cancelled_messages_is_not_sent() -> None:
    async with open_producer(config=waiting()) as env:
        sends = send_all(env, messages(3))
        await settle()
        for each in sends:
            each.cancel()
        await settle()
        await env.producer.flush()
        await until(lambda: env.room_taken() == (0, 0))

        assert requests(env) == []


async def test_a_send_cancelled_in_flight_does_not_affect_others(turn_env: ProducerEnv) -> None:
    held = turn_env.broker.faults.hold(SEND_BATCH)
    sends = send_all(turn_env, messages(3))
    await held.wait(1)
    sends[0].cancel()
    held.release()
    await asyncio.wait(sends)

    assert [each.cancelled() for each in sends] == [True, False, False]
    assert [each.result().queue_offset for each in sends[1:]] == [1, 2]


class Idle:
    """A hook, with which sends go another way."""

    def before_send(self, context: SendContext) -> None:
        """Nothing."""

    def after_send(self, context: SendContext) -> None:
        """Nothing."""


@pytest.mark.parametrize("hooks", [(), (Idle(),)])
async def test_an_error_set_while_its_caller_is_cancelled_is_not_logged(
    hooks: tuple[Idle, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    left: list[asyncio.Task[SendResult]] = []

    def fail_and_cancel(entries: Entries, error: RocketMQError) -> None:
        fail(entries, error)
        for each in left:
            each.cancel()

    monkeypatch.setattr(accumulator_module, "fail", fail_and_cancel)
    async with open_producer(config=TURN) as env:
        env.broker.faults.refuse(SEND_BATCH, 16, "no permission", times=None)
        client = env.producer.client
        async with Producer("leavers", client=client, config=TURN, hooks=hooks) as producer:
            left += [asyncio.create_task(producer.send(each)) for each in messages(3)]
            await asyncio.wait(left)
        ended = [each.cancelled() for each in left]
        left.clear()
        gc.collect()

        assert ended == [True, True, True]
        assert reported == []


# --- without waiting, flushing, closing ----------------------------------------------------------


@pytest.mark.parametrize("config", [None, TURN])
async def test_send_nowait_returns_a_future(config: ProducerConfig | None) -> None:
    async with open_producer(config=config) as env:
        futures = [env.producer.send_nowait(each) for each in messages(10)]
        results = await asyncio.gather(*futures)

        assert requests(env) == [SEND_BATCH]
        assert [each.queue_offset for each in results] == list(range(10))


@pytest.mark.parametrize(
    "bounds", [{"max_in_flight": 3}, {"max_in_flight_bytes": len(ORDER.body) * 3}]
)
async def test_send_nowait_raises_backpressure_error_at_the_limit(bounds: dict[str, int]) -> None:
    async with open_producer(config=ProducerConfig(**bounds)) as env:  # type: ignore[arg-type]  # numbers
        futures = [env.producer.send_nowait(ORDER) for _ in range(3)]
        with pytest.raises(BackpressureError) as caught:
            env.producer.send_nowait(ORDER)
        await asyncio.gather(*futures)

        assert (caught.value.in_flight, caught.value.topic) == (3, "orders")
        assert (await env.producer.send_nowait(ORDER)).ok


async def test_send_nowait_does_not_overtake_waiting_sends() -> None:
    async with open_producer(config=ProducerConfig(max_in_flight=1)) as env:
        held = env.broker.faults.hold(SEND, times=None)
        sends = send_all(env, messages(2))
        await held.wait(1)
        with pytest.raises(BackpressureError):
            env.producer.send_nowait(ORDER)
        held.remove()
        held.release()

        assert all(each.ok for each in await asyncio.gather(*sends))


async def test_a_queue_of_another_topic_is_rejected(turn_env: ProducerEnv) -> None:
    with pytest.raises(ConfigError):
        turn_env.producer.send_nowait(Message("payments", b"x"), queue=turn_env.queue())
    with pytest.raises(ConfigError):
        await turn_env.producer.send(Message("payments", b"x"), queue=turn_env.queue())

    assert turn_env.room_taken() == (0, 0)


async def test_send_nowait_rejects_a_sharding_key(env: ProducerEnv) -> None:
    with pytest.raises(InvalidMessageError, match="awaited"):
        env.producer.send_nowait(Message("orders", b"x", sharding_key="42"))


async def test_flush_returns_when_all_messages_have_results() -> None:
    async with open_producer(config=waiting()) as env:
        held = env.broker.faults.hold(SEND_BATCH)
        sends = send_all(env, messages(5))
        await settle()
        flushing = asyncio.create_task(env.producer.flush())
        await held.wait(1)
        assert not flushing.done()
        held.release()
        await flushing
        await settle()

        assert all(each.result().ok for each in sends)
        await env.producer.flush()  # nothing waits


async def test_close_sends_pending_batches() -> None:
    async with open_producer(config=waiting()) as env:
        sends = send_all(env, messages(5))
        await settle()
        await env.producer.close()

        assert all(each.result().ok for each in sends)
        with pytest.raises(ClosedError):
            env.producer.send_nowait(ORDER)


async def test_closing_a_shared_client_fails_pending_batches() -> None:
    async with open_producer(config=waiting()) as env:
        sends = [*send_all(env, messages(2)), *send_all(env, messages(2), queue=env.queue())]
        await settle(turns=50)
        await env.producer.client.close()
        env.producer._batched_sends.accumulator.close_all()
        await asyncio.wait(sends, timeout=15)

        assert [type(each.exception()) for each in sends] == [ClosedError] * 4
        assert env.room_taken() == (0, 0)


@pytest.mark.parametrize("number", [None, 0])
async def test_batches_whose_tasks_never_began_fail_with_the_client(number: int | None) -> None:
    async with open_producer(config=TURN) as env:
        await connected(env)
        queue = None if number is None else env.queue(number)
        sends = [env.producer.send_nowait(each, queue=queue) for each in messages(2)]
        await asyncio.sleep(0)  # the batch has a task now
        sends += [env.producer.send_nowait(ORDER, queue=queue)]
        for task in asyncio.all_tasks():  # as programs do that end with all of their tasks
            if task.get_name().startswith("rocketmq:"):
                task.cancel()
        await asyncio.wait(sends, timeout=WAIT)

        assert [type(each.exception()) for each in sends] == [NotRunningError] * 3
        assert env.room_taken() == (0, 0)
        assert requests(env) == [SEND]  # of `connected`


async def test_a_batch_that_still_has_no_route_is_not_sent_when_the_client_ends() -> None:
    async with open_producer(config=TURN) as env:
        held = env.cluster.name_server.faults.hold(ROUTE)
        sends = send_all(env, messages(2))
        await held.wait(1)
        await env.producer.client.tasks.close()
        await asyncio.wait(sends, timeout=15)

        assert [type(each.exception()) for each in sends] == [ClosedError] * 2
        assert env.room_taken() == (0, 0)


async def test_closing_the_client_ends_batches_in_flight_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts_module, "LEAST_SECONDS", 100.0)  # no second attempt
    async with open_producer(config=TURN) as env:
        await connected(env)
        env.broker.faults.drop(SEND_BATCH, executed=False, times=None)
        sends = [*send_all(env, messages(2)), *send_all(env, messages(4), queue=env.queue())]
        await until(lambda: requests(env).count(SEND_BATCH) == 2)
        later = send_all(env, messages(2), queue=env.queue())  # behind the one under way
        await settle()
        await env.producer.client.close()
        await asyncio.wait([*sends, *later], timeout=15)

        assert [type(each.exception()) for each in sends] == [SendUnknownError] * 6
        assert all(isinstance(each.exception(), ClosedError | SendError) for each in later)
        assert env.room_taken() == (0, 0)


async def test_batches_cost_no_task_per_message(turn_env: ProducerEnv) -> None:
    await turn_env.producer.send(ORDER)
    held = turn_env.broker.faults.hold(SEND_BATCH, times=None)
    before = asyncio.all_tasks()
    futures = [turn_env.producer.send_nowait(each) for each in messages(200)]
    await held.wait(1)

    begun = asyncio.all_tasks() - before  # the batch, what the fake does, what watches it all
    assert len(begun) < 10
    held.release()
    await asyncio.gather(*futures)
