"""PopConsumer on a real broker: 5.5.0, and the error on 4.9.7."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from rocketmq_aio.admin.client import AdminClient
from rocketmq_aio.config.consumer import LitePullConfig, PopConfig
from rocketmq_aio.consumer.common.events import MessageDeadLettered
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.pop.consumer import PopConsumer
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.errors import NotSupportedError, RouteNotFoundError, SubscriptionError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.testing import Cluster
from tests.broker.reading_groups import consuming, in_thread, is_before, numbers, send

SECONDS: Final = 40.0  # real brokers redeliver some seconds late
QUIET_SECONDS: Final = 3.0


@asynccontextmanager
async def popping(
    namesrv: str,
    group: str,
    topic: str,
    selector: Any = "*",  # noqa: ANN401 - as `subscribe` takes it
    **settings: Any,  # noqa: ANN401 - those of PopConfig
) -> AsyncIterator[PopConsumer]:
    config = PopConfig(**{"start_from": "earliest", **settings})
    async with PopConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic, selector)
        yield consumer


async def received(consumer: PopConsumer, count: int) -> list[PoppedMessage]:
    """Receive until *count* messages are received."""
    taken: list[PoppedMessage] = []
    async with asyncio.timeout(SECONDS):
        while len(taken) < count:
            taken += await consumer.receive(min(32, count - len(taken)))
    return taken


async def numbers_of(consumer: LitePullConsumer, count: int) -> set[bytes]:
    """Poll *count* messages; return their bodies."""
    taken: set[bytes] = set()
    async with asyncio.timeout(SECONDS):
        while len(taken) < count:
            taken |= {each.body for each in await consumer.poll()}
    return taken


def bodies(taken: Iterable[MessageExt]) -> list[str]:
    return sorted((each.body.decode() for each in taken), key=int)


async def is_quiet(consumer: PopConsumer) -> bool:
    return await consumer.receive(wait_seconds=QUIET_SECONDS) == []


class Place:
    """Name server, topic and group of a test."""

    def __init__(self, namesrv: str, topic: str, group: str, version: str = "") -> None:
        self.repeats_batches = is_before(
            version or "5.5", "5.1"
        )  # in order, whatever was acknowledged
        self.namesrv = namesrv
        self.topic = topic
        self.group = group

    def popping(self, *args: Any, **settings: Any) -> Any:  # noqa: ANN401
        return popping(self.namesrv, self.group, self.topic, *args, **settings)

    async def send(self, texts: Iterable[str], **parts: Any) -> None:  # noqa: ANN401
        await send(self.namesrv, self.topic, texts, **parts)


async def refused(place: Place) -> None:
    """Check that start and subscribe raise on a broker before 5.0."""
    consumer = PopConsumer(place.group, namesrv=place.namesrv)
    await consumer.subscribe(place.topic)
    with pytest.raises(NotSupportedError, match="popping needs a broker"):
        await consumer.start()
    async with PopConsumer(place.group, namesrv=place.namesrv) as late:
        with pytest.raises(NotSupportedError, match="popping needs a broker"):
            await late.subscribe(place.topic)


Scenario = Callable[[Place], Any]


async def acknowledged_messages_are_delivered_once(place: Place) -> None:
    await place.send(numbers(100))
    async with place.popping(invisible_seconds=5) as consumer:
        taken = await received(consumer, 100)
        await consumer.ack(taken[:99])
        await consumer.ack(taken[99])
        assert bodies(taken) == numbers(100)
        assert {each.queue.queue_id for each in taken} == {0, 1, 2, 3}
        assert await consumer.receive(wait_seconds=9) == []


async def members_share_all_queues(place: Place) -> None:
    await place.send(numbers(60))
    async with place.popping() as one, place.popping() as two:
        first = await one.receive(10)
        second = await two.receive(10)
        rest = await received(one, 60 - len(first) - len(second))
        for consumer, messages in ((one, [*first, *rest]), (two, second)):
            await consumer.ack(messages)

    assert bodies([*first, *second, *rest]) == numbers(60)
    assert first
    assert second


async def a_new_message_ends_the_wait(place: Place) -> None:
    async with place.popping() as consumer:
        waiting = asyncio.ensure_future(consumer.receive(wait_seconds=SECONDS))
        await place.send(["1"])
        [message] = await waiting
        await consumer.ack(message)


async def unacknowledged_messages_are_redelivered_to_any_member(place: Place) -> None:
    await place.send(numbers(3))
    async with place.popping(invisible_seconds=1) as consumer:
        await received(consumer, 3)
    async with place.popping() as consumer:
        again = await received(consumer, 3)
        assert bodies(again) == numbers(3)
        assert {(m.reconsume_times, m.topic, m.receipt.marker) for m in again} == {
            (1, place.topic, "1")
        }
        await consumer.ack(again)
        assert await is_quiet(consumer)


async def renewed_messages_are_not_redelivered(place: Place) -> None:
    await place.send(numbers(6))
    seen: Counter[str] = Counter()
    async with place.popping(invisible_seconds=3) as consumer, asyncio.timeout(SECONDS * 2):
        async for message in consumer:
            seen[message.body.decode()] += 1
            if sum(seen.values()) == 1:
                async with place.popping() as other:
                    # More than twice its invisible time passes without a redelivery.
                    assert await other.receive(wait_seconds=8) == []
            if sum(seen.values()) == 6:
                await consumer.ack(message)
                break
        assert await consumer.receive(wait_seconds=8) == []

    assert seen == Counter(numbers(6))


async def a_message_goes_to_the_dead_letter_topic_after_its_retries(place: Place) -> None:
    await place.send(["1"])
    async with place.popping(max_reconsume_times=2) as consumer:
        events = consumer.events()
        for tries in range(3):
            [message] = await received(consumer, 1)
            assert (message.reconsume_times, message.topic) == (tries, place.topic)
            await consumer.retry(message, 1)
        event = await anext(events)
        assert await is_quiet(consumer)
    dead = await dead_letters(place)

    assert isinstance(event, MessageDeadLettered)
    assert event.reconsume_times == 2
    assert [each.body for each in dead] == [b"1"]


async def expired_messages_become_dead_letters_at_the_retry_limit(place: Place) -> None:
    await place.send(["1"])
    async with place.popping(max_reconsume_times=0, invisible_seconds=1) as consumer:
        events = consumer.events()
        [_] = await received(consumer, 1)
        waiting = asyncio.ensure_future(receive_nothing(consumer))
        async with asyncio.timeout(SECONDS):
            event = await anext(events)
        waiting.cancel()

    assert isinstance(event, MessageDeadLettered)
    assert [each.body for each in await dead_letters(place)] == [b"1"]


async def receive_nothing(consumer: PopConsumer) -> None:
    """Receive until cancelled; 5.1.4 wakes no pop for retries of a topic with "_" in its name."""
    while True:
        assert await consumer.receive(wait_seconds=5) == []


async def dead_letters(place: Place) -> list[MessageExt]:
    topic = f"%DLQ%{place.group}"
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer(
        f"{place.group}-dead", namesrv=place.namesrv, config=config
    ) as all_:
        route: list[MessageQueue] = []
        async with asyncio.timeout(SECONDS):
            while not route:
                route = await queues_of(all_, topic)
        await all_.assign(route)
        return await all_.poll(SECONDS)


async def queues_of(consumer: LitePullConsumer, topic: str) -> list[MessageQueue]:
    try:
        return await consumer.message_queues(topic)
    except RouteNotFoundError:
        await asyncio.sleep(0.2)
        return []


async def an_orderly_queue_waits_for_acknowledgements_and_counts_deliveries(place: Place) -> None:
    queue = MessageQueue(place.topic, "broker-a", 0)
    await place.send(numbers(6), queue=queue)
    invisible = 10 if place.repeats_batches else 30
    async with place.popping(orderly=True, invisible_seconds=invisible) as one:
        first = await one.receive(2)
        assert [each.body for each in first] == [b"0", b"1"]
        async with place.popping(orderly=True, invisible_seconds=invisible) as two:
            assert await two.receive(wait_seconds=1) == []
            await one.ack(first[0])
            await one.retry(first[1], 1)
            again = await received(two, 2)
            counted = [(m.body, m.reconsume_times) for m in again]
            if place.repeats_batches:
                assert counted == [(b"0", 1), (b"1", 1)]
            else:
                assert counted == [(b"1", 1), (b"2", 0)]
            await two.ack(again)
            rest = await received(two, 4 if place.repeats_batches else 3)
            assert [each.body for each in rest] == [b"2", b"3", b"4", b"5"][-len(rest) :]
            await two.ack(rest)
            assert await is_quiet(two)


async def selectors_filter_popped_messages(place: Place) -> None:
    await place.send(["1"], tags="BB", properties={"price": "1"})
    await place.send(["2"], tags="Aa", properties={"price": "5"})
    async with place.popping("Aa") as consumer:
        [message] = await received(consumer, 1)
        await consumer.ack(message)
        assert await is_quiet(consumer)
    sql = MessageSelector.by_sql("price > 3")
    async with popping(place.namesrv, f"{place.group}-2", place.topic, sql) as consumer:
        [other] = await received(consumer, 1)
        await consumer.ack(other)
        with pytest.raises(SubscriptionError):
            await consumer.subscribe(place.topic, MessageSelector.by_sql("price >"))

    assert message.body == other.body == b"2"


async def close_returns_messages_that_were_not_received(place: Place) -> None:
    await place.send(numbers(8))
    async with place.popping(invisible_seconds=60) as consumer:
        message = await anext(aiter(consumer))
        await consumer.ack(message)
    async with place.popping() as consumer:
        rest = await received(consumer, 7)  # before their invisible time ended

        assert bodies([message, *rest]) == numbers(8)
        await consumer.ack(rest)


async def small_pops_do_not_favour_a_queue(place: Place) -> None:
    await place.send(numbers(40))
    async with place.popping() as consumer:
        taken = [message for _ in range(12) for message in await consumer.receive(1)]
        await consumer.ack(taken)

    assert len({each.queue for each in taken}) > 2  # of four, each with ten messages


async def a_reset_delivers_messages_in_flight_again(place: Place) -> None:
    await place.send(numbers(8))
    async with place.popping() as consumer, AdminClient(namesrv=place.namesrv) as admin:
        before = await received(consumer, 8)
        await admin.offsets.reset(place.group, place.topic, "earliest")
        again = await received(consumer, 8)
        await consumer.ack(before)
        await consumer.ack(again)

        assert bodies(again) == bodies(before)
        assert {each.reconsume_times for each in again} == {0}
        await admin.offsets.skip(place.group, place.topic)
        await place.send(["9"])
        assert bodies(await received(consumer, 1)) == ["9"]


async def the_broker_lists_the_member(place: Place) -> None:
    async with place.popping() as consumer:
        client = consumer.client
        ids = await client.broker.consumer_ids_at(
            place.group, client.broker.any_broker(place.topic)
        )

        assert ids == [client.client_id]


SCENARIOS: Final = [
    acknowledged_messages_are_delivered_once,
    members_share_all_queues,
    a_new_message_ends_the_wait,
    unacknowledged_messages_are_redelivered_to_any_member,
    renewed_messages_are_not_redelivered,
    a_message_goes_to_the_dead_letter_topic_after_its_retries,
    expired_messages_become_dead_letters_at_the_retry_limit,
    an_orderly_queue_waits_for_acknowledgements_and_counts_deliveries,
    selectors_filter_popped_messages,
    close_returns_messages_that_were_not_received,
    small_pops_do_not_favour_a_queue,
    a_reset_delivers_messages_in_flight_again,
    the_broker_lists_the_member,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_pop_consumer(
    scenario: Scenario, rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    version = rocketmq_cluster.version
    # Retry topics contain both names, and 5.0.0 brokers create none of more than 127 characters.
    place = Place(rocketmq_cluster.namesrv, rocketmq_topic, f"pop-{rocketmq_group[-12:]}", version)

    await (refused(place) if version.startswith("4.") else scenario(place))


async def test_messages_with_the_highest_priority_are_popped_first(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    namesrv, version = rocketmq_cluster.namesrv, rocketmq_cluster.version
    topic = f"{rocketmq_topic}-urgent"
    is_known = not is_before(version, "5.4.0")
    attributes = {"message.type": "PRIORITY"} if is_known else {}
    async with AdminClient(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=4, attributes=attributes)

    async with Producer(f"{rocketmq_group}-producer", namesrv=namesrv) as producer:
        sent = [
            await producer.send(Message(topic, b"%d" % priority, priority=priority))
            for priority in (1, 0, 9, 2, 3)
        ]
        no_priority = await producer.send(Message(topic, b"none"))

    if not is_known:  # brokers ignore it
        async with consuming(namesrv, rocketmq_group, topic) as puller:
            assert await numbers_of(puller, 6) == {b"0", b"1", b"2", b"3", b"9", b"none"}
        return
    assert [each.queue.queue_id for each in sent] == [1, 0, 3, 2, 3]
    place = Place(namesrv, topic, f"pop-{rocketmq_group[-12:]}")
    async with place.popping() as consumer:
        taken = [(each.body, each.priority) for each in await received(consumer, 6)]
    with_priority = [each for each in taken if each[1] is not None]
    assert with_priority == [(b"9", 9), (b"3", 3), (b"2", 2), (b"1", 1), (b"0", 0)]
    assert (b"none", None) in taken
    assert no_priority.ok


@pytest.mark.needs_real_broker("the embedded broker has no retry topics V2")
async def test_messages_of_retry_topics_v2_are_popped(
    fresh_cluster: Callable[..., Cluster], rocketmq_version: str
) -> None:
    def start() -> Cluster:
        cluster = fresh_cluster(broker_properties={"enableRetryTopicV2": "true"})
        cluster.create_topic("jobs", queues=2)
        return cluster

    cluster = await asyncio.to_thread(start)
    place = Place(cluster.namesrv, "jobs", "second")
    if rocketmq_version.startswith("4."):
        await refused(place)
    else:
        await tried_again(place, "1" if is_before(rocketmq_version, "5.2") else "2")
    await asyncio.to_thread(cluster.close)


async def test_a_suspended_message_is_no_retry_since_5_5(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    place = Place(rocketmq_cluster.namesrv, rocketmq_topic, rocketmq_group)
    if rocketmq_cluster.version.startswith("4."):
        await refused(place)
        return
    await place.send(numbers(1))
    async with place.popping() as consumer:
        [first] = await received(consumer, 1)
        await consumer.retry(first, 1, suspend=True)
        [again] = await received(consumer, 1)
        await consumer.ack(again)

    assert again.reconsume_times == is_before(rocketmq_cluster.version, "5.5")


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_reset_moves_a_group_that_pops(
    admin: AdminClient,
    rocketmq_cluster: Cluster,
    rocketmq_topic: str,
    rocketmq_group: str,
    *,
    orderly: bool,
) -> None:
    place = Place(rocketmq_cluster.namesrv, rocketmq_topic, rocketmq_group)
    if rocketmq_cluster.version.startswith("4."):
        await refused(place)
        return
    await place.send(numbers(6))
    async with place.popping(orderly=orderly) as consumer:

        async def receive_all() -> Counter[str]:
            taken = await received(consumer, 6)
            await asyncio.gather(*map(consumer.ack, taken))
            return Counter(each.body.decode() for each in taken)

        assert await receive_all() == Counter(numbers(6))
        await admin.offsets.reset(rocketmq_group, rocketmq_topic, "earliest")
        assert await receive_all() == Counter(numbers(6))
        await place.send(numbers(6))
        await admin.offsets.reset(rocketmq_group, rocketmq_topic, "latest")
        assert await is_quiet(consumer)


async def tried_again(place: Place, marker: str) -> None:
    await place.send(numbers(3))
    async with place.popping(invisible_seconds=1) as consumer:
        await received(consumer, 3)
    async with place.popping() as consumer:
        again = await received(consumer, 3)
        assert {each.receipt.marker for each in again} == {marker}
        await consumer.change_invisible(again[0], 30)
        await consumer.ack(again)
        assert await is_quiet(consumer)


@pytest.mark.usefixtures("mqadmin_folder")
async def test_mqadmin_shows_a_pop_consumer(
    rocketmq_cluster: Cluster,
    rocketmq_topic: str,
    rocketmq_group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # mqadmin writes files
    place = Place(rocketmq_cluster.namesrv, rocketmq_topic, rocketmq_group)
    if rocketmq_cluster.version.startswith("4."):
        await refused(place)
        return
    options = ("-g", place.group, "-n", place.namesrv)
    consumer = PopConsumer(place.group, namesrv=place.namesrv)
    await consumer.subscribe(place.topic, "a || b")
    async with consumer:
        client_id = consumer.client.client_id
        ask = rocketmq_cluster.mqadmin
        listed = await in_thread(ask, "consumerConnection", *options)
        status = await in_thread(ask, "consumerStatus", *options, "-i", client_id)

    assert "ConsumeType: CONSUME_PASSIVELY" in listed
    assert re.search(rf"^{re.escape(place.topic)}\s+a \|\| b", listed, re.M), listed
    assert re.search(r"popInvisibleTime\s+: 60000$", status, re.M), status
    assert re.search(rf"Topic: {re.escape(place.topic)}\s.*SubExpression: a \|\| b", status), status
    details = status.split("#Consumer Pop Detail#")[1]
    assert re.search(rf"^{re.escape(place.topic)}\s+broker-a\s+-1\s", details, re.M), status
