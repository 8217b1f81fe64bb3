"""Typed bodies: decoded from both dialects, encoded as in Java, invalid ones rejected."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol import bodies
from rocketmq_aio.protocol.bodies import (
    MAX_ADDRESSES,
    MAX_BROKERS,
    MAX_QUEUES,
    BrokerData,
    ConsumerData,
    ConsumerList,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueueBody,
    ProcessQueueInfo,
    ProducerData,
    QueueData,
    SubscriptionData,
    queue_table,
    read_reset_offsets,
    read_route,
)
from rocketmq_aio.protocol.fastjson import read_body, to_standard

Names = st.text(max_size=10)
Queues = st.builds(MessageQueue, Names, Names, st.integers(-1, 2**31 - 1))
QUEUE = MessageQueue("orders", "broker-a", 3)


def queue_data(broker: str = "broker-a", reads: int = 4, writes: int = 4) -> dict[str, Any]:
    return {"brokerName": broker, "readQueueNums": reads, "writeQueueNums": writes, "perm": 6}


def addresses(count: int) -> dict[str, str]:
    return {str(number): f"10.0.0.1:{number}" for number in range(count)}


def route(**parts: object) -> bytes:
    return json.dumps(parts).encode()


def logical(*scopes: str, queues: int = MAX_QUEUES) -> dict[str, Any]:
    return {f"b{n}": {"scope": each, "totalQueues": queues} for n, each in enumerate(scopes)}


def written(body: object) -> Any:  # noqa: ANN401 - any JSON value
    return json.loads(msgspec.json.encode(body))


# --- routes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("master", [b'"0"', b"0"], ids=["standard", "number-keys"])
def test_a_route_is_read_in_both_dialects(master: bytes) -> None:
    text = (
        b'{"brokerDatas":[{"brokerAddrs":{%b:"10.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"c","zoneName":"z","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,'
        b'"writeQueueNums":4}]}' % master
    )
    read = read_route(text)

    assert read.queue_datas == [
        QueueData(broker_name="broker-a", read_queue_nums=8, write_queue_nums=4, perm=6)
    ]
    assert read.broker_datas == [
        BrokerData(broker_name="broker-a", cluster="c", broker_addrs={0: "10.0.0.1:10911"})
    ]
    assert read.order_topic_conf is None


def test_a_route_may_be_empty() -> None:
    read = read_route(b"{}")

    assert (read.queue_datas, read.broker_datas) == ([], [])


def test_a_route_at_the_limits_is_accepted() -> None:
    half = MAX_QUEUES // 2
    queues = [queue_data("a", half, half), queue_data("b", half, half)]
    brokers = [{"brokerName": f"b{n}", "brokerAddrs": {}} for n in range(MAX_BROKERS)]

    read = read_route(route(queueDatas=queues, brokerDatas=brokers))

    assert (len(read.queue_datas), len(read.broker_datas)) == (2, MAX_BROKERS)


def test_the_brokers_of_a_scope_share_their_logical_queues() -> None:
    mappings = logical("__global__", "__global__")

    assert read_route(route(topicQueueMappingByBroker=mappings)).topic_queue_mapping_by_broker


@pytest.mark.parametrize(
    "body",
    [
        route(queueDatas=[queue_data(reads=MAX_QUEUES + 1)]),
        route(queueDatas=[queue_data(writes=2**31 - 1)]),
        route(queueDatas=[queue_data(reads=-1)]),
        route(queueDatas=[queue_data(f"b{n}", reads=MAX_QUEUES) for n in range(2)]),
        route(queueDatas=[queue_data(f"b{n}", writes=MAX_QUEUES) for n in range(2)]),
        route(queueDatas=[queue_data(reads=1)] * (MAX_BROKERS + 1)),
        route(brokerDatas=[{"brokerName": "b"}] * (MAX_BROKERS + 1)),
        route(brokerDatas=[{"brokerName": "b", "brokerAddrs": addresses(MAX_ADDRESSES + 1)}]),
        route(brokerDatas=[{"brokerName": "b", "brokerAddrs": addresses(MAX_BROKERS)}] * 5),
        route(topicQueueMappingByBroker=logical("a", queues=MAX_QUEUES + 1)),
        route(topicQueueMappingByBroker=logical("a", "b")),
    ],
    ids=[
        *("reads", "writes", "negative", "reads-in-sum", "writes-in-sum", "queue-datas", "brokers"),
        *("addresses", "addresses-in-sum", "logical", "logical-in-sum"),
    ],
)
def test_a_route_above_the_limits_is_rejected(body: bytes) -> None:
    with pytest.raises(CodecError, match="TopicRouteData at byte 0"):
        read_route(body)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"", "TopicRouteData body at byte 0"),
        (b"[]", "Expected `object`"),
        (route(queueDatas={}), r"\$\.queueDatas"),
        (route(queueDatas=[{"brokerName": "a"}]), "readQueueNums"),
        (route(queueDatas=[{**queue_data(), "perm": "w"}]), r"\$\.queueDatas\[0\]\.perm"),
        (route(brokerDatas=[{"brokerAddrs": {}}]), "brokerName"),
        (route(brokerDatas=[{"brokerName": "a", "brokerAddrs": {"x": "h:1"}}]), "brokerAddrs"),
        (route(brokerDatas=[{"brokerName": "a", "brokerAddrs": {"0": 5}}]), "brokerAddrs"),
        (b'{"queueDatas":[{"$ref":"$.queueDatas[0]"}]}', "brokerName"),
        (b'{"brokerDatas":' + b"[" * 100_000, "TopicRouteData body at byte 0|nested deeper"),
    ],
)
def test_an_invalid_route_names_the_field(body: bytes, place: str) -> None:
    with pytest.raises(CodecError, match=place):
        read_route(body)


def test_a_broker_name_cannot_forge_log_lines() -> None:
    body = route(queueDatas=[queue_data("a\nERROR all is lost", reads=-1)])

    with pytest.raises(CodecError) as caught:
        read_route(body)
    assert "\n" not in str(caught.value)


# --- what this client writes --------------------------------------------------------------------


def test_a_heartbeat_is_written_with_the_names_of_the_broker() -> None:
    subscription = SubscriptionData(
        topic="orders", sub_string="a || b", tags_set=["a", "b"], code_set=[97, 98], sub_version=7
    )
    consumer = ConsumerData(
        group_name="g",
        consume_type="CONSUME_ACTIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[subscription],
    )
    body = HeartbeatData(
        client_id="a@b",
        producer_data_set=[ProducerData(group_name="p")],
        consumer_data_set=[consumer],
    )

    assert written(body) == {
        "clientID": "a@b",
        "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeType": "CONSUME_ACTIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [
                    {
                        "topic": "orders",
                        "subString": "a || b",
                        "tagsSet": ["a", "b"],
                        "codeSet": [97, 98],
                        "subVersion": 7,
                        "expressionType": "TAG",
                        "classFilterMode": False,
                    }
                ],
                "unitMode": False,
            }
        ],
        "heartbeatFingerprint": 0,
        "withoutSub": False,
    }


def test_irregular_wire_names_are_used() -> None:
    queue = MessageQueueBody(topic="t", broker_name="b", queue_id=1)
    request = LockBatchRequest(consumer_group="g", client_id="c", mq_set=[queue])
    info = written(ProcessQueueInfo(cached_msg_size_in_mib=3, droped=True))

    assert written(request)["mqSet"] == [{"topic": "t", "brokerName": "b", "queueId": 1}]
    assert (info["cachedMsgSizeInMiB"], info["droped"]) == (3, True)


def test_locked_queues_are_read() -> None:
    text = b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"orders"}]}'
    read = read_body(text, LockBatchResponse)

    assert [each.queue() for each in read.locked] == [QUEUE]
    assert read_body(b"{}", LockBatchResponse).locked == []


def test_members_are_read() -> None:
    read = read_body(b'{"consumerIdList":["b@1","a@2"]}', ConsumerList)

    assert read.consumer_id_list == ["b@1", "a@2"]
    assert read_body(b"{}", ConsumerList).consumer_id_list == []


# --- maps whose keys are queues -----------------------------------------------------------------


def test_a_queue_table_has_objects_as_keys() -> None:
    table = queue_table({QUEUE: 5})

    assert bytes(table) == b'{{"brokerName":"broker-a","queueId":3,"topic":"orders"}:5}'
    assert bytes(queue_table({})) == b"{}"


def test_a_queue_table_is_embedded_unchanged() -> None:
    status = ConsumerStatusBody(message_queue_table=queue_table({QUEUE: 5}))
    info = ConsumerRunningInfo(
        properties={"a": "b"},
        subscription_set=[],
        mq_table=queue_table({QUEUE: ProcessQueueInfo(commit_offset=9)}),
    )

    assert b'"messageQueueTable":{{"brokerName"' in msgspec.json.encode(status)
    ((_, state),) = json.loads(to_standard(msgspec.json.encode(info)))["mqTable"].items()
    assert state["commitOffset"] == 9


@given(st.dictionaries(Queues, st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_offsets_are_read_from_a_map_with_queues_as_keys(table: dict[MessageQueue, int]) -> None:
    body = b'{"offsetTable":' + bytes(queue_table(table)) + b"}"

    assert read_reset_offsets(body) == table
    assert read_reset_offsets(to_standard(body)) == table


@given(st.dictionaries(Queues, st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_offsets_are_read_from_a_list(table: dict[MessageQueue, int]) -> None:
    entries = [
        {"topic": q.topic, "brokerName": q.broker_name, "queueId": q.queue_id, "offset": offset}
        for q, offset in table.items()
    ]

    assert read_reset_offsets(json.dumps({"offsetTable": entries}).encode()) == table


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b'{"offsetTable":5}',
        b'{"offsetTable":[5]}',
        b'{"offsetTable":[{"topic":"t","brokerName":"b","queueId":0}]}',
        b'{"offsetTable":{"a key":1}}',
        b'{"offsetTable":{"{}":1}}',
        b'{"offsetTable":{0:1}}',
        b'{"offsetTable":{{"topic":"t"}:1}}',
        b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":"x"}:1}}',
        b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:"x"}}',
        b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:1e400}}',
        b'{"offsetTable":{{"topic":"\\ud800","brokerName":"b","queueId":0}:1}}',
        b'{"offsetTable":{{{"a":1}:1}:1}}',
        b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:1}',
    ],
)
def test_invalid_offsets_are_a_codec_error(body: bytes) -> None:
    with pytest.raises(CodecError, match="at byte"):
        read_reset_offsets(body)


def test_bodies_of_the_wrong_shape_are_a_codec_error() -> None:
    for kind in bodies.Body.__subclasses__():
        for text in (b"[1]", b"5", b'"text"', b"null", b"", b"{0}", b'{"a"'):
            with pytest.raises(CodecError, match="body at byte"):
                read_body(text, kind)
