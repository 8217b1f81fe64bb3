"""Queue selection by sharding key, and the order of keyed sends."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

import pytest

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.embedded.responses import Close, Outcome, Response
from rocketmq_aio.errors import (
    BrokerError,
    ClosedError,
    ConfigError,
    InvalidMessageError,
    RouteNotFoundError,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.instance import routes
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.batching.pre_encoded import Encoded
from rocketmq_aio.producer.queue_selection import KEYS_CACHED
from rocketmq_aio.producer.queue_selectors import (
    SelectByMachineRoom,
    SelectByRandom,
    select_by_hash,
)
from rocketmq_aio.producer.topic_publish_info import UNUSED_SECONDS
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from tests.unit.producer.producer_env import (
    ORDER,
    SEND,
    ProducerEnv,
    connected,
    open_producer,
    stopped,
)
from tests.unit.remoting.until import until

KEYS = [f"order-{number}" for number in range(20)]
QUEUE = MessageQueue("orders", "broker-a", 0)
READ_ONLY = 4


def keyed(key: str, body: bytes = b"x") -> Message:
    return Message("orders", body, sharding_key=key)


async def queues_of_keys(env: ProducerEnv) -> dict[str, MessageQueue]:
    results = await asyncio.gather(*(env.producer.send(keyed(key)) for key in KEYS))
    return {key: result.queue for key, result in zip(KEYS, results, strict=True)}


async def renewed(env: ProducerEnv) -> None:
    await env.producer.client.routes.fetch("orders")


# --- which queue ---------------------------------------------------------------------------------


async def test_a_key_of_the_call_and_of_the_message_select_the_same_queue(
    two_brokers: ProducerEnv,
) -> None:
    of_message = await queues_of_keys(two_brokers)
    for key in KEYS:
        result = await two_brokers.producer.send(ORDER, sharding_key=key)

        assert result.queue == of_message[key]
    assert len(set(of_message.values())) > 4


async def test_a_key_may_be_a_member_of_a_string_enum() -> None:
    class Customer(StrEnum):
        GOLD = "order-3"

    async with open_producer() as env:
        expected = await env.producer.send(keyed("order-3"))
        given = await env.producer.send(ORDER, sharding_key=Customer.GOLD)
        own = await env.producer.send(keyed(Customer.GOLD))
        found = {each.properties["__SHARDINGKEY"] for each in env.broker.messages("orders")}

        assert given.queue == own.queue == expected.queue
        assert found == {"order-3"}


async def test_keys_beyond_the_cache_keep_their_queues(env: ProducerEnv) -> None:
    before = await env.producer.queues_of_keys("orders", KEYS)
    many = [f"k{number}" for number in range(KEYS_CACHED + 1)]
    await env.producer.queues_of_keys("orders", many)

    assert await env.producer.queues_of_keys("orders", KEYS) == before
    assert env.producer._selection.by_key.cache_info().currsize == KEYS_CACHED


async def test_a_sharding_key_selects_the_queue_of_java_clients(two_brokers: ProducerEnv) -> None:
    result = await two_brokers.producer.send(keyed("orders"))

    # "orders".hashCode() is -1008770331, over 8 queues sorted by broker and number
    assert result.queue == two_brokers.queue(3, "broker-a")


async def test_the_key_is_stored_as_a_property(env: ProducerEnv) -> None:
    await env.producer.send(keyed("k 1"))
    await env.producer.send(ORDER, sharding_key="k 1")
    await env.producer.send(keyed("k 1"), sharding_key="k 1")
    found = [each.properties["__SHARDINGKEY"] for each in env.broker.messages("orders")]

    assert found == ["k 1"] * 3


async def test_keys_stay_with_a_broker_that_leaves_the_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "MISSING_SECONDS", 0.0)
    async with open_producer(brokers=2, config=ProducerConfig(retries=0)) as env:
        before = await queues_of_keys(env)
        gone = env.brokers[1]
        env.cluster.name_server.unregister(gone)
        await renewed(env)
        assert await queues_of_keys(env) == before  # at its last address
        await stopped(env, gone)

        there = [key for key in KEYS if before[key].broker_name != gone.name]
        for key in there:
            assert (await env.producer.send(keyed(key))).queue == before[key]
        sends = [env.producer.send(keyed(k), timeout_seconds=0.3) for k in {*KEYS} - {*there}]
        for failed in await asyncio.gather(*sends, return_exceptions=True):
            assert isinstance(failed, SendError)
        await gone.start()
        env.cluster.name_server.register(gone)
        await renewed(env)

        assert await queues_of_keys(env) == before


async def test_keys_keep_their_queues_until_the_topic_is_no_longer_used(env: ProducerEnv) -> None:
    await queues_of_keys(env)
    selection = env.producer._selection
    (sharded,) = selection.sharded.values()
    selection.forget_unused(())  # its route is missing at the moment
    sharded.publish.used_at -= 2 * UNUSED_SECONDS
    selection.forget_unused(("orders",))

    assert list(selection.sharded.values()) == [sharded]
    selection.forget_unused(())
    assert selection.sharded == {}


async def test_new_queues_do_not_move_keys() -> None:
    async with open_producer(queues=4) as env:
        before = await queues_of_keys(env)
        env.cluster.create_topic("orders", 16)
        await renewed(env)

        assert len(await env.producer.publish_queues("orders")) == 16
        assert await queues_of_keys(env) == before


async def test_removing_a_queue_redistributes_the_keys() -> None:
    async with open_producer(queues=4) as env:
        await queues_of_keys(env)
        env.broker.topics["orders"].write_queues = 2
        await renewed(env)

        assert {queue.queue_id for queue in (await queues_of_keys(env)).values()} == {0, 1}


async def test_keys_of_a_read_only_broker_raise_and_do_not_move(two_brokers: ProducerEnv) -> None:
    before = await queues_of_keys(two_brokers)
    two_brokers.brokers[1].create_topic("orders", 4, READ_ONLY)
    await renewed(two_brokers)
    stored = len(two_brokers.brokers[1].messages("orders"))
    key = next(key for key in KEYS if before[key].broker_name == "broker-b")

    with pytest.raises(RouteNotFoundError, match="may not be written to"):
        await two_brokers.producer.send(keyed(key))
    assert len(two_brokers.brokers[1].messages("orders")) == stored


async def test_a_keyed_retry_keeps_the_queue(two_brokers: ProducerEnv) -> None:
    before = await queues_of_keys(two_brokers)
    key = KEYS[0]
    broker = next(b for b in two_brokers.brokers if b.name == before[key].broker_name)
    broker.faults.refuse(SEND, 2, "busy", times=2, broker=broker.name)

    assert (await two_brokers.producer.send(keyed(key))).queue == before[key]


# --- one after another ---------------------------------------------------------------------------


async def test_sends_of_one_key_are_sequential_and_keys_are_concurrent(env: ProducerEnv) -> None:
    await connected(env)
    held = env.broker.faults.hold(SEND, times=None)
    first = [asyncio.create_task(env.producer.send(keyed("a", b"%d" % n))) for n in range(3)]
    other = asyncio.create_task(env.producer.send(keyed("b", b"b")))
    await held.wait(2)

    assert sorted(env.bodies()[1:]) == [b"0", b"b"]
    for _ in range(3):
        await held.wait(1)
        held.release()
    await asyncio.gather(*first, other)
    assert [body for body in env.bodies()[1:] if body != b"b"] == [b"0", b"1", b"2"]
    assert len(env.producer._order) == 0


async def test_keys_keep_their_order_with_reordered_responses(two_brokers: ProducerEnv) -> None:
    sends = [
        two_brokers.producer.send(keyed(f"k{key}", b"%d/%d" % (key, number)))
        for number in range(5)
        for key in range(64)
    ]
    await asyncio.gather(*sends)
    seen = defaultdict(list)
    for body in two_brokers.bodies():
        key, number = body.split(b"/")
        seen[key].append(int(number))

    assert len(seen) == 64
    assert all(numbers == [0, 1, 2, 3, 4] for numbers in seen.values())


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(Response(ResponseCode.MESSAGE_ILLEGAL), BrokerError), (Close(), SendUnknownError)],
    ids=["failed", "unknown"],
)
async def test_the_end_of_a_send_lets_the_next_of_its_key_go(
    outcome: Outcome, error: type[Exception]
) -> None:
    async with open_producer(config=ProducerConfig(retries=0)) as env:
        await connected(env)
        env.broker.faults.handle(SEND, outcome)
        outcomes = await asyncio.gather(
            env.producer.send(keyed("a", b"1")),
            env.producer.send(keyed("a", b"2")),
            return_exceptions=True,
        )

        assert isinstance(outcomes[0], error)
        assert env.bodies()[1:] == [b"2"]


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_cancelled_send_releases_its_key(which: int, env: ProducerEnv) -> None:
    await connected(env)
    held = env.broker.faults.hold(SEND, times=None)
    tasks = [asyncio.create_task(env.producer.send(keyed("a", b"%d" % n))) for n in range(3)]
    await held.wait(1)
    tasks[which].cancel()
    await asyncio.wait([tasks[which]])
    await held.wait(2 if which == 0 else 1)  # the next send got its key
    held.remove()
    held.release()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert [task.cancelled() for task in tasks] == [n == which for n in range(3)]
    assert len(env.producer._order) == 0
    assert env.producer._in_flight.count == 0


async def test_waiting_for_a_key_ends_at_the_deadline(env: ProducerEnv) -> None:
    await connected(env)
    held = env.broker.faults.hold(SEND, times=None)
    first = asyncio.create_task(env.producer.send(keyed("a")))
    await held.wait(1)
    with pytest.raises(SendError, match="same sharding key") as caught:
        await env.producer.send(keyed("a"), timeout_seconds=0.05)
    held.release()
    await first

    assert not isinstance(caught.value, SendUnknownError)


async def test_close_fails_sends_that_wait_for_their_key(env: ProducerEnv) -> None:
    await connected(env)
    held = env.broker.faults.hold(SEND)
    tasks = [asyncio.create_task(env.producer.send(keyed("a", b"%d" % n))) for n in range(3)]
    await held.wait(1)
    closing = asyncio.create_task(env.producer.close())
    await until(env.producer._is_closed)
    held.release()
    await closing
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(each) for each in outcomes[1:]] == [ClosedError] * 2
    assert env.bodies()[1:] == [b"0"]


# --- arguments -----------------------------------------------------------------------------------


async def test_queue_and_selector_override_the_key_of_the_message(env: ProducerEnv) -> None:
    for number in range(4):
        queue = env.queue(number)
        by_queue = await env.producer.send(keyed("a"), queue=queue)
        by_selector = await env.producer.send(keyed("a"), selector=lambda _q, _m, at=queue: at)  # type: ignore[misc]  # a bound loop variable

        assert (by_queue.queue, by_selector.queue) == (queue, queue)


async def test_queue_selector_and_key_exclude_each_other(env: ProducerEnv) -> None:
    with pytest.raises(ConfigError):
        await env.producer.send(ORDER, sharding_key="a", queue=env.queue())
    with pytest.raises(ConfigError):
        await env.producer.send(ORDER, sharding_key="a", selector=SelectByRandom())
    with pytest.raises(ConfigError, match="another one"):
        await env.producer.send(keyed("a"), sharding_key="b")


@pytest.mark.parametrize("key", ["", " ", 5, "a\x01b", "a\x02", b"a", ["a"]])
async def test_an_invalid_key_is_rejected(key: str) -> None:
    with pytest.raises(InvalidMessageError):
        Message("orders", b"x", sharding_key=key)
    async with open_producer() as env:
        with pytest.raises(ConfigError):
            await env.producer.send(ORDER, sharding_key=key)


async def test_a_key_too_long_for_the_properties_is_rejected(env: ProducerEnv) -> None:
    with pytest.raises(InvalidMessageError, match="bytes"):
        await env.producer.send(ORDER, sharding_key="k" * 33_000)


async def test_values_and_oneway_sends_take_a_key(env: ProducerEnv) -> None:
    expected = (await env.producer.send(keyed("a"))).queue
    await env.producer.send_oneway(ORDER, sharding_key="a")
    await until(lambda: len(env.broker.messages("orders", expected.queue_id)) == 2)

    frames = env.broker.requests_of(RequestCode.SEND_MESSAGE_V2)
    assert len(frames) == 2


async def test_a_batch_with_keys_needs_a_queue(env: ProducerEnv) -> None:
    with pytest.raises(InvalidMessageError, match="queue="):
        await env.producer.send_batch([keyed("a"), keyed("b")])
    await env.producer.send_batch([keyed("a"), keyed("b")], queue=env.queue(1))

    assert len(env.broker.messages("orders", 1)) == 2


@pytest.mark.parametrize(
    "choice",
    [{"queue": QUEUE}, {"selector": SelectByRandom()}, {"sharding_key": "a"}],
    ids=["queue", "selector", "key"],
)
async def test_brokers_choose_the_queue_of_a_message_with_a_priority(
    env: ProducerEnv, choice: dict[str, Any]
) -> None:
    urgent = Message("orders", b"x", priority=1)

    with pytest.raises(InvalidMessageError, match="priority="):
        await env.producer.send(urgent, **choice)
    with pytest.raises(InvalidMessageError, match="priority="):
        env.producer.send_nowait(urgent, queue=QUEUE)

    assert env.broker.requests_of(SEND) == []


# --- selectors -----------------------------------------------------------------------------------

ROOMS = [MessageQueue("t", f"{room}@broker", n) for room in ("east", "west") for n in range(3)]


def test_machine_room_selects_round_robin_inside_the_rooms() -> None:
    select = SelectByMachineRoom(["west"])

    assert {select(ROOMS, ORDER) for _ in range(3)} == set(ROOMS[3:])


def test_machine_room_uses_the_inner_selector() -> None:
    select = SelectByMachineRoom(["east"], lambda queues, _message: queues[-1])

    assert select(ROOMS, ORDER) == ROOMS[2]


def test_a_machine_room_without_brokers_raises() -> None:
    with pytest.raises(ConfigError, match="there are east@broker, west@broker"):
        SelectByMachineRoom(["north"])(ROOMS, ORDER)


@pytest.mark.parametrize("rooms", ["east", [], [""], [5]])
def test_machine_rooms_must_be_names(rooms: list[str]) -> None:
    with pytest.raises(ConfigError):
        SelectByMachineRoom(rooms)


@pytest.mark.parametrize("inner", [5, "east", lambda queues: queues[0]])
def test_an_inner_selector_must_take_queues_and_message(inner: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match="inner="):
        SelectByMachineRoom(["east"], inner)


def test_select_by_random_returns_one_of_the_queues() -> None:
    chosen = {SelectByRandom()(ROOMS, ORDER) for _ in range(300)}

    assert chosen == set(ROOMS)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
async def test_a_timeout_that_is_not_positive_is_refused(env: ProducerEnv, seconds: float) -> None:
    with pytest.raises(ConfigError, match="timeout_seconds"):
        await env.producer.queues_of_keys("orders", KEYS, timeout_seconds=seconds)
    encoded = Encoded(topic="orders", body=b"x", message_id="1")
    with pytest.raises(ConfigError, match="timeout_seconds"):
        await env.producer.send_encoded(encoded, timeout_seconds=seconds)


# --- wrong arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "queue",
    [
        MessageQueue("orders", 1, 0),  # type: ignore[arg-type]
        MessageQueue("orders", "broker-a", None),  # type: ignore[arg-type]
        MessageQueue("orders", "broker-a", -1),  # a broker would choose any queue
        Message("orders", b"x"),
    ],
)
async def test_a_queue_with_wrong_fields_is_rejected(env: ProducerEnv, queue: object) -> None:
    producer: Any = env.producer
    encoded = Encoded(topic="orders", body=b"x", message_id="ID")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: producer.send(ORDER, queue=queue),
        lambda: producer.send_nowait(ORDER, queue=queue),
        lambda: producer.send_batch([ORDER, ORDER], queue=queue),
        lambda: producer.send_encoded(encoded, queue=queue),
    ]

    for call in calls:
        with pytest.raises(ConfigError, match=r"^queue="):
            await call()
    assert env.sends() == []


async def test_wrong_keys_and_encoded_messages_are_rejected(env: ProducerEnv) -> None:
    producer: Any = env.producer

    for keys in ("key", b"key", None, 5):
        with pytest.raises(ConfigError, match=r"^keys=.*several"):
            await producer.queues_of_keys("orders", keys)
    with pytest.raises(InvalidMessageError, match=r"sharding_key: .* surrogate pair"):
        await producer.send(ORDER, sharding_key="\udc80")
    for encoded in (b"x", ORDER, None):
        with pytest.raises(InvalidMessageError, match=r"expected Encoded\(topic="):
            await producer.send_encoded(encoded)
    with pytest.raises(InvalidMessageError, match="send to a topic"):
        await producer.send_encoded(Encoded(topic="%LMQ%alice", body=b"x", message_id="ID"))
    assert env.sends() == []


@pytest.mark.parametrize("key", [None, b"key", True, 1.0, 2**63, -(2**63) - 1])
def test_select_by_hash_rejects_a_key_that_is_neither_text_nor_a_java_number(key: object) -> None:
    with pytest.raises(ConfigError, match=r"^key=.*: expected a string or a whole number of 64"):
        select_by_hash(key)  # type: ignore[arg-type]
