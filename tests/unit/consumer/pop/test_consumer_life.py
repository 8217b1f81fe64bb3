"""PopConsumer on a scripted cluster: life cycle, topics, brokers, order, dead letters."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.common.events import MessageDeadLettered, PullFailed
from rocketmq_aio.consumer.pop import message as message_module
from rocketmq_aio.consumer.pop.consumer import PopConsumer
from rocketmq_aio.consumer.pop.message import AckState
from rocketmq_aio.embedded.notifier import WAIT_SECONDS
from rocketmq_aio.errors import (
    BrokerError,
    ClosedError,
    NotRunningError,
    NotSupportedError,
    PermissionDeniedError,
    ReceiptError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.fakes.static_topics import share_out
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, numbers, put
from tests.unit.consumer.parts import break_down
from tests.unit.consumer.pop_env import RETRY_TOPIC, bodies, invisible, popper_of, popping
from tests.unit.remoting.short_timeout import shorten_next_timeout
from tests.unit.remoting.until import until

POP = RequestCode.POP_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME


async def test_before_the_start_and_after_the_end_nothing_is_received(cluster: FakeCluster) -> None:
    consumer = popper_of(cluster)
    with pytest.raises(NotRunningError):
        await consumer.receive()
    async with consumer:
        pass
    with pytest.raises(ClosedError):
        await consumer.receive()
    with pytest.raises(ClosedError):
        await consumer.subscribe(TOPIC)
    assert [message async for message in consumer] == []


async def test_failed_consumer_leaves_its_group_and_pops_nothing_more(cluster: FakeCluster) -> None:
    async with popping(cluster) as consumer:
        waiting = asyncio.ensure_future(consumer.receive(wait_seconds=60))
        await cluster.broker.wait_for(POP, 2)
        break_down(consumer)
        with pytest.raises(NotRunningError, match="a bug"):
            await waiting
        await until(lambda: GROUP not in cluster.broker.members.groups, "the group to be left")
        put(cluster, "a")

        assert all(loop.stopped for loop in consumer._engine.loops.values())


async def test_closing_wakes_waiting_callers(cluster: FakeCluster) -> None:
    async with popping(cluster) as consumer:
        waiting = asyncio.ensure_future(consumer.receive(wait_seconds=60))
        await cluster.broker.wait_for(POP, 2)
    with pytest.raises(ClosedError):
        await waiting


async def test_closing_gives_back_messages_in_the_buffer(cluster: FakeCluster) -> None:
    put(cluster, *numbers(4))
    async with popping(cluster) as consumer:
        async for message in consumer:
            await consumer.ack(message)
            break

    changes = [each.ext_fields() for each in cluster.broker.requests_of(CHANGE)]
    assert [(each["invisibleTime"], each["suspend"]) for each in changes] == [("1000", "true")] * 3
    assert cluster.broker.requests_of(RequestCode.BATCH_ACK_MESSAGE) == []


async def test_messages_popped_after_the_close_are_given_back(cluster: FakeCluster) -> None:
    async with MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
        async with popping(cluster, client=client) as consumer:
            waiting = asyncio.ensure_future(consumer.receive(wait_seconds=5))
            await cluster.broker.wait_for(POP, 2)
        with pytest.raises(ClosedError):
            await waiting
        put(cluster, "late")

        [change] = await cluster.broker.wait_for(CHANGE)
        assert change.ext_fields()["invisibleTime"] == "1000"


async def test_the_group_is_registered_and_leaves(cluster: FakeCluster) -> None:
    async with popping(cluster, "a || b"):
        [group] = cluster.broker.members.groups.values()
        assert group.subscriptions[TOPIC].sub_string == "a || b"
    await until(lambda: not cluster.broker.members.groups)


async def test_the_running_info_has_the_subscriptions(cluster: FakeCluster) -> None:
    async with popping(cluster, orderly=True) as consumer:
        info = consumer._engine.running_info()

    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert [each.topic for each in info.subscription_set] == [TOPIC]
    assert b'"broker-a","queueId":-1' in bytes(info.mq_pop_table)


async def test_brokers_before_5_are_refused_at_once() -> None:
    async with FakeCluster(version="4.9.7", topics={TOPIC: 4}) as cluster:
        consumer = popper_of(cluster)
        await consumer.subscribe(TOPIC)
        with pytest.raises(NotSupportedError, match="popping needs a broker"):
            await consumer.start()
        async with popper_of(cluster) as late:
            with pytest.raises(NotSupportedError):
                await late.subscribe(TOPIC)
            assert await late.receive(wait_seconds=0) == []


async def test_a_proxy_is_refused_at_once(cluster: FakeCluster) -> None:
    cluster.name_server.is_proxy = True
    consumer = popper_of(cluster)
    await consumer.subscribe(TOPIC)
    with pytest.raises(NotSupportedError, match="a proxy does not serve pops"):
        await consumer.start()


async def test_a_proxy_that_is_found_later_is_named_as_the_cause(cluster: FakeCluster) -> None:
    """A proxy reads a pop as a pull, whose header lacks a field."""
    cluster.faults.refuse("pop", 1, times=None)
    async with popping(cluster) as consumer:
        cluster.name_server.is_proxy = True
        await consumer.client.routes.fetch(TOPIC)
        with pytest.raises(NotSupportedError, match="a proxy does not serve pops"):
            await consumer.receive(1)


async def test_an_error_of_every_broker_is_raised_each_time(cluster: FakeCluster) -> None:
    cluster.faults.refuse("pop", 16, "no", times=2)
    put(cluster, "1")
    async with popping(cluster) as consumer:
        for _ in range(2):
            with pytest.raises(PermissionDeniedError):
                await consumer.receive(wait_seconds=5)
        assert bodies(await consumer.receive(wait_seconds=5)) == ["1"]


async def test_all_brokers_of_a_static_topic_are_popped_from() -> None:
    """A broker that owns no logical queue now may still have messages."""
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        share_out(cluster, TOPIC, ["broker-a", "broker-a"])
        put(cluster, "1")
        put(cluster, "2", broker=1)
        async with popping(cluster) as consumer:
            received = [await consumer.receive(wait_seconds=5) for _ in range(2)]

    assert sorted(text for messages in received for text in bodies(messages)) == ["1", "2"]


async def test_an_error_of_one_broker_does_not_stop_the_others() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        cluster.faults.refuse("pop", 16, "no", times=None, broker="broker-a")
        async with popping(cluster) as consumer:
            events = consumer.events()
            put(cluster, "1", broker=1)
            assert bodies(await consumer.receive()) == ["1"]
            waiting = asyncio.ensure_future(consumer.receive())
            event = await anext(events)
            put(cluster, "2", broker=1)
            assert bodies(await waiting) == ["2"]

    assert isinstance(event, PullFailed)
    assert event.queue == MessageQueue(TOPIC, "broker-a", -1)


async def test_a_silent_broker_does_not_stop_the_others() -> None:
    async with FakeCluster(brokers=2, topics={TOPIC: 1}) as cluster:
        cluster.faults.drop("pop", executed=False, times=None, broker="broker-a")
        put(cluster, "1", broker=1)
        async with popping(cluster) as consumer:
            assert bodies(await consumer.receive()) == ["1"]


@pytest.mark.parametrize("code", [2, 209, 215])
async def test_a_pop_from_a_busy_broker_is_retried(cluster: FakeCluster, code: int) -> None:
    cluster.faults.refuse("pop", code)
    put(cluster, "1")
    async with popping(cluster) as consumer:
        assert bodies(await consumer.receive()) == ["1"]


async def test_a_topic_that_is_created_later_is_popped(cluster: FakeCluster) -> None:
    async with popper_of(cluster) as consumer:
        await consumer.subscribe("later")
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0)
        cluster.create_topic("later", 1)
        put(cluster, "1", topic="later")

        assert bodies(await waiting) == ["1"]


async def test_unsubscribing_gives_back_messages_in_the_buffer(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    async with popping(cluster) as consumer:
        async for message in consumer:
            await consumer.unsubscribe(TOPIC)
            await consumer.ack(message)
            break
        assert await consumer.receive(wait_seconds=0) == []

        assert len(cluster.broker.requests_of(CHANGE)) == 2
        await consumer.subscribe(TOPIC)
        put(cluster, "new")
        assert "new" in bodies(await consumer.receive())


async def test_cancelled_subscribe_leaves_a_later_unsubscribe_alone(cluster: FakeCluster) -> None:
    async with popper_of(cluster) as consumer:
        hold = cluster.faults.hold("heartbeat", times=None)
        subscribing = asyncio.create_task(consumer.subscribe(TOPIC))
        await until(lambda: consumer._engine.subscriptions, "the subscription")
        unsubscribing = asyncio.create_task(consumer.unsubscribe(TOPIC))
        await until(lambda: not consumer._engine.subscriptions, "the end of the subscription")
        subscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscribing
        hold.remove()
        hold.release()
        await unsubscribing

        assert consumer._engine.subscriptions == {}


async def test_messages_selected_by_a_former_expression_are_given_back(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(3), tag="a")
    async with popping(cluster, "a") as consumer:
        async for _ in consumer:
            break  # the others stay in the buffer
        await consumer.subscribe(TOPIC, "b")

        assert await consumer.receive(wait_seconds=0) == []
        await until(lambda: len(cluster.broker.requests_of(CHANGE)) == 2)


async def test_a_cancelled_subscription_is_withdrawn_from_the_brokers(cluster: FakeCluster) -> None:
    cluster.create_topic("invoices", 1)
    async with popping(cluster, "a") as consumer:
        with cluster.faults.hold("heartbeat", times=None) as heartbeats:
            subscribing = asyncio.create_task(consumer.subscribe("invoices"))
            await heartbeats.wait()
            subscribing.cancel()
            await asyncio.wait([subscribing])
            heartbeats.release()
        members = cluster.broker.members
        await until(lambda: set(members.groups[GROUP].subscriptions) == {TOPIC})


async def test_nothing_is_received_of_a_withdrawn_subscription_whose_topic_was_found_meanwhile(
    cluster: FakeCluster,
) -> None:
    async with popping(cluster) as consumer:
        with cluster.faults.hold("heartbeat", times=None) as heartbeats:
            subscribing = asyncio.create_task(consumer.subscribe("invoices"))
            await heartbeats.wait()
            cluster.create_topic("invoices", 1)
            put(cluster, *numbers(3), topic="invoices")
            await consumer.client.routes.fetch("invoices")
            assert (await anext(aiter(consumer))).topic == "invoices"
            subscribing.cancel()
            await asyncio.wait([subscribing])
            heartbeats.release()

        assert await consumer.receive(wait_seconds=0) == []
        assert {source.topic for source in consumer._engine.loops} == {TOPIC}


async def test_the_later_of_two_overlapping_subscriptions_wins(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(cluster) as consumer:
        engine = consumer._engine
        prepare, may_go_on = engine._prepare, asyncio.Event()

        async def prepare_late(_: object) -> None:
            monkeypatch.setattr(engine, "_prepare", prepare)
            await may_go_on.wait()

        monkeypatch.setattr(engine, "_prepare", prepare_late)
        calls = [asyncio.create_task(consumer.subscribe(TOPIC, each)) for each in ("a", "b")]
        await asyncio.wait(calls, timeout=0.05)
        may_go_on.set()
        await asyncio.gather(*calls)

        assert engine.subscriptions[TOPIC].expression == "b"
        assert cluster.broker.members.groups[GROUP].subscriptions[TOPIC].sub_string == "b"


async def test_messages_popped_while_a_subscription_fails_are_redelivered(
    cluster: FakeCluster,
) -> None:
    async with popping(cluster, "a") as consumer:
        receiving = asyncio.create_task(consumer.receive())
        await cluster.broker.wait_for(RequestCode.POP_MESSAGE, 2)  # that waits for messages
        held = cluster.faults.hold("heartbeat", times=None)
        subscribing = asyncio.create_task(consumer.subscribe(TOPIC, "b"))
        await until(lambda: consumer._engine.subscriptions[TOPIC].expression == "b")
        put(cluster, "1", tag="a")
        await until(lambda: cluster.broker.requests_of(CHANGE), "the message is given back")
        subscribing.cancel()
        await asyncio.wait([subscribing])
        held.remove()
        taken = await receiving or await consumer.receive()

        assert bodies(taken) == ["1"]


async def test_an_orderly_queue_delivers_nothing_while_messages_are_in_flight(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(4))
    async with popping(cluster, orderly=True) as consumer:
        first = await consumer.receive(2)
        assert await consumer.receive(wait_seconds=0) == []
        await consumer.ack(first)
        second = await consumer.receive(2)
        await consumer.ack(second)

    assert [each.body for each in (*first, *second)] == [b"0", b"1", b"2", b"3"]
    requests = [each.ext_fields() for each in cluster.broker.requests_of(POP)]
    assert {each["order"] for each in requests} == {"true"}
    assert len({each["attemptId"] for each in requests}) == len(requests)


async def test_after_a_lost_answer_the_same_attempt_gets_the_same_messages(
    cluster: FakeCluster,
) -> None:
    put(cluster, "1")

    def lose(command: object, connection: object) -> None:
        cluster.broker.process(command, connection)  # type: ignore[arg-type]

    cluster.faults.handle("pop", lose)
    async with popping(cluster, orderly=True) as consumer:
        shorten_next_timeout(consumer.client, POP)
        [message] = await consumer.receive()
        assert (message.body, message.reconsume_times) == (b"1", 0)
        await consumer.ack(message)

    first, second = (each.ext_fields() for each in cluster.broker.requests_of(POP)[:2])
    assert first["attemptId"] == second["attemptId"]


async def test_tasks_never_process_one_orderly_queue_concurrently(cluster: FakeCluster) -> None:
    for queue_id in range(2):
        put(cluster, *numbers(10), queue_id=queue_id)
    seen: list[tuple[int, bytes]] = []
    working: set[int] = set()

    async def work(consumer: PopConsumer) -> None:
        async for message in consumer:
            number = message.queue.queue_id
            assert number not in working
            working.add(number)
            await asyncio.sleep(0)
            seen.append((number, message.body))
            working.remove(number)

    async with popping(cluster, orderly=True) as consumer:
        tasks = [asyncio.ensure_future(work(consumer)) for _ in range(3)]
        await until(lambda: len(seen) == 20)
    await asyncio.gather(*tasks)

    for queue_id in range(2):
        texts = [body.decode() for number, body in seen if number == queue_id]
        assert texts == numbers(10)


async def test_an_orderly_retry_gives_back_the_messages_behind(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    async with popping(cluster, orderly=True) as consumer:
        seen: list[tuple[bytes, int]] = []
        async for message in consumer:
            seen.append((message.body, message.reconsume_times))
            if len(seen) == 1:
                await consumer.retry(message, 0.05)
            if len(seen) == 4:
                await consumer.ack(message)
                break

    assert [body for body, _ in seen] == [b"0", b"0", b"1", b"2"]
    assert [tries for _, tries in seen[:2]] == [0, 1]


async def test_messages_behind_an_orderly_retry_are_invisible_no_longer_than_it(
    cluster: FakeCluster,
) -> None:
    """Brokers wake a waiting pop when the first message of the queue is visible, and only then."""
    put(cluster, *numbers(3))
    async with popping(cluster, orderly=True, batch_size=3) as consumer:
        async for message in consumer:
            await consumer.retry(message, 0.05)
            break
        times = [each.ext_fields()["invisibleTime"] for each in cluster.broker.requests_of(CHANGE)]

    assert times == ["50", "1", "1"]


async def test_expired_message_comes_before_those_behind_it_in_order(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    async with popping(cluster, orderly=True) as consumer:
        first = await anext(aiter(consumer))  # the others are cached
        await consumer.change_invisible(first, 0.05)
        again = await consumer.receive()

    assert [each.body for each in again] == [b"0", b"1", b"2"]


async def test_ack_lets_a_waiting_call_have_the_next_message_in_order(cluster: FakeCluster) -> None:
    put(cluster, *numbers(2))
    async with popping(cluster, orderly=True) as consumer:
        first = await anext(aiter(consumer))
        requests = len(cluster.broker.requests_of(POP))
        waiting = asyncio.ensure_future(consumer.receive(wait_seconds=600))
        await cluster.broker.wait_for(POP, requests + 2)  # the second one waits at the broker
        await consumer.ack(first)
        async with asyncio.timeout(WAIT_SECONDS):
            [second] = await waiting

    assert second.body == b"1"


async def test_message_behind_one_that_used_up_its_retries_is_delivered(
    cluster: FakeCluster,
) -> None:
    put(cluster, *numbers(2))
    async with popping(cluster, orderly=True, max_reconsume_times=1) as consumer:
        seen: list[bytes] = []
        async for message in consumer:
            seen.append(message.body)
            if message.body == b"1":
                await consumer.ack(message)
                break
            await consumer.retry(message, 0.01)

    assert seen == [b"0", b"0", b"1"]
    assert [each.body for each in cluster.broker.messages(f"%DLQ%{GROUP}")] == [b"0"]


async def test_only_the_first_message_of_a_queue_is_overdue_in_order(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    async with popping(cluster, orderly=True, max_reconsume_times=0) as consumer:
        await consumer.receive(3, invisible_seconds=0.05)
        [second, third] = await consumer.receive()
        await consumer.ack([second, third])

    assert [second.body, third.body] == [b"1", b"2"]
    assert [each.body for each in cluster.broker.messages(f"%DLQ%{GROUP}")] == [b"0"]


async def test_after_the_last_retry_a_message_is_a_dead_letter(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster, max_reconsume_times=1) as consumer:
        events = consumer.events()
        for _ in range(2):
            [message] = await consumer.receive()
            await consumer.retry(message, 0.01)
        event = await anext(events)

    assert isinstance(event, MessageDeadLettered)
    assert (event.reconsume_times, invisible(cluster)) == (1, 0)
    assert [each.body for each in cluster.broker.messages(f"%DLQ%{GROUP}")] == [b"1"]


async def test_a_dead_letter_leaves_the_names_of_light_queues_out(cluster: FakeCluster) -> None:
    properties = encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a", "own": "x"})
    cluster.broker.put(TOPIC, b"1", properties=properties)
    async with popping(cluster, max_reconsume_times=0) as consumer:
        [message] = await consumer.receive()
        await consumer.retry(message)

    [letter] = cluster.broker.messages(f"%DLQ%{GROUP}")
    assert invisible(cluster) == 0
    assert letter.properties["own"] == "x"
    assert "INNER_MULTI_DISPATCH" not in letter.properties


async def test_a_message_of_a_group_without_retry_queues_is_not_acknowledged_as_a_dead_letter(
    cluster: FakeCluster,
) -> None:
    """Brokers confirm the dead letter, and drop it."""
    put(cluster, "1")
    async with popping(cluster, max_reconsume_times=0) as consumer:
        retries = cluster.broker.topics[f"%RETRY%{GROUP}"]
        retries.read_queues = retries.write_queues = 0
        [message] = await consumer.receive()
        with pytest.raises(RouteNotFoundError, match="retryQueueNums"):
            await consumer.retry(message)

        assert message.ack_state is AckState.HELD
    assert f"%DLQ%{GROUP}" not in cluster.broker.topics


async def test_a_message_that_only_expires_becomes_a_dead_letter_too(cluster: FakeCluster) -> None:
    put(cluster, "1")
    async with popping(cluster, max_reconsume_times=0, invisible_seconds=0.1) as consumer:
        events = consumer.events()
        assert bodies(await consumer.receive()) == ["1"]
        waiting = asyncio.ensure_future(consumer.receive())
        event = await anext(events)
        put(cluster, "2")
        assert bodies(await waiting) == ["2"]

    assert isinstance(event, MessageDeadLettered)


async def test_a_message_that_arrives_expired_is_not_made_a_dead_letter(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy could not be acknowledged, so each delivery would make another one."""
    put(cluster, "1")
    async with popping(cluster, max_reconsume_times=0, invisible_seconds=0.1) as consumer:
        await consumer.receive()
        monkeypatch.setattr(message_module, "MILLISECOND", 3600.0)
        waiting = asyncio.ensure_future(consumer.receive())
        await until(lambda: RETRY_TOPIC in cluster.broker.topics)
        await until(lambda: len(cluster.broker.messages(RETRY_TOPIC)) > 2)
        waiting.cancel()
        await asyncio.wait([waiting])

    assert f"%DLQ%{GROUP}" not in cluster.broker.topics


async def test_a_message_that_expired_before_its_last_retry_is_one_dead_letter(
    cluster: FakeCluster,
) -> None:
    """The broker redelivers it in any case, and its retries are used up then, too."""
    put(cluster, "1")
    async with popping(cluster, max_reconsume_times=0) as consumer:
        events = consumer.events()
        [message] = await consumer.receive()
        message.expires_at = 0.0
        with pytest.raises(ReceiptError, match="invisible time was over"):
            await consumer.retry(message)
        cluster.clock.advance(60)
        waiting = asyncio.ensure_future(consumer.receive())
        event = await anext(events)
        waiting.cancel()
        await asyncio.wait([waiting])

    assert isinstance(event, MessageDeadLettered)
    assert [each.body for each in cluster.broker.messages(f"%DLQ%{GROUP}")] == [b"1"]


async def test_a_message_that_cannot_be_sent_to_the_dlq_is_not_acknowledged(
    cluster: FakeCluster,
) -> None:
    put(cluster, "1")
    cluster.faults.refuse("send_back", 1, "no")
    async with popping(cluster, max_reconsume_times=0) as consumer:
        [message] = await consumer.receive()
        with pytest.raises(BrokerError):
            await consumer.retry(message)
        assert invisible(cluster) == 1
        await consumer.retry(message)

    assert invisible(cluster) == 0


async def test_closing_a_shared_client_ends_loops(cluster: FakeCluster) -> None:
    async with MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
        consumer = popper_of(cluster, client=client, wait_seconds=3600)
        await consumer.subscribe(TOPIC)
        await consumer.start()
        reading = asyncio.ensure_future(anext(aiter(consumer)))
        await cluster.broker.wait_for(RequestCode.POP_MESSAGE)
    with pytest.raises(NotRunningError, match="was closed"):
        await asyncio.wait_for(reading, 15)
    await consumer.close()
