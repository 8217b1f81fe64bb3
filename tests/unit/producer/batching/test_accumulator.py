"""Sends that travel together."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Any

import pytest
import pytest_asyncio

from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.errors import (
    BackpressureError,
    BrokerError,
    ClosedError,
    ConfigError,
    InvalidMessageError,
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
from rocketmq_aio.producer.batching.accumulator import BatchAccumulator
from rocketmq_aio.producer.batching.pending_batch import Entry, fail
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.command import Command
from tests.fakes.connection import FakeConnection
from tests.fakes.script import Close, Outcome, Reply
from tests.unit.producer.producer_env import (
    ORDER,
    SEND,
    SEND_BATCH,
    Shop,
    connected,
    open_shop,
    reached,
)
from tests.unit.remoting.until import until

LONG = 25.0  # a linger that no test waits for
WAIT = 15  # less than that
PATIENT = 60.0
TURN = ProducerConfig(auto_batch=AutoBatch(linger_seconds=0), send_timeout_seconds=PATIENT)


def waiting(max_messages: int = 256, **settings: Any) -> ProducerConfig:  # noqa: ANN401 - those of ProducerConfig
    """Batches leave when they are full or flushed."""
    batch = AutoBatch(linger_seconds=LONG, max_messages=max_messages)
    return ProducerConfig(auto_batch=batch, **{"send_timeout_seconds": PATIENT, **settings})


@pytest.fixture(autouse=True)
def wide_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slow machine sends with pauses travels together all the same."""
    monkeypatch.setattr(accumulator_module, "SPREAD_SECONDS", 10.0)


@pytest_asyncio.fixture
async def departures(monkeypatch: pytest.MonkeyPatch) -> dict[float, Callable[[], object]]:
    """What would happen, and after how many seconds: nothing else lets batches leave by time."""
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


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def begun(sends: Iterable[Awaitable[SendResult]]) -> list[asyncio.Future[SendResult]]:
    return [asyncio.ensure_future(send) for send in sends]


def send_all(
    shop: Shop,
    what: Iterable[Message],
    **how: Any,  # noqa: ANN401 - arguments of send
) -> list[asyncio.Future[SendResult]]:
    return begun(shop.producer.send(each, **how) for each in what)


def room_taken(shop: Shop) -> tuple[int, int]:
    return shop.producer._in_flight.count, shop.producer._in_flight.bytes


def requests(shop: Shop) -> list[int]:
    """The codes of the sends that reached a broker."""
    return [
        each.command.code
        for broker in shop.brokers
        for each in broker.requests
        if each.command.code in (SEND, SEND_BATCH)
    ]


# --- together ------------------------------------------------------------------------------------


async def test_concurrent_sends_travel_together_and_each_gets_its_own_result() -> None:
    async with open_shop(config=TURN) as shop:
        results = await asyncio.gather(*send_all(shop, messages(50)))

        assert requests(shop) == [SEND_BATCH]
        stored = {each.message_id: each for each in shop.broker.messages("orders")}
        for number, result in enumerate(results):
            assert stored[result.offset_message_id].body == b"%d" % number
            assert stored[result.offset_message_id].offset == result.queue_offset
            assert stored[result.offset_message_id].properties["UNIQ_KEY"] == result.message_id
        assert len({each.message_id for each in results}) == 50
        assert room_taken(shop) == (0, 0)


async def test_without_the_setting_each_travels_alone() -> None:
    async with open_shop() as shop:
        await asyncio.gather(*send_all(shop, messages(5)))

        assert requests(shop) == [SEND] * 5


async def test_what_waited_long_enough_leaves(
    departures: dict[float, Callable[[], object]],
) -> None:
    async with open_shop(config=waiting()) as shop:
        await shop.producer.publish_queues("orders")
        sends = send_all(shop, messages(3))
        await turns()
        sends += send_all(shop, messages(3))
        await turns()
        departures[LONG]()
        await asyncio.gather(*sends)

        assert requests(shop) == [SEND_BATCH]


async def test_a_message_that_found_no_company_travels_as_such() -> None:
    async with open_shop(config=TURN) as shop:
        result = await shop.producer.send(ORDER)

        assert requests(shop) == [SEND]
        assert result.message_id in shop.ids()


async def test_a_full_batch_leaves_at_once() -> None:
    async with open_shop(config=waiting(max_messages=4)) as shop:
        results = await asyncio.gather(*send_all(shop, messages(8)))

        assert requests(shop) == [SEND_BATCH, SEND_BATCH]
        assert all(each.ok for each in results)


async def test_a_batch_has_no_more_bytes_than_allowed() -> None:
    batch = AutoBatch(linger_seconds=0, max_bytes=1000)
    async with open_shop(config=ProducerConfig(auto_batch=batch)) as shop:
        bodies = [Message("orders", bytes([n]) * 300) for n in range(1, 8)]
        too_large = Message("orders", bytes(2000))
        await asyncio.gather(*send_all(shop, [*bodies, too_large]))

        sizes = [
            len(each.command.body)
            for each in shop.broker.requests
            if each.command.code == SEND_BATCH
        ]
        assert sizes
        assert max(sizes) <= 1000
        assert len(shop.bodies()) == 8


async def test_topics_wait_flags_and_time_limits_are_kept_apart() -> None:
    async with open_shop(config=TURN) as shop:
        shop.broker.create_topic("payments")
        await shop.producer.client.routes.fetch("payments")
        fast = Message("orders", b"x", wait_store_ok=False)
        pay = Message("payments", b"x")
        sends = [*send_all(shop, [ORDER, fast, pay] * 2)]
        sends += send_all(shop, [ORDER] * 2, timeout_seconds=30)
        await asyncio.gather(*sends)

        assert requests(shop) == [SEND_BATCH] * 4


async def test_a_send_with_little_time_left_does_not_take_the_time_of_others() -> None:
    async with open_shop(config=waiting()) as shop:
        await shop.producer.publish_queues("orders")
        loop_time = monotonic()
        batcher, room = shop.producer._batched_sends.accumulator, shop.producer._in_flight
        for left in (60.0, 30.0, 60.0):  # as after a long wait for room
            assert room.try_acquire(1)
            batcher.add(Message("orders", b"x"), None, 60.0, loop_time + left)
        await shop.producer.flush()

        assert requests(shop) == [SEND, SEND, SEND]


async def test_a_message_larger_than_a_batch_does_not_wait_for_company() -> None:
    batch = AutoBatch(linger_seconds=LONG, max_bytes=1000)
    config = ProducerConfig(auto_batch=batch, compression=None, send_timeout_seconds=PATIENT)
    async with open_shop(config=config) as shop:
        sending = shop.producer.send(Message("orders", bytes(1000)))
        assert (await asyncio.wait_for(sending, WAIT)).ok


async def test_a_body_above_the_bound_is_refused_whatever_is_compressed() -> None:
    config = waiting(max_message_bytes=1000, compress_above_bytes=5000)
    async with open_shop(config=config) as shop:
        for queue in (None, shop.queue()):
            with pytest.raises(InvalidMessageError, match="max_message_bytes"):
                await shop.producer.send(Message("orders", bytes(1001)), queue=queue)

        assert room_taken(shop) == (0, 0)


async def test_other_time_limits_do_not_overtake_in_a_queue() -> None:
    async with open_shop(config=waiting()) as shop:
        await shop.producer.publish_queues("orders")
        sends = send_all(shop, messages(2), queue=shop.queue(1))
        sends += send_all(shop, messages(2, first=2), queue=shop.queue(1), timeout_seconds=30)
        sends += send_all(shop, messages(2, first=4), queue=shop.queue(1))
        await turns()
        await shop.producer.flush()
        results = await asyncio.gather(*sends)

        assert [each.queue_offset for each in results] == list(range(6))


async def test_a_send_leaves_while_there_is_time_for_its_request(
    departures: dict[float, Callable[[], object]],
) -> None:
    async with open_shop(config=waiting()) as shop:
        await shop.producer.publish_queues("orders")
        (sending,) = send_all(shop, [ORDER], timeout_seconds=20)
        await until(lambda: departures)
        ((seconds, leave),) = departures.items()
        leave()

        assert (await sending).ok
        assert 0 < seconds <= 10


@pytest.mark.parametrize(
    "alone",
    [
        Message("orders", b"later", delay_level=1),
        Message("orders", b"large " * 1000),  # it will be compressed
        Message("%RETRY%billing", b"again"),
    ],
)
async def test_what_may_not_be_batched_goes_alone_and_at_once(alone: Message) -> None:
    async with open_shop(config=waiting()) as shop:
        assert (await asyncio.wait_for(shop.producer.send(alone), WAIT)).ok

        assert requests(shop) == [SEND]


# --- order ---------------------------------------------------------------------------------------


async def test_batches_to_one_queue_go_one_after_another() -> None:
    async with open_shop(config=waiting(max_messages=10)) as shop:
        held = shop.broker.hold(SEND_BATCH, times=1)
        sends = send_all(shop, messages(30), queue=shop.queue(1))
        await held.wait(1)
        await turns()
        assert requests(shop) == [SEND_BATCH]
        held.release()
        results = await asyncio.gather(*sends)

        assert [each.queue_offset for each in results] == list(range(30))
        assert shop.bodies() == [b"%d" % number for number in range(30)]


async def test_what_goes_alone_keeps_its_place_in_the_order_of_its_queue() -> None:
    async with open_shop(config=TURN) as shop:
        await connected(shop)
        large = Message("orders", b"large " * 1000)
        what = [*messages(3), large, *messages(3, first=3)]
        queue = shop.queue(2)
        results = await asyncio.gather(
            *send_all(shop, what, selector=lambda _queues, _message: queue)
        )

        assert [each.queue_offset for each in results] == list(range(7))
        assert requests(shop)[1:] == [SEND_BATCH, SEND, SEND_BATCH]


async def test_an_ordered_batch_is_tried_again_at_its_queue_before_the_next_one_leaves() -> None:
    async with open_shop(brokers=2, config=waiting(max_messages=5)) as shop:
        queue = shop.queue(0, "broker-b")
        shop.brokers[1].on(SEND_BATCH, Reply(2, remark="busy"))
        await asyncio.gather(*send_all(shop, messages(10), queue=queue))

        assert [each.body for each in shop.brokers[1].messages("orders", 0)] == [
            b"%d" % number for number in range(10)
        ]
        assert requests(shop) == [SEND_BATCH] * 3


async def test_whose_turn_does_not_come_in_time_was_not_sent() -> None:
    async with open_shop(config=waiting(max_messages=2, retries=0)) as shop:
        await reached(shop)
        shop.broker.on(SEND_BATCH, None)
        sends = send_all(shop, messages(4), queue=shop.queue(), timeout_seconds=0.3)
        await asyncio.wait(sends)

        kinds = [type(each.exception()) for each in sends]
        assert kinds == [SendUnknownError, SendUnknownError, SendError, SendError]
        assert requests(shop) == [SEND_BATCH]


async def test_sends_with_a_key_travel_together_in_the_order_of_the_calls() -> None:
    async with open_shop(config=TURN) as shop:
        first = await shop.producer.send(Message("orders", b"0", sharding_key="42"))
        own = [Message("orders", b"%d" % number, sharding_key="42") for number in range(1, 30)]
        sends = send_all(shop, own)
        sends += send_all(shop, messages(30, first=30), sharding_key="42")
        results = [first, *await asyncio.gather(*sends)]

        stored = shop.broker.messages("orders")
        assert [each.body for each in stored] == [b"%d" % number for number in range(60)]
        assert {each.properties["__SHARDINGKEY"] for each in stored} == {"42"}
        assert [each.queue_offset for each in results] == list(range(60))
        assert len({each.queue for each in results}) == 1
        assert requests(shop) == [SEND, SEND_BATCH]


async def test_the_first_sends_with_a_key_keep_their_order_while_queues_are_asked_for() -> None:
    async with open_shop(config=TURN) as shop:
        sends = send_all(shop, messages(20), sharding_key="42")
        await asyncio.gather(*sends)

        assert shop.bodies() == [b"%d" % number for number in range(20)]


async def test_a_message_that_gets_its_key_with_the_call_is_not_changed() -> None:
    async with open_shop(config=TURN) as shop:
        message = Message("orders", b"x")
        await shop.producer.send(message, sharding_key="42")
        await shop.producer.send(message, sharding_key="43")

        assert message.sharding_key is None
        keys = [each.properties["__SHARDINGKEY"] for each in shop.broker.messages("orders")]
        assert sorted(keys) == ["42", "43"]


async def test_what_gathers_while_others_are_on_their_way_to_its_queue_leaves_together() -> None:
    async with open_shop(config=TURN) as shop:
        await connected(shop)
        begun_with = len(requests(shop))
        held = shop.broker.hold(SEND, times=1)
        sends = send_all(shop, messages(1), sharding_key="42")
        await held.wait(1)
        for number in range(1, 9):
            sends += send_all(shop, messages(1, first=number), sharding_key="42")
            await turns()
        held.release()
        results = await asyncio.gather(*sends)

        assert requests(shop)[begun_with:] == [SEND, SEND_BATCH]
        assert [each.queue_offset for each in results] == list(range(9))


async def test_who_waits_for_others_to_the_same_queue_waits_no_longer_than_it_may() -> None:
    async with open_shop(config=TURN) as shop:
        await connected(shop)
        held = shop.broker.hold(SEND, times=1)
        first = send_all(shop, messages(1), sharding_key="42")
        await held.wait(1)
        late = send_all(shop, messages(2, first=1), sharding_key="42", timeout_seconds=0.2)
        for each in late:
            with pytest.raises(SendError, match="took all the time"):
                await each
        assert not first[0].done()
        held.release()
        last = send_all(shop, messages(1, first=3), sharding_key="42")
        assert [each.ok for each in await asyncio.gather(*first, *last)] == [True, True]

        assert shop.bodies()[-2:] == [b"0", b"3"]
        assert room_taken(shop) == (0, 0)


async def test_a_client_that_is_closed_ends_those_who_wait_for_others() -> None:
    async with open_shop(config=TURN) as shop:
        await connected(shop)
        held = shop.broker.hold(SEND, times=1)
        sends = send_all(shop, messages(1), sharding_key="42")
        await held.wait(1)
        sends += send_all(shop, messages(2, first=1), sharding_key="42")
        await turns()
        await shop.producer.client.close()
        await asyncio.wait(sends, timeout=WAIT)

        kinds = [type(each.exception()) for each in sends]
        assert kinds[1:] == [ClosedError, ClosedError]
        assert room_taken(shop) == (0, 0)
        held.release()


# --- errors --------------------------------------------------------------------------------------


async def test_each_caller_gets_an_error_of_its_own() -> None:
    async with open_shop(config=TURN) as shop:
        shop.broker.on(SEND_BATCH, Close(), times=None)
        sends = send_all(shop, messages(3))
        await asyncio.wait(sends)
        errors = [each.exception() for each in sends]

        assert all(type(each) is SendUnknownError for each in errors)
        assert len({getattr(each, "message_id", "") for each in errors}) == 3
        assert room_taken(shop) == (0, 0)


async def test_that_there_is_no_such_queue_is_told_to_all() -> None:
    async with open_shop(config=TURN) as shop:
        sends = [shop.producer.send_nowait(ORDER, queue=shop.queue(0, "gone")) for _ in range(2)]
        await asyncio.wait(sends)

        assert [type(each.exception()) for each in sends] == [RouteNotFoundError] * 2
        assert sends[0].exception() is not sends[1].exception()


async def test_a_message_that_breaks_a_rule_is_refused_before_it_joins() -> None:
    config = waiting(max_message_bytes=1000, compression=None)
    async with open_shop(config=config) as shop:
        with pytest.raises(InvalidMessageError, match="max_message_bytes"):
            await shop.producer.send(Message("orders", bytes(1001)))
        with pytest.raises(InvalidMessageError):
            shop.producer.send_nowait(Message("orders", b"x", properties={"p": "v" * 32_700}))

        assert room_taken(shop) == (0, 0)


async def test_one_message_that_the_broker_refuses_does_not_take_the_others_along() -> None:
    def refusing(command: Command, connection: FakeConnection) -> Outcome:
        if b"poison" in command.body:
            return Reply(13, remark="the message is illegal")
        outcome = shop.broker.answer(command, connection)
        assert isinstance(outcome, Reply)
        return outcome

    async with open_shop(config=TURN) as shop:
        for code in (SEND, SEND_BATCH):
            shop.broker.on(code, refusing, times=None)
        what = [*messages(5), Message("orders", b"poison"), *messages(5, first=5)]
        sends = send_all(shop, what)
        await asyncio.wait(sends)

        assert [number for number, each in enumerate(sends) if each.exception()] == [5]
        assert isinstance(sends[5].exception(), BrokerError)
        assert sorted(shop.bodies(), key=int) == [b"%d" % number for number in range(10)]


# --- cancellation --------------------------------------------------------------------------------


async def test_a_cancelled_send_that_has_not_left_is_taken_out() -> None:
    async with open_shop(config=waiting()) as shop:
        sends = send_all(shop, messages(5))
        await turns()
        sends[2].cancel()
        await turns()
        await shop.producer.flush()

        assert [each.cancelled() for each in sends] == [False, False, True, False, False]
        assert shop.bodies() == [b"0", b"1", b"3", b"4"]
        assert room_taken(shop) == (0, 0)


async def test_a_batch_whose_callers_have_all_gone_is_not_sent() -> None:
    async with open_shop(config=waiting()) as shop:
        sends = send_all(shop, messages(3))
        await turns()
        for each in sends:
            each.cancel()
        await turns()
        await shop.producer.flush()
        await until(lambda: room_taken(shop) == (0, 0))

        assert requests(shop) == []


async def test_a_send_that_is_cancelled_on_its_way_disturbs_no_other() -> None:
    async with open_shop(config=TURN) as shop:
        held = shop.broker.hold(SEND_BATCH, times=1)
        sends = send_all(shop, messages(3))
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
async def test_an_error_that_comes_as_its_caller_leaves_is_told_to_nobody(
    hooks: tuple[Idle, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    left: list[asyncio.Task[SendResult]] = []

    def fail_and_cancel(entries: Sequence[Entry], error: RocketMQError) -> None:
        fail(entries, error)
        for each in left:
            each.cancel()

    monkeypatch.setattr(accumulator_module, "fail", fail_and_cancel)
    async with open_shop(config=TURN) as shop:
        shop.broker.on(SEND_BATCH, Reply(16, remark="no permission"), times=None)
        client = shop.producer.client
        async with Producer("leavers", client=client, config=TURN, hooks=hooks) as producer:
            left += [asyncio.create_task(producer.send(each)) for each in messages(3)]
            await asyncio.wait(left)
        ended = [each.cancelled() for each in left]
        left.clear()
        gc.collect()

        assert ended == [True, True, True]
        assert told == []


# --- without waiting, flushing, closing ----------------------------------------------------------


@pytest.mark.parametrize("config", [None, TURN])
async def test_a_send_without_waiting_gives_a_future(config: ProducerConfig | None) -> None:
    async with open_shop(config=config) as shop:
        futures = [shop.producer.send_nowait(each) for each in messages(10)]
        results = await asyncio.gather(*futures)

        assert requests(shop) == [SEND_BATCH]
        assert [each.queue_offset for each in results] == list(range(10))


@pytest.mark.parametrize(
    "bounds", [{"max_in_flight": 3}, {"max_in_flight_bytes": len(ORDER.body) * 3}]
)
async def test_without_room_it_raises_instead_of_waiting(bounds: dict[str, int]) -> None:
    async with open_shop(config=ProducerConfig(**bounds)) as shop:  # type: ignore[arg-type]  # numbers
        futures = [shop.producer.send_nowait(ORDER) for _ in range(3)]
        with pytest.raises(BackpressureError) as caught:
            shop.producer.send_nowait(ORDER)
        await asyncio.gather(*futures)

        assert (caught.value.in_flight, caught.value.topic) == (3, "orders")
        assert (await shop.producer.send_nowait(ORDER)).ok


async def test_it_does_not_overtake_those_who_wait_for_room() -> None:
    async with open_shop(config=ProducerConfig(max_in_flight=1)) as shop:
        held = shop.broker.hold(SEND)
        sends = send_all(shop, messages(2))
        await held.wait(1)
        with pytest.raises(BackpressureError):
            shop.producer.send_nowait(ORDER)
        shop.broker.off(SEND)
        held.release()

        assert all(each.ok for each in await asyncio.gather(*sends))


async def test_a_queue_of_another_topic_is_refused() -> None:
    async with open_shop(config=TURN) as shop:
        with pytest.raises(ConfigError):
            shop.producer.send_nowait(Message("payments", b"x"), queue=shop.queue())
        with pytest.raises(ConfigError):
            await shop.producer.send(Message("payments", b"x"), queue=shop.queue())

        assert room_taken(shop) == (0, 0)


async def test_a_message_that_needs_an_order_has_to_be_awaited() -> None:
    async with open_shop() as shop:
        with pytest.raises(InvalidMessageError, match="awaited"):
            shop.producer.send_nowait(Message("orders", b"x", sharding_key="42"))


async def test_flushing_returns_when_all_has_its_outcome() -> None:
    async with open_shop(config=waiting()) as shop:
        held = shop.broker.hold(SEND_BATCH, times=1)
        sends = send_all(shop, messages(5))
        await turns()
        flushing = asyncio.create_task(shop.producer.flush())
        await held.wait(1)
        assert not flushing.done()
        held.release()
        await flushing
        await turns()

        assert all(each.result().ok for each in sends)
        await shop.producer.flush()  # nothing waits


async def test_closing_sends_what_waits() -> None:
    async with open_shop(config=waiting()) as shop:
        sends = send_all(shop, messages(5))
        await turns()
        await shop.producer.close()

        assert all(each.result().ok for each in sends)
        with pytest.raises(ClosedError):
            shop.producer.send_nowait(ORDER)


async def test_a_shared_client_that_is_closed_ends_what_waits() -> None:
    async with open_shop(config=waiting()) as shop:
        sends = [*send_all(shop, messages(2)), *send_all(shop, messages(2), queue=shop.queue())]
        await turns(50)
        await shop.producer.client.close()
        shop.producer._batched_sends.accumulator.close_all()
        await asyncio.wait(sends, timeout=15)

        assert [type(each.exception()) for each in sends] == [ClosedError] * 4
        assert room_taken(shop) == (0, 0)


async def test_a_client_that_is_closed_ends_what_is_on_its_way_as_unclear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts_module, "LEAST_SECONDS", 100.0)  # no second attempt
    async with open_shop(config=TURN) as shop:
        await connected(shop)
        shop.broker.on(SEND_BATCH, None, times=None)
        sends = [*send_all(shop, messages(2)), *send_all(shop, messages(4), queue=shop.queue())]
        await until(lambda: requests(shop).count(SEND_BATCH) == 2)
        later = send_all(shop, messages(2), queue=shop.queue())  # behind the one under way
        await turns()
        await shop.producer.client.close()
        await asyncio.wait([*sends, *later], timeout=15)

        assert [type(each.exception()) for each in sends] == [SendUnknownError] * 6
        assert all(isinstance(each.exception(), ClosedError | SendError) for each in later)
        assert room_taken(shop) == (0, 0)


async def test_batches_cost_no_task_per_message() -> None:
    async with open_shop(config=TURN) as shop:
        await shop.producer.send(ORDER)
        held = shop.broker.hold(SEND_BATCH)
        before = asyncio.all_tasks()
        futures = [shop.producer.send_nowait(each) for each in messages(200)]
        await held.wait(1)

        begun = asyncio.all_tasks() - before  # the batch, what the fake does, what watches it all
        assert len(begun) < 10
        held.release()
        await asyncio.gather(*futures)
