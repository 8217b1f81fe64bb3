"""PopConsumer on a scripted cluster: receive, acknowledge, change and retry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import PopConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.consumer.pop.consumer import PopConsumer
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import (
    AckError,
    BrokerError,
    CodecError,
    ConfigError,
    ReceiptError,
    SubscriptionError,
)
from rocketmq_aio.model.values import MessageSelector
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, numbers, put
from tests.unit.consumer.pop_env import RETRY_TOPIC, bodies, invisible, popper_of, popping
from tests.unit.remoting.short_timeout import shorten_next_timeout
from tests.unit.remoting.until import until

POP = RequestCode.POP_MESSAGE
ACK = RequestCode.ACK_MESSAGE
BATCH = RequestCode.BATCH_ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME


async def received(consumer: PopConsumer, count: int, **wanted: Any) -> list[PoppedMessage]:  # noqa: ANN401
    """Receive until *count* messages have come."""
    taken: list[PoppedMessage] = []
    while len(taken) < count:
        messages = await consumer.receive(**{"wait_seconds": 5, **wanted})
        assert messages, f"{len(taken)} of {count} came"
        taken += messages
    return taken


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"group": "a b"}, "group"),
        ({"namesrv": "127.0.0.1:9876", "client": ClientConfig()}, "namesrv"),
        ({"namesrv": "127.0.0.1:9876", "config": ProducerConfig()}, "config"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PopConsumer(**{"group": GROUP, **arguments})

    assert caught.value.setting == setting


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("invisible_seconds", 0),
        ("invisible_seconds", 0.009),
        ("batch_size", 33),
        ("batch_size", 0),
        ("wait_seconds", -1),
        ("max_reconsume_times", -1),
        ("start_from", "middle"),
        ("orderly", "yes"),
        ("renew_seconds", 0),
    ],
)
def test_a_wrong_setting_is_named(setting: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        PopConfig(**{setting: value})  # type: ignore[arg-type]

    assert caught.value.setting == setting


async def test_messages_of_all_queues_and_brokers_are_received_once() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 4}) as cluster:
        for broker in (0, 1):
            for queue_id in range(4):
                put(cluster, f"{broker}-{queue_id}", queue_id=queue_id, broker=broker)
        async with popping(cluster) as consumer:
            taken = await received(consumer, 8)
            await consumer.ack(taken)
            assert await consumer.receive(wait_seconds=0) == []

        places = {f"{m.queue.broker_name[-1]}-{m.queue.queue_id}" for m in taken}
        assert bodies(taken) == [f"{b}-{q}" for b in (0, 1) for q in range(4)]
        assert places == {f"{'ab'[b]}-{q}" for b in (0, 1) for q in range(4)}
        assert invisible(cluster) == 0


async def test_receive_returns_up_to_max_messages(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    async with popping(cluster) as consumer:
        assert bodies(await consumer.receive(3)) == ["0", "1", "2"]
        assert invisible(cluster) == 3
        assert bodies(await consumer.receive(7)) == ["3", "4", "5", "6", "7", "8", "9"]


async def test_receive_returns_at_the_first_message(cluster: FakeCluster) -> None:
    async with popping(cluster) as consumer:
        waiting = asyncio.ensure_future(consumer.receive(wait_seconds=5))
        await cluster.broker.wait_for(POP, 2)  # the first one asks for no wait
        put(cluster, "awaited")

        assert bodies(await waiting) == ["awaited"]


async def test_receive_returns_an_empty_list_without_messages(cluster: FakeCluster) -> None:
    async with popping(cluster) as consumer:
        assert await consumer.receive(wait_seconds=0.05) == []
        assert await consumer.receive(wait_seconds=0) == []


async def test_the_wait_is_given_in_the_brokers_time(cluster: FakeCluster) -> None:
    async with popping(cluster) as consumer:
        waiting = asyncio.ensure_future(consumer.receive(wait_seconds=60))
        await until(lambda: len(cluster.broker.requests_of(POP)) == 2)
        put(cluster, "1")
        await waiting

    first, second = cluster.broker.requests_of(POP)[:2]
    assert first.ext_fields()["bornTime"] == first.ext_fields()["pollTime"] == "0"
    assert int(second.ext_fields()["bornTime"]) > 1_700_000_000_000
    assert 0 < int(second.ext_fields()["pollTime"]) <= 60_000


async def test_a_cancelled_receive_loses_nothing(cluster: FakeCluster) -> None:
    async with popping(cluster) as consumer:
        held = cluster.faults.hold("pop")
        put(cluster, "1", "2")
        waiting = asyncio.ensure_future(consumer.receive(wait_seconds=5))
        await held.wait(1)
        waiting.cancel()
        held.release()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        assert bodies(await consumer.receive(wait_seconds=5)) == ["1", "2"]
        assert len(cluster.broker.requests_of(POP)) == 1


async def test_concurrent_callers_share_the_messages(cluster: FakeCluster) -> None:
    async with popping(cluster) as consumer:
        waiting = [asyncio.ensure_future(consumer.receive(1, wait_seconds=5)) for _ in range(20)]
        await cluster.broker.wait_for(POP)
        put(cluster, *numbers(20))
        taken = [message for each in await asyncio.gather(*waiting) for message in each]

    assert bodies(taken) == sorted(numbers(20))


async def test_expired_messages_are_not_delivered(cluster: FakeCluster) -> None:
    async with popping(cluster) as consumer:
        held = cluster.faults.hold("pop")
        put(cluster, "1")
        waiting = asyncio.ensure_future(consumer.receive(invisible_seconds=0.05, wait_seconds=30))
        await held.wait(1)
        await until(lambda: _has_come_again(cluster))
        held.release()

        [message] = await waiting
        assert message.body == b"1"
        assert message.reconsume_times > 0


def _has_come_again(cluster: FakeCluster) -> bool:
    return RETRY_TOPIC in cluster.broker.topics


async def test_wrong_tags_of_equal_hash_are_acknowledged_unseen(cluster: FakeCluster) -> None:
    put(cluster, "no", tag="BB")
    put(cluster, "yes", tag="Aa")
    async with popping(cluster, "Aa") as consumer:
        [message] = await consumer.receive()
        assert message.body == b"yes"
        await consumer.ack(message)
        await until(lambda: invisible(cluster) == 0)


async def test_sql_is_checked_before_it_is_used(cluster: FakeCluster) -> None:
    async with popping(cluster) as consumer:
        with pytest.raises(SubscriptionError):
            await consumer.subscribe(TOPIC, MessageSelector.by_sql("(BAD"))
    consumer = popper_of(cluster)
    await consumer.subscribe(TOPIC, MessageSelector.by_sql("(BAD"))
    with pytest.raises(SubscriptionError):
        await consumer.start()


async def test_several_messages_are_acknowledged_with_one_request(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    put(cluster, *numbers(5), queue_id=1)
    async with popping(cluster) as consumer:
        taken = await received(consumer, 10)
        await consumer.ack(taken)
        await consumer.ack(taken)  # again: harmless, and no request is sent

        assert invisible(cluster) == 0
        assert len(cluster.broker.requests_of(BATCH)) == 1
        assert cluster.broker.requests_of(ACK) == []


async def test_a_broker_without_batch_acks_gets_single_acks(cluster: FakeCluster) -> None:
    cluster.faults.refuse(BATCH, 3, times=None)
    put(cluster, *numbers(4))
    async with popping(cluster) as consumer:
        for _ in range(2):
            await consumer.ack(await received(consumer, 2, max_messages=2))

    assert invisible(cluster) == 0
    assert len(cluster.broker.requests_of(ACK)) == 4
    assert len(cluster.broker.requests_of(BATCH)) == 1


async def test_single_acks_do_not_wait_for_each_other(cluster: FakeCluster) -> None:
    cluster.faults.refuse(BATCH, 3, times=None)
    put(cluster, *numbers(20))
    async with popping(cluster) as consumer:
        taken = await received(consumer, 20)
        held = cluster.faults.hold(ACK, times=16)
        acking = asyncio.ensure_future(consumer.ack(taken))
        await held.wait(16)
        held.release()
        await acking

    assert invisible(cluster) == 0
    assert len(cluster.broker.requests_of(ACK)) == 20


async def test_an_ack_to_a_busy_broker_is_retried(cluster: FakeCluster) -> None:
    put(cluster, "1")
    cluster.faults.refuse(ACK, times=2)
    async with popping(cluster) as consumer:
        await consumer.ack(await consumer.receive())

    assert invisible(cluster) == 0
    assert len(cluster.broker.requests_of(ACK)) == 3


async def test_ack_error_has_the_messages(cluster: FakeCluster) -> None:
    put(cluster, "1")
    cluster.faults.refuse(ACK, 13, "queue")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        with pytest.raises(AckError) as caught:
            await consumer.ack(message)
        assert isinstance(caught.value.lost[message], BrokerError)
        await consumer.ack(message)

    assert invisible(cluster) == 0


async def test_each_ack_after_the_invisible_time_raises(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        message.expires_at = 0.0
        for _ in range(2):
            with pytest.raises(AckError, match="invisible time was over"):
                await consumer.ack(message)
        with pytest.raises(ReceiptError, match="invisible time was over"):
            await consumer.retry(message)


async def test_each_ack_after_a_change_whose_response_was_lost_raises(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        cluster.faults.drop("change_invisible")
        shorten_next_timeout(consumer.client, CHANGE)
        with pytest.raises(TimeoutError):
            await consumer.change_invisible(message, 60)
        for _ in range(2):
            with pytest.raises(AckError, match="response to a change"):
                await consumer.ack(message)
        with pytest.raises(ReceiptError, match="response to a change"):
            await consumer.retry(message)


async def test_message_without_time_to_retry_does_not_stop_the_retries_of_its_batch(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(3))
    cluster.faults.refuse(BATCH)
    async with popping(cluster) as consumer:
        taken = await received(consumer, 3)
        taken[0].expires_at = 0.0
        with pytest.raises(AckError) as caught:
            await consumer.ack(taken)

    assert list(caught.value.lost) == taken[:1]
    assert invisible(cluster) == 1


async def test_a_message_of_another_group_is_rejected_before_any_request(
    cluster: FakeCluster,
) -> None:
    put(cluster, "a", "b")
    client = ClientConfig(namesrv=cluster.namesrv)
    async with popping(cluster) as consumer, PopConsumer("other", client=client) as other:
        taken = await received(consumer, 2)
        for call in (other.ack(taken), other.change_invisible(taken[0], 1), other.retry(taken[0])):
            with pytest.raises(ConfigError, match=f"the group {GROUP} received it, not other"):
                await call

        assert invisible(cluster) == 2


async def test_refused_ack_does_not_stop_the_acks_behind_it(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    cluster.faults.refuse(BATCH, 3)
    cluster.faults.refuse(ACK, 13, "queue")
    async with popping(cluster) as consumer:
        taken = await received(consumer, 3)
        with pytest.raises(AckError) as caught:
            await consumer.ack(taken)

    assert list(caught.value.lost) == taken[:1]
    assert invisible(cluster) == 1


async def test_ack_of_a_message_in_change_does_not_delay_the_others(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    async with popping(cluster) as consumer:
        taken = await received(consumer, 3)
        held = cluster.faults.hold("change_invisible", times=None)
        changing = asyncio.ensure_future(consumer.change_invisible(taken[0], 30))
        await held.wait(1)
        done = asyncio.ensure_future(consumer.ack(taken))
        await until(lambda: invisible(cluster) == 1, "the other acknowledgements")
        held.release()
        await changing
        await done

    assert invisible(cluster) == 0


async def test_an_ack_after_the_invisible_time_is_an_error(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive(invisible_seconds=0.01)
        now = asyncio.get_running_loop().time
        await until(lambda: message.is_expired(now()))
        with pytest.raises(AckError) as caught:
            await consumer.ack(message)

    assert isinstance(caught.value.lost[message], ReceiptError)


async def test_a_change_replaces_the_receipt(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive(invisible_seconds=5)
        before, deadline = message.receipt, message.deadline
        await consumer.change_invisible(message, 60)
        assert message.receipt != before
        assert message.deadline > deadline + 50
        await consumer.ack(message)

    assert invisible(cluster) == 0


async def test_requests_about_one_message_never_overlap(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        held = cluster.faults.hold("change_invisible", times=None)
        first = asyncio.ensure_future(consumer.change_invisible(message, 30))
        await held.wait(1)
        second = asyncio.ensure_future(consumer.change_invisible(message, 30))
        done = asyncio.ensure_future(consumer.ack(message))
        held.release()
        await first
        await held.wait(1)
        assert cluster.broker.requests_of(ACK) == []
        held.release()
        await second
        await done

    assert invisible(cluster) == 0


async def test_after_a_lost_change_nothing_is_changed_again(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        cluster.faults.drop("change_invisible", executed=False)
        shorten_next_timeout(consumer.client, CHANGE)
        with pytest.raises(TimeoutError):
            await consumer.change_invisible(message, 30)
        with pytest.raises(ReceiptError, match="lost"):
            await consumer.change_invisible(message, 30)
        with pytest.raises(AckError):
            await consumer.ack(message)

    assert len(cluster.broker.requests_of(CHANGE)) == 1
    assert len(cluster.broker.requests_of(ACK)) == 1


async def test_after_an_unreadable_answer_to_a_change_nothing_is_changed_again(
    cluster: FakeCluster,
) -> None:
    put(cluster, "1")
    cluster.faults.handle("change_invisible", Response(ext={"popTime": "soon"}))
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        for kind in (CodecError, ReceiptError):
            with pytest.raises(kind):
                await consumer.change_invisible(message, 30)


async def test_a_refused_change_can_be_repeated(cluster: FakeCluster) -> None:
    put(cluster, "1")
    cluster.faults.refuse("change_invisible")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        with pytest.raises(BrokerError):
            await consumer.change_invisible(message, 30)
        await consumer.change_invisible(message, 30)
        await consumer.ack(message)

    assert invisible(cluster) == 0


async def test_ack_that_waits_for_a_retry_does_not_undo_it(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        held = cluster.faults.hold("change_invisible", times=None)
        retrying = asyncio.ensure_future(consumer.retry(message, 1))
        await held.wait(1)
        acknowledging = asyncio.ensure_future(consumer.ack(message))
        await asyncio.sleep(0)
        held.release()
        await retrying
        with pytest.raises(AckError):
            await acknowledging

        assert bodies(await consumer.receive()) == ["1"]


@pytest.mark.parametrize("second_way", [False, True])
async def test_a_retried_message_is_redelivered(cluster: FakeCluster, *, second_way: bool) -> None:
    cluster.broker.pops.retry_v2 = second_way
    put(cluster, "1")
    async with popping(cluster) as consumer:
        for tries in range(4):
            [message] = await consumer.receive()
            assert (message.reconsume_times, message.topic) == (tries, TOPIC)
            await consumer.retry(message, 0.01)
        await consumer.ack(await consumer.receive())

    assert invisible(cluster) == 0


async def test_a_suspended_message_has_the_same_number_of_retries(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster, max_reconsume_times=1) as consumer:
        for suspend, before in ((True, 0), (False, 0), (True, 1), (True, 1)):
            [message] = await consumer.receive()
            assert (message.body, message.reconsume_times) == (b"1", before)
            await consumer.retry(message, 0.01, suspend=suspend)
        [message] = await consumer.receive()
        await consumer.change_invisible(message, 0.01, suspend=True)
        [message] = await consumer.receive()
        await consumer.ack(message)

    assert message.reconsume_times == 1
    assert invisible(cluster) == 0


async def test_the_last_change_decides_whether_a_message_is_suspended(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        await consumer.change_invisible(message, 30, suspend=True)
        await consumer.change_invisible(message, 0.01)
        [message] = await consumer.receive()
        await consumer.ack(message)

    assert message.reconsume_times == 1


async def test_the_delay_of_a_retry_grows(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster) as consumer:
        [message] = await consumer.receive()
        await consumer.retry(message)
        [change] = await cluster.broker.wait_for(CHANGE)
        assert change.ext_fields()["invisibleTime"] == "10000"
        with pytest.raises(ReceiptError, match="given back"):
            await consumer.retry(message)
        with pytest.raises(AckError):
            await consumer.ack(message)
