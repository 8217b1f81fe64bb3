"""JSON bodies written by the Java classes: decoded and encoded again."""

import json
from typing import Final

import msgspec
import pytest

from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol import bodies
from rocketmq_aio.protocol.fastjson import read_body, to_standard
from rocketmq_aio.protocol.requests.groups import AssignmentRequest, AssignmentResponse
from rocketmq_aio.protocol.subscription import java_hash
from tests.unit.protocol.wire_files import load

BODIES: Final = load("frames/golden/bodies.json")

EXACT_BODIES: Final[list[tuple[str, type[bodies.Body]]]] = [
    ("HeartbeatData", bodies.HeartbeatData),
    ("SubscriptionData_SQL92", bodies.SubscriptionData),
    ("LockBatchRequestBody", bodies.LockBatchRequest),
    ("UnlockBatchRequestBody", bodies.LockBatchRequest),
    ("LockBatchResponseBody", bodies.LockBatchResponse),
    ("CheckClientRequestBody", bodies.CheckClientRequest),
    ("GetConsumerListByGroupResponseBody", bodies.ConsumerList),
    ("QueryAssignmentRequestBody", AssignmentRequest),
    ("QueryAssignmentResponseBody", AssignmentResponse),
    ("BatchAckMessageRequestBody", bodies.BatchAckRequest),
]


@pytest.mark.parametrize("name", BODIES["bodies"])
def test_every_body_becomes_standard_json(name: str) -> None:
    text = BODIES["bodies"][name]

    standard = to_standard(text.encode())

    read = json.loads(standard)
    assert isinstance(read, dict)
    if name in BODIES["standard_json"]:
        assert read == json.loads(text)


@pytest.mark.parametrize(("name", "kind"), EXACT_BODIES, ids=[name for name, _ in EXACT_BODIES])
def test_a_body_is_read_and_written_again_as_the_same_value(
    name: str, kind: type[bodies.Body]
) -> None:
    text = BODIES["bodies"][name]

    again = msgspec.json.encode(read_body(text.encode(), kind))

    assert json.loads(again) == json.loads(text)


def test_the_fingerprint_of_a_heartbeat_is_the_hash_of_its_text() -> None:
    assert (
        java_hash(BODIES["bodies"]["HeartbeatData_fingerprint_input"])
        == (BODIES["heartbeat_fingerprint"])
    )


@pytest.mark.parametrize(
    "name", ["TopicRouteData_default", "TopicRouteData_standard", "TopicRouteData_static_default"]
)
def test_a_route_is_read_in_every_form(name: str) -> None:
    route = bodies.read_route(BODIES["bodies"][name].encode())

    (broker,) = route.broker_datas
    assert broker.broker_name == "broker-a"
    assert broker.broker_addrs == {0: "10.0.0.5:10911", 1: "10.0.0.6:10911"}
    (queues,) = route.queue_datas
    assert (queues.broker_name, queues.perm) == ("broker-a", 6)


@pytest.mark.parametrize(
    ("name", "expected"), [("ResetOffsetBody", {0: 5, 1: 6}), ("ResetOffsetBodyForC", {0: 5})]
)
def test_offsets_to_reset_are_read_in_both_forms(name: str, expected: dict[int, int]) -> None:
    offsets = bodies.read_reset_offsets(BODIES["bodies"][name].encode())

    assert offsets == {
        MessageQueue("TopicTest", "broker-a", queue): offset for queue, offset in expected.items()
    }


def test_a_table_of_queues_is_written_as_java_writes_it() -> None:
    queues = {MessageQueue("TopicTest", "broker-a", queue): queue + 5 for queue in (1, 0)}
    status = bodies.ConsumerStatusBody(message_queue_table=bodies.queue_table(queues))

    written = msgspec.json.encode(status).decode()

    golden = BODIES["bodies"]["GetConsumerStatusBody"]
    table = golden[golden.index('"messageQueueTable"') : -1]
    assert table in written
    assert json.loads(to_standard(written.encode())) == json.loads(to_standard(golden.encode()))
