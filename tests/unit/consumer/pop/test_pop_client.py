"""PopClient: remembered brokers."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.pop.message import read_popped
from rocketmq_aio.consumer.pop.pop_client import PopClient, PopRequest
from rocketmq_aio.errors import BrokerError, NotConnectedError, RouteNotFoundError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import V5_0_0, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import to_ext_fields
from rocketmq_aio.protocol.receipt import parse_receipt
from rocketmq_aio.protocol.record import decode_messages
from rocketmq_aio.protocol.requests.pop import PopMessage, PopMessageResponse
from rocketmq_aio.protocol.subscription import subscription
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC
from tests.unit.consumer.parts import queue
from tests.unit.consumer.pop_env import popped
from tests.unit.stored import Stored


async def test_only_the_current_master_of_a_broker_is_remembered() -> None:
    requests: list[str] = []

    async def lose(address: str, *_: object, **_how: Any) -> None:  # noqa: ANN401 - those of `request`
        requests.append(address)
        raise NotConnectedError(address, "away")

    instance = SimpleNamespace(
        config=ClientConfig(),
        routes=SimpleNamespace(master=lambda _name: f"10.0.0.{len(requests)}:10911"),
        remoting=SimpleNamespace(request=lose, decode=None),
    )
    calls = PopClient(cast(MQClientInstance, instance), GROUP, start_from="earliest")
    for _ in range(5):
        with pytest.raises(NotConnectedError):
            await calls.pop(queue(-1), subscription(TOPIC, "*", 0), PopRequest(1, 60.0, 0.0), None)

    assert len(set(requests)) == 5
    assert [len(table) for table in vars(calls).values() if isinstance(table, dict)] == [1]


@pytest.mark.parametrize(("marker", "joint"), [("1", "_"), ("2", "+")])
async def test_a_retry_that_is_sent_as_it_is_stored_has_the_name_of_its_topic(
    marker: str, joint: str
) -> None:
    """As brokers from 5.1.4 do with some settings."""
    retry_topic = f"%RETRY%{GROUP}{joint}{TOPIC}".encode()
    stored = Stored(topic=retry_topic, queue_offset=9, reconsume_times=1)

    async def pop(*_: object, **_how: object) -> Command:
        response = PopMessageResponse(
            pop_time=1_700_000_000_000,
            invisible_time=60_000,
            revive_queue_id=2,
            rest_num=0,
            start_offset_info=f"{marker} 3 8",
            msg_offset_info=f"{marker} 3 9",
        )
        return Command(ResponseCode.SUCCESS, 0, ext=to_ext_fields(response), body=stored.to_bytes())

    instance = SimpleNamespace(
        config=ClientConfig(),
        routes=SimpleNamespace(master=lambda _name: "10.0.0.1:10911"),
        remoting=SimpleNamespace(request=pop, decode=decode_messages),
    )
    calls = PopClient(cast(MQClientInstance, instance), GROUP, start_from="earliest")

    ([message], fault) = await calls.pop(
        queue(-1), subscription(TOPIC, "*", 0), PopRequest(1, 60.0, 0.0), None
    )

    assert fault is None
    assert (message.topic, message.reconsume_times) == (TOPIC, 1)
    assert str(message.receipt) == f"8 1700000000000 60000 2 {marker} broker-a 3 9"


@pytest.mark.parametrize(("version", "topic"), [(V5_0_0, f"%RETRY%{GROUP}_{TOPIC}"), (475, TOPIC)])
async def test_brokers_of_5_0_get_the_stored_topic_of_a_dead_letter(
    version: int, topic: str
) -> None:
    sent: list[Any] = []

    async def note(_address: str, header: object) -> None:
        sent.append(header)

    async def no_route(topic: str) -> NoReturn:
        raise RouteNotFoundError(topic, "none")

    address = "10.0.0.1:10911"
    instance = SimpleNamespace(
        config=ClientConfig(),
        heartbeats=SimpleNamespace(broker_versions={address: version}),
        routes=SimpleNamespace(master=lambda _name: address, get=no_route),
        remoting=SimpleNamespace(request_checked=note, decode=None),
    )
    calls = PopClient(cast(MQClientInstance, instance), GROUP, start_from="earliest")
    message = popped(9)
    message.receipt = parse_receipt("5 1700000000000 60000 2 1 broker-a 0 9")
    message.head = bytes(88)

    await calls.send_to_dlq(message)

    assert [each.origin_topic for each in sent] == [topic]


def test_the_only_queue_of_a_light_topic_is_number_0_whatever_queue_stores_a_message() -> None:
    light = MessageQueue("%LMQ%jobs", "broker-a", -1)
    pairs = b"INNER_MULTI_DISPATCH\x01%LMQ%jobs\x02INNER_MULTI_QUEUE_OFFSET\x015\x02"
    decoded = decode_messages(Stored(queue_offset=7, properties=pairs).to_bytes(), light)
    response = PopMessageResponse(
        pop_time=1_700_000_000_000,
        invisible_time=60_000,
        revive_queue_id=2,
        rest_num=0,
        start_offset_info="0 0 5",
        msg_offset_info="0 0 5",
    )
    ([message], fault) = read_popped(decoded, response, "billing", light, 0.0, 0.0)

    assert fault is None
    assert (message.queue, message.queue_offset) == (MessageQueue("%LMQ%jobs", "broker-a", 0), 5)
    assert str(message.receipt) == "5 1700000000000 60000 2 0 broker-a 0 5"


async def test_a_pop_that_is_too_old_is_followed_by_one_that_does_not_wait() -> None:
    """So the time of a broker whose clock was set ahead is measured again."""
    times = iter([1_700_000_000_000, 0, 1_700_003_600_000, 1_700_003_600_000])
    waits: list[int] = []

    async def find_nothing(_address: str, header: PopMessage, **_how: Any) -> Command:  # noqa: ANN401 - those of `request`
        waits.append(header.poll_time)
        response = PopMessageResponse(
            pop_time=next(times), invisible_time=0, revive_queue_id=0, rest_num=0
        )
        return Command(ResponseCode.POLLING_TIMEOUT, 0, ext=to_ext_fields(response))

    instance = SimpleNamespace(
        config=ClientConfig(),
        routes=SimpleNamespace(master=lambda _name: "10.0.0.1:10911"),
        remoting=SimpleNamespace(request=find_nothing, decode=None),
    )
    calls = PopClient(cast(MQClientInstance, instance), GROUP, start_from="earliest")
    for _ in range(4):
        await calls.pop(queue(-1), subscription(TOPIC, "*", 0), PopRequest(1, 60.0, 15.0), None)

    assert waits == [0, 15_000, 0, 15_000]


@pytest.mark.parametrize(
    ("rejection", "is_kept"),
    [(ResponseCode.SYSTEM_ERROR, False), (ResponseCode.POLLING_FULL, True)],
)
async def test_the_time_of_a_broker_that_rejects_a_pop_is_measured_again(
    rejection: ResponseCode, is_kept: bool
) -> None:
    """It may be the reason; a broker that holds too many requests has accepted it."""
    times: list[int] = []

    async def reject(_address: str, header: PopMessage, **_how: Any) -> Command:  # noqa: ANN401 - those of `request`
        times.append(header.born_time)
        if header.born_time:
            return Command(rejection, 0)
        response = PopMessageResponse(
            pop_time=10**30, invisible_time=0, revive_queue_id=0, rest_num=0
        )
        return Command(ResponseCode.PULL_NOT_FOUND, 0, ext=to_ext_fields(response))

    instance = SimpleNamespace(
        config=ClientConfig(),
        name_servers=SimpleNamespace(are_proxies=False),
        routes=SimpleNamespace(master=lambda _name: "10.0.0.1:10911"),
        remoting=SimpleNamespace(request=reject, decode=None),
    )
    calls = PopClient(cast(MQClientInstance, instance), GROUP, start_from="earliest")
    for _ in range(3):
        with suppress(BrokerError):
            await calls.pop(queue(-1), subscription(TOPIC, "*", 0), PopRequest(1, 60.0, 15.0), None)

    assert times[0] == 0
    assert bool(times[2]) is is_kept
