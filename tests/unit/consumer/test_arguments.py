"""Arguments of the methods of consumers: each wrong one is named, and no request is sent for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, TypeAlias

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import TOPIC, consuming, numbers, put
from tests.unit.consumer.parts import queue
from tests.unit.consumer.pop_env import popped, popping
from tests.unit.consumer.pushing import Notes, pushing

# The setting that is named, its value, and the call.
Case: TypeAlias = tuple[str, object, Callable[[Any, Any], object]]

NAN: Final = float("nan")
NOW: Final = datetime.now(UTC)
QUEUE: Final = queue()
MISFITS: Final[list[Any]] = [
    *((None, "broker-a", 0), (TOPIC, None, 0), ("", "broker-a", 0), (TOPIC, "", 0)),
    *((TOPIC, "broker-a", "0"), (TOPIC, "broker-a", True), (TOPIC, "broker-a", -1)),
]
FOREIGN: Final = queue(9)
BACKGROUND: Final = frozenset(
    {
        *(RequestCode.HEART_BEAT, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
        *(RequestCode.POP_MESSAGE, RequestCode.GET_CONSUMER_LIST_BY_GROUP),
        *(RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.UPDATE_CONSUMER_OFFSET),
        *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MIN_OFFSET),
    }
)


def cases(setting: str, values: Iterable[Any], call: Callable[[Any, Any], object]) -> list[Case]:
    return [(setting, value, call) for value in values]


GROUP_MEMBER: Final[list[Case]] = [
    *cases("topic", ("", "a b", None, 5), lambda c, v: c.subscribe(v)),
    *cases("topic", ("a b", 5, []), lambda c, v: c.unsubscribe(v)),
    *cases("selector", ("||", 5), lambda c, v: c.subscribe(TOPIC, v)),
]
READY: Final[list[Case]] = cases("timeout_seconds", ("1", -1, NAN, True), lambda c, v: c.ready(v))
SEEK: Final[list[Case]] = [
    *cases("queue", (FOREIGN, TOPIC, []), lambda c, v: c.seek(v, 0)),
    *cases("offset", (-1, 1.0, "3", None), lambda c, v: c.seek(QUEUE, v)),
]
LITE_PULL: Final[list[Case]] = [
    *(*GROUP_MEMBER, *READY, *SEEK),
    *cases("queue", (FOREIGN, TOPIC, []), lambda c, v: c.seek_to_begin(v)),
    *cases("queue", (FOREIGN, TOPIC, []), lambda c, v: c.seek_to_end(v)),
    *cases("queue", (FOREIGN, TOPIC, []), lambda c, v: c.position(v)),
    *cases("queue", (TOPIC, None), lambda c, v: c.committed(v)),
    *cases("queue", (MessageQueue(*each) for each in MISFITS), lambda c, v: c.committed(v)),
    *cases("queue", (TOPIC, None), lambda c, v: c.offset_for_time(v, NOW)),
    *cases(
        "when",
        (datetime(2026, 1, 1), 5, None, "2026-01-01"),
        lambda c, v: c.offset_for_time(QUEUE, v),
    ),
    *cases("queue", (FOREIGN, TOPIC, []), lambda c, v: c.pause([QUEUE, v])),
    *cases("queue", (FOREIGN, TOPIC, []), lambda c, v: c.resume([QUEUE, v])),
    *cases("queues", (QUEUE, None), lambda c, v: c.pause(v)),
    *cases("queues", (QUEUE, None), lambda c, v: c.resume(v)),
    *cases("offsets", (5, QUEUE, TOPIC), lambda c, v: c.commit(v)),
    *cases("queue", (TOPIC, 5), lambda c, v: c.commit({v: 1})),
    *cases("queue", (TOPIC, [QUEUE], {}), lambda c, v: c.commit([v])),
    *cases("offset", (-1, "1", 2**63), lambda c, v: c.commit({QUEUE: v})),
    *cases("max_messages", (0, -1, 1.5, "7", True), lambda c, v: c.poll(0, max_messages=v)),
    *cases("timeout_seconds", (-1, NAN, float("inf"), "5", None, True), lambda c, v: c.poll(v)),
    ("listener", 5, lambda c, v: c.listen_queues(TOPIC, v)),
    ("topic", "", lambda c, v: c.listen_queues(v, print)),
    ("on_queues_changed", 5, lambda c, v: c.subscribe(TOPIC, on_queues_changed=v)),
    ("topic", 5, lambda c, v: c.message_queues(v)),
]
PUSH: Final[list[Case]] = [
    *(*GROUP_MEMBER, *READY, *SEEK),
    *cases("concurrency", (0, 1001, True, "5"), lambda c, v: c.set_concurrency(v)),
]
POP: Final[list[Case]] = [
    *GROUP_MEMBER,
    *cases("max_messages", (0, 33, True), lambda c, v: c.receive(v)),
    *cases("invisible_seconds", (0, "1", 1e9), lambda c, v: c.receive(1, v)),
    *cases("wait_seconds", (-1, NAN), lambda c, v: c.receive(1, 1, v)),
    *cases("message", (5, None), lambda c, v: c.ack(v)),
    ("message", "m", lambda c, v: c.ack([popped(1), v])),
    *cases("message", ("m", [], [popped(1)]), lambda c, v: c.change_invisible(v, 1)),
    *cases("message", ("m", [], [popped(1)]), lambda c, v: c.retry(v)),
    *cases("seconds", (None, 0, -1, "1", NAN), lambda c, v: c.change_invisible(popped(1), v)),
    *cases("delay_seconds", (0, -1, "1", NAN), lambda c, v: c.retry(popped(1), v)),
]
KINDS: Final[dict[str, tuple[Callable[[FakeCluster], AbstractAsyncContextManager[Any]], Any]]] = {
    "lite pull": (consuming, LITE_PULL),
    "push": (lambda cluster: pushing(cluster, Notes()), PUSH),
    "pop": (popping, POP),
}


async def outcome(returned: object) -> object:
    """Return the result of a plain or async method."""
    return await returned if inspect.isawaitable(returned) else returned


@pytest.mark.parametrize("kind", KINDS)
async def test_invalid_arguments_are_refused_before_any_request(
    cluster: FakeCluster, kind: str
) -> None:
    enter, table = KINDS[kind]
    put(cluster, *numbers(5))
    async with enter(cluster) as consumer:
        for setting, value, call in table:
            with pytest.raises(ConfigError) as caught:
                await outcome(call(consumer, value))
            assert caught.value.setting == setting, (setting, value)
            assert caught.value.value is value, (setting, value)
        sent = {each.command.code for each in cluster.broker.requests} - BACKGROUND

    assert sent == set()


@pytest.mark.parametrize("misfit", [*MISFITS, ("a b", "broker-a", 0)])
async def test_assign_accepts_queues_of_valid_names_and_numbers_only(
    misfit: tuple[object, ...],
) -> None:
    consumer = LitePullConsumer("billing", namesrv="127.0.0.1:1")

    invalid: Any = MessageQueue(*misfit)  # type: ignore[arg-type]
    cases: list[Any] = [[invalid], [list(misfit)], [QUEUE, invalid]]
    for queues in cases:
        with pytest.raises(ConfigError, match="queues"):
            await consumer.assign(queues)


async def test_names_of_queues_may_be_members_of_a_string_enum() -> None:
    class Name(str, Enum):  # noqa: UP042 - its members format as "Name.ORDERS"
        ORDERS = "orders"
        BROKER = "broker-a"

    queue = MessageQueue(Name.ORDERS, Name.BROKER, 0)
    async with EmbeddedCluster() as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, namespace="shop")
        async with (
            Producer("shop", client=config) as producer,
            PullConsumer("billing", client=config) as puller,
            LitePullConsumer("audit", client=config) as consumer,
        ):
            await producer.send(Message("orders", b"42"))
            await producer.send(Message("orders", b"43"), queue=queue)
            pulled = await puller.pull(queue, 0)
            await puller.commit(queue, 0)
            await consumer.assign([queue])

            assert pulled.messages[-1].body == b"43"
            assert await puller.committed(queue) == 0
            assert str(consumer.assignment()[0]) == "orders/broker-a/0"


async def test_topic_and_group_may_be_members_of_a_string_enum() -> None:
    class Name(str, Enum):  # noqa: UP042 - its members format as "Name.ORDERS"
        ORDERS = "orders"
        BILLING = "billing"

    async with (
        EmbeddedCluster(topics={"orders": 1}) as cluster,
        LitePullConsumer(Name.BILLING, namesrv=cluster.namesrv) as consumer,
    ):
        await consumer.subscribe(Name.ORDERS)
        await consumer.ready()

        assert consumer.assignment() == [MessageQueue("orders", "broker-a", 0)]
        await consumer.commit({consumer.assignment()[0]: 0})
        assert cluster.broker.committed("billing", "orders", 0) == 0
