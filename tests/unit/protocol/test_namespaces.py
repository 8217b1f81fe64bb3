"""Namespaces: names in requests, responses and messages are converted both ways."""

from __future__ import annotations

import msgspec
import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import queue_table, read_reset_offsets
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.namespaces import Namespace, names_inside, namespace_fields, namespace_of
from rocketmq_aio.protocol.record import decode_message
from tests.unit.stored import Stored

NAMESPACE = Namespace("shop")

PAIRS = [
    ("orders", "shop%orders"),
    ("%RETRY%billing", "%RETRY%shop%billing"),
    ("%DLQ%billing", "%DLQ%shop%billing"),
]
SHARED = [
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRACE_TOPIC",
    "rmq_sys_wheel_timer",
    "%LMQ%jobs",
    "",
]


@pytest.mark.parametrize(("name", "stored"), PAIRS)
def test_outer_adds_the_namespace_and_inner_removes_it(name: str, stored: str) -> None:
    assert NAMESPACE.outer(name) == stored
    assert NAMESPACE.outer(stored) == stored  # it is inside already
    assert NAMESPACE.inner(stored) == name
    assert NAMESPACE.inner(name) == name


@pytest.mark.parametrize("name", [*SHARED, "CLIENT_INNER_PRODUCER", "CID_RMQ_SYS_TRANS"])
def test_system_names_are_not_converted(name: str) -> None:
    assert NAMESPACE.outer(name) == name


def test_names_of_other_namespaces_are_not_converted() -> None:
    assert NAMESPACE.inner("market%orders") == "market%orders"
    assert NAMESPACE.inner("shopping%orders") == "shopping%orders"


def test_only_name_fields_of_a_request_are_converted() -> None:
    ext = {"consumerGroup": "billing", "topic": "orders", "subscription": "orders", "queueId": "0"}

    body = NAMESPACE.request(RequestCode.PULL_MESSAGE, ext, b'{"topic":"orders"}')

    assert ext == {
        "consumerGroup": "shop%billing",
        "topic": "shop%orders",
        "subscription": "orders",
        "queueId": "0",
    }
    assert body == b'{"topic":"orders"}'  # that of a message, say


def test_a_send_carries_the_instance_id_property() -> None:
    ext = {"a": "shop-producer", "b": "orders", "c": "TBW102", "i": "TAGS\x01orders\x02"}

    NAMESPACE.request(RequestCode.SEND_MESSAGE_V2, ext, b"")

    assert ext == {
        "a": "shop%shop-producer",
        "b": "shop%orders",
        "c": "TBW102",
        "i": "TAGS\x01orders\x02INSTANCE_ID\x01shop\x02",
    }


def test_shared_topics_are_not_converted() -> None:
    namespace = Namespace("shop")
    assert namespace.outer("DefaultCluster_REPLY_TOPIC") == "shop%DefaultCluster_REPLY_TOPIC"

    namespace.share("DefaultCluster_REPLY_TOPIC")
    ext = {"a": "replies", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", "i": ""}
    namespace.request(RequestCode.SEND_REPLY_MESSAGE_V2, ext, b"")

    assert (ext["a"], ext["b"]) == ("shop%replies", "DefaultCluster_REPLY_TOPIC")
    assert ext["i"] == "INSTANCE_ID\x01shop\x02"


def test_name_properties_of_a_send_are_converted() -> None:
    text = "MY-PGROUP\x01a\x02PGROUP\x01tx\x02RETRY_TOPIC\x01orders\x02INSTANCE_ID\x01shop\x02"
    ext = {"a": "CLIENT_INNER_PRODUCER", "b": "%RETRY%billing", "c": "TBW102", "i": text}

    NAMESPACE.request(RequestCode.SEND_MESSAGE_V2, ext, b"")

    assert ext["a"] == "CLIENT_INNER_PRODUCER"
    assert ext["i"] == text.replace("\x01tx", "\x01shop%tx").replace("\x01ord", "\x01shop%ord")


@pytest.mark.parametrize(
    ("topic", "stored"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%billing_orders", "%RETRY%shop%billing_shop%orders"),
        ("%RETRY%billing+orders", "%RETRY%shop%billing+shop%orders"),
    ],
)
@pytest.mark.parametrize(
    ("code", "group_field", "topic_field"),
    [
        (RequestCode.ACK_MESSAGE, "consumerGroup", "topic"),
        (RequestCode.CONSUMER_SEND_MSG_BACK, "group", "originTopic"),
    ],
    ids=["ack", "send-back"],
)
def test_both_names_in_a_retry_topic_are_converted(
    topic: str, stored: str, code: RequestCode, group_field: str, topic_field: str
) -> None:
    ext = {group_field: "billing", topic_field: topic}

    NAMESPACE.request(code, ext, b"")

    assert ext == {group_field: "shop%billing", topic_field: stored}


def test_names_in_a_request_body_are_converted() -> None:
    subscription = {"topic": "orders", "subString": 'a = \'"topic":"x"\' or "group"'}
    consumer = {"groupName": "billing", "subscriptionDataSet": [subscription]}
    body = msgspec.json.encode({"clientID": "topic", "consumerDataSet": [consumer]})

    changed = NAMESPACE.request(RequestCode.HEART_BEAT, {}, body)

    subscription["topic"] = "shop%orders"
    consumer["groupName"] = "shop%billing"
    assert msgspec.json.decode(changed) == {"clientID": "topic", "consumerDataSet": [consumer]}


def test_names_in_a_response_body_are_converted() -> None:
    body = b'{"subscriptionTable":{"shop%orders":{"topic":"shop%orders","sub":"a shop%orders"}}}'
    answer = Command(0, 1, body=body)
    other = Command(0, 1, body=body)

    NAMESPACE.response(RequestCode.GET_CONSUMER_CONNECTION_LIST, answer)
    NAMESPACE.response(RequestCode.PULL_MESSAGE, other)

    assert answer.body == body.replace(b'"shop%', b'"')
    assert other.body == body


def test_names_in_a_broker_request_are_converted() -> None:
    # Objects as keys, as brokers write them.
    body = b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"shop%orders"}:5}}'
    ext: dict[str, str] = {"group": "shop%billing", "topic": "shop%orders", "isForce": "true"}
    command = Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, 1, ext=ext, body=body)

    NAMESPACE.broker_request(command)

    assert command.ext_fields() == {"group": "billing", "topic": "orders", "isForce": "true"}
    assert read_reset_offsets(command.body) == {MessageQueue("orders", "a", 0): 5}


def test_topics_that_are_keys_of_a_running_info_are_converted() -> None:
    queues = queue_table({MessageQueue("orders", "broker-a", 0): 5})
    body = b'{"statusTable":{"orders":{"pullTPS":1.5}},"mqTable":' + queues + b"}"

    changed = NAMESPACE.outer_json(RequestCode.GET_CONSUMER_RUNNING_INFO, body)

    assert changed == body.replace(b'"orders"', b'"shop%orders"')


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"a":{{"x":1}:2}}'])
def test_an_unreadable_body_is_left_to_its_reader(body: bytes) -> None:
    answer = Command(0, 1, body=body)

    NAMESPACE.response(RequestCode.GET_CONSUME_STATS, answer)

    assert answer.body == body


def test_properties_that_are_not_utf_8_are_kept() -> None:
    properties = b"PGROUP\x01shop%billing\x02MINE\x01\xff\x02"
    message = decode_message(Stored(topic=b"shop%orders", properties=properties).to_bytes(), "a")

    NAMESPACE.received(message)

    assert message.raw_properties == properties.replace(b"shop%", b"")


@pytest.mark.parametrize(
    ("namespace", "names"), [(None, {"orders", "shop%orders"}), (NAMESPACE, {"orders"})]
)
def test_names_inside_a_namespace(namespace: Namespace | None, names: set[str]) -> None:
    assert names_inside(namespace, ["orders", "shop%orders"]) == names


def test_names_in_received_messages_are_converted() -> None:
    stored = Stored(
        topic=b"%RETRY%shop%billing",
        properties=b"RETRY_TOPIC\x01shop%orders\x02TAGS\x01shop%new\x02",
    ).to_bytes()
    queue = MessageQueue("%RETRY%billing", "broker-a", 3)

    (message,), fault = NAMESPACE.decode(stored, queue)
    alone = decode_message(stored, "broker-a")
    NAMESPACE.received(alone)

    assert fault is None
    for each in (message, alone):
        assert (each.topic, each.queue) == ("%RETRY%billing", queue)
        assert each.property("RETRY_TOPIC") == "orders"
        assert each.tags == "shop%new"


def test_messages_of_other_namespaces_are_rejected() -> None:
    stored = Stored(topic=b"market%orders").to_bytes()

    messages, fault = NAMESPACE.decode(stored, MessageQueue("orders", "broker-a", 0))

    assert messages == []
    assert "another topic" in str(fault)


def test_namespace_of_a_config() -> None:
    first = namespace_of(ClientConfig(namespace="shop"))
    reported = namespace_of(ClientConfig(namesrv="http://MQ_INST_123_abc.mq.example.com:8080"))
    second = ClientConfig(namespace="shop", namespace_version=2)

    assert first is not None
    assert first.name == "shop"
    assert reported is not None
    assert reported.name == "MQ_INST_123_abc"
    assert namespace_of(ClientConfig(namesrv="127.0.0.1:9876")) is None
    assert namespace_of(second) is None
    assert namespace_fields(second) == {"nsd": "true", "ns": "shop"}
    assert namespace_fields(ClientConfig(namespace="shop")) == {}
    assert namespace_fields(ClientConfig()) == {}


@pytest.mark.parametrize(
    ("namesrv", "name"),
    [
        (" MQ_INST_123_abc.localhost:80", "MQ_INST_123_abc"),
        (" http://MQ_INST_123_abc.localhost:80 ", "MQ_INST_123_abc"),
        ("MQ_INST_\u0661_abc.localhost:80", None),  # an Arabic digit: no name of a topic has them
    ],
)
def test_an_endpoint_implies_a_namespace_of_ascii(namesrv: str, name: str | None) -> None:
    found = namespace_of(ClientConfig(namesrv=namesrv))

    assert (None if found is None else found.name) == name
