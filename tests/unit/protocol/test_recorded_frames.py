"""Recorded traffic of the Java client with real servers: decoded and encoded again."""

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from rocketmq_aio.config.client import Credentials
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol import bodies
from rocketmq_aio.protocol.codes import COMPRESSED, LANGUAGE
from rocketmq_aio.protocol.command import encode_command
from rocketmq_aio.protocol.compression import inflate
from rocketmq_aio.protocol.fastjson import read_body, to_standard
from rocketmq_aio.protocol.header import Header, read_header, to_ext_fields, wire_names
from rocketmq_aio.protocol.record import decode_batch, decode_messages, encode_batch_entry
from rocketmq_aio.protocol.requests import admin, from_broker, groups, offsets, pop, pull, send
from rocketmq_aio.protocol.requests.send import EndTransaction
from rocketmq_aio.remoting.acl import sign
from tests.unit.protocol.wire_files import (
    COMMON_FIELDS,
    DEFINITIONS,
    RECORDED,
    Json,
    command_in,
    load,
    said_by_python,
    split,
)

REQUESTS: Final[dict[int, type[Header]]] = {
    kind.code: kind
    for kind in (
        pull.PullMessage,
        pull.LitePullMessage,
        pop.PopMessage,
        pop.AckMessage,
        pop.ChangeInvisibleTime,
        offsets.QueryConsumerOffset,
        offsets.UpdateConsumerOffset,
        offsets.SearchOffset,
        offsets.GetMaxOffset,
        offsets.GetMinOffset,
        offsets.GetEarliestMsgStoretime,
        groups.GetRouteInfo,
        groups.UnregisterClient,
        groups.GetConsumerListByGroup,
        from_broker.CheckTransactionState,
        from_broker.NotifyConsumerIdsChanged,
        from_broker.ResetOffset,
        from_broker.GetConsumerStatus,
        from_broker.GetConsumerRunningInfo,
        from_broker.ConsumeMessageDirectly,
        from_broker.PushReplyMessage,
        send.SendMessage,
        send.RecallMessage,
        send.SendBatchMessage,
        send.SendReplyMessage,
        send.ConsumerSendMsgBack,
        EndTransaction,
        admin.DeleteGroup,
        admin.GetConsumeStats,
        admin.GetGroupsOfTopic,
        admin.GetProducerConnections,
        admin.InvokeResetOffset,
        admin.QueryMessage,
        admin.ViewMessage,
        admin.CreateTopic,
        admin.DeleteKVConfig,
        admin.DeleteTopicInBroker,
        admin.DeleteTopicInNameServer,
        admin.GetKVConfig,
        admin.GetTopicConfig,
        admin.GetTopicsOfCluster,
        admin.GetTopicStats,
        admin.PutKVConfig,
    )
}
ANSWERS: Final[dict[int, type[Header]]] = {
    11: pull.PullMessageResponse,
    14: offsets.OffsetResponse,
    29: offsets.OffsetResponse,
    30: offsets.OffsetResponse,
    31: offsets.OffsetResponse,
    32: offsets.TimestampResponse,
    34: groups.HeartbeatResponse,
    310: send.SendMessageResponse,
    320: send.SendMessageResponse,
    325: send.SendMessageResponse,
    370: send.RecallMessageResponse,
    361: pull.PullMessageResponse,
    101: admin.GetKVConfigResponse,
    200050: pop.PopMessageResponse,
    200053: pop.ChangeInvisibleTimeResponse,
}
WITH_FIELDS: Final = {
    11: (0, 19, 20, 21),
    361: (0, 19, 20, 21),
    200050: (0, 210),
}  # all others: only when it is 0
BODIES: Final[dict[str, type[bodies.Body]]] = {
    "HeartbeatData": bodies.HeartbeatData,
    "TopicRouteData": bodies.TopicRouteData,
    "GetConsumerListByGroupResponseBody": bodies.ConsumerList,
    "CheckClientRequestBody": bodies.CheckClientRequest,
    "BatchAckMessageRequestBody": bodies.BatchAckRequest,
    "LockBatchRequestBody": bodies.LockBatchRequest,
    "UnlockBatchRequestBody": bodies.LockBatchRequest,
    "LockBatchResponseBody": bodies.LockBatchResponse,
    "ClusterInfo": admin.ClusterInfoBody,
    "ConsumeStats": admin.ConsumeStats,
    "GroupList": admin.GroupList,
    "KVTable": admin.KVTable,
    "ProducerConnection": admin.ProducerConnections,
    "SubscriptionGroupConfig": admin.SubscriptionGroupBody,
    "SubscriptionGroupWrapper": admin.SubscriptionGroupTable,
    "TopicConfig": admin.TopicConfigBody,
    "TopicConfigSerializeWrapper": admin.TopicConfigTable,
    "TopicList": admin.TopicList,
    "TopicStatsTable": admin.TopicStatsTable,
    "ConsumerRunningInfo": bodies.ConsumerRunningInfo,
    "GetConsumerStatusBody": bodies.ConsumerStatusBody,
    "ConsumeMessageDirectlyResult": bodies.ConsumeDirectlyResult,
}
ANY_REQUEST: Final = {field["name"] for field in load("common-fields.json")["any_request"]}


class Half:
    """One frame of an exchange, with what is known about it."""

    def __init__(self, code: int, number: int, exchange: Json, side: str) -> None:
        half = exchange[side]
        self.name = f"{code}-{exchange['version']}-{number}-{side}"
        self.request_code = code
        self.side = side
        self.binary = half["serialize"] == "ROCKETMQ"
        self.frame = bytes.fromhex(half["hex"])
        self.says: Json = half["says"]
        self.request_ext: dict[str, str] = exchange["request"]["says"]["ext"]
        self.secret: str | None = exchange.get("secret")

    @property
    def definition(self) -> Json:
        side: Json = DEFINITIONS[self.request_code][self.side]
        return side

    @property
    def header(self) -> type[Header] | None:
        """The type its ext fields are read as, if any."""
        if self.side == "request":
            return REQUESTS.get(self.request_code)
        filled = self.says["code"] in WITH_FIELDS.get(self.request_code, (0,))
        return ANSWERS.get(self.request_code) if filled else None


HALVES: Final = [
    Half(document["code"], number, exchange, side)
    for document in RECORDED.values()
    for number, exchange in enumerate(document["exchanges"])
    for side in ("request", "response")
    if side in exchange
]
TYPED: Final = [half for half in HALVES if half.header is not None]
SIGNED: Final = [half for half in HALVES if half.side == "request" and half.secret]
WITH_JSON: Final = [half for half in HALVES if "body_json" in half.says]
WITH_BODY_TYPE: Final = [half for half in WITH_JSON if half.definition["body"]["shape"] in BODIES]
WITH_MESSAGES: Final = [half for half in HALVES if "body_messages" in half.says]
BATCHES: Final = [half for half in HALVES if half.request_code == 320 and half.side == "request"]
COMPRESSED_SENDS: Final = [
    half for half in HALVES if int(half.says["ext"].get("f", "0")) & COMPRESSED
]


def each(halves: list[Half]) -> Callable[[Callable[[Half], None]], Callable[..., None]]:
    """Run a test for *halves*: one pytest item per request code, as an item per frame is slow."""
    of_code: dict[int, list[Half]] = defaultdict(list)
    for half in halves:
        of_code[half.request_code].append(half)

    def repeated(test: Callable[[Half], None]) -> Callable[..., None]:
        @pytest.mark.parametrize("code", of_code)
        def test_all(code: int) -> None:
            for half in of_code[code]:
                try:
                    test(half)
                except Exception as error:
                    error.add_note(f"frame {half.name}")
                    raise

        test_all.__name__, test_all.__doc__ = test.__name__, test.__doc__
        return test_all

    return repeated


@each(HALVES)
def test_frames_decode_to_the_recorded_values(half: Half) -> None:
    says = half.says

    command = command_in(half.frame)

    assert command.code == says["code"]
    assert command.opaque == says["opaque"]
    assert command.flag == says["flag"]
    assert command.version == says["version"]
    assert command.remark == says.get("remark")
    assert command.ext_fields() == says["ext"]
    assert len(command.body) == says["body_length"]
    assert command.is_response == (half.side == "response")


@each(HALVES)
def test_frames_are_encoded_byte_for_byte(half: Half) -> None:
    command = command_in(half.frame)

    written = encode_command(
        command, command.ext_fields(), binary=half.binary, version=command.version
    )

    if half.binary and "repeated_keys" not in half.says and all(half.says["ext"].values()):
        assert written == said_by_python(half.frame)
    else:
        assert_same_value(written, half.frame)


def assert_same_value(ours: bytes, theirs: bytes) -> None:
    """Compare what cannot be equal byte for byte: JSON, binary fields written twice or empty."""
    our_encoding, our_header, our_body = split(ours)
    their_encoding, their_header, their_body = split(theirs)

    assert (our_encoding, our_body) == (their_encoding, their_body)
    if our_encoding == 0:
        said = {"extFields": {}} | json.loads(their_header) | {"language": LANGUAGE}
        assert json.loads(our_header) == said
    else:
        command = command_in(theirs)
        command.ext = {name: text for name, text in command.ext_fields().items() if text}
        assert command_in(ours) == command


@each(TYPED)
def test_a_typed_header_has_the_values_that_were_sent(half: Half) -> None:
    kind = half.header
    assert kind is not None
    known = {name for _, name in wire_names(kind)}

    header = to_ext_fields(read_header(command_in(half.frame), kind))

    sent = {name: value for name, value in half.says["ext"].items() if name in known}
    assert {name: header[name] for name in sent} == sent


@each(TYPED)
def test_a_header_has_no_field_that_its_definition_lacks(half: Half) -> None:
    definition = half.definition
    defined = {entry["name"] for entry in definition["header"] + definition.get("beside", [])}
    needed = {entry["name"] for entry in definition["header"] if entry["required"]}
    common = COMMON_FIELDS.keys() & set(definition.get("common", ()))

    sent = half.says["ext"].keys()

    assert needed <= sent <= defined | common | ANY_REQUEST


@each(SIGNED)
def test_a_signature_is_recomputed(half: Half) -> None:
    said, body = half.says["ext"], command_in(half.frame).body
    account = ("AccessKey", "SecurityToken", "Signature")
    credentials = Credentials(
        access_key=said["AccessKey"],
        secret_key=half.secret or "",
        security_token=said.get("SecurityToken"),
    )
    ext = {name: value for name, value in said.items() if name not in account}

    sign(ext, body, credentials)

    assert ext == said


@each(WITH_JSON)
def test_a_json_body_has_the_keys_of_its_definition(half: Half) -> None:
    entries = half.definition["body"]["keys"]
    needed = {entry["name"] for entry in entries if entry["required"]}

    body = json.loads(to_standard(command_in(half.frame).body))

    assert needed <= body.keys() <= {entry["name"] for entry in entries}
    if half.definition["body"]["form"] == "S":
        assert body == json.loads(half.says["body_json"])


@each(WITH_BODY_TYPE)
def test_a_json_body_is_read_without_loss(half: Half) -> None:
    body = command_in(half.frame).body

    read = read_body(body, BODIES[half.definition["body"]["shape"]])

    assert_within(json.loads(msgspec.json.encode(read)), json.loads(to_standard(body)))


def assert_within(ours: object, theirs: object) -> None:
    """Fields that both have are equal; recorded bodies have more keys, decoded ones defaults."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours.keys() & theirs.keys():
            assert_within(ours[key], theirs[key])
    elif isinstance(ours, list) and isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for our_item, their_item in zip(ours, theirs, strict=True):
            assert_within(our_item, their_item)
    else:
        assert ours == theirs


@each([half for half in WITH_JSON if half.request_code == 105])
def test_a_route_names_its_brokers(half: Half) -> None:
    route = bodies.read_route(command_in(half.frame).body)

    (broker,) = route.broker_datas
    assert broker.broker_name == "broker-a"
    assert broker.broker_addrs.keys() == {0}
    assert {queues.broker_name for queues in route.queue_datas} == {"broker-a"}


@each([half for half in WITH_JSON if half.request_code == 220])
def test_offsets_to_reset_are_read(half: Half) -> None:
    body = command_in(half.frame).body

    table = bodies.read_reset_offsets(body)

    expected = json.loads(to_standard(body))["offsetTable"]
    assert {queue_key(queue): offset for queue, offset in table.items()} == {
        json.dumps(json.loads(key), sort_keys=True): offset for key, offset in expected.items()
    }
    assert len(table) == 2


def queue_key(queue: MessageQueue) -> str:
    names = {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
    return json.dumps(names, sort_keys=True)


@each(WITH_MESSAGES)
def test_stored_messages_decode_to_the_recorded_values(half: Half) -> None:
    first = half.says["body_messages"][0]
    queue = MessageQueue(first["topic"], "broker-a", first["queueId"])

    messages, fault = decode_messages(command_in(half.frame).body, queue)

    assert fault is None
    assert len(messages) == half.says["body_message_count"]
    for message, said in zip(messages, half.says["body_messages"], strict=False):
        assert summary(message) == {key: said[key] for key in summary(message)}


def summary(message: MessageExt) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.commit_log_offset,
        "size": message.store_size,
        "crc": message.body_crc,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "reconsumeTimes": message.reconsume_times,
        "preparedOffset": message.prepared_transaction_offset,
        "born": round(message.born_time.timestamp() * 1000),
        "store": round(message.store_time.timestamp() * 1000),
        "properties": message.properties,
        "body": message.body.hex(),
    }


@each(WITH_MESSAGES)
def test_hosts_of_stored_messages_are_read(half: Half) -> None:
    (said, *_) = half.says["body_messages"]
    queue = MessageQueue(said["topic"], "broker-a", said["queueId"])

    (message, *_), _fault = decode_messages(command_in(half.frame).body, queue)

    assert message.born_host == f"{said['bornHost']}:{said['bornPort']}"
    assert message.store_host == f"{said['storeHost']}:{said['storePort']}"


@each(BATCHES)
def test_batches_are_encoded_byte_for_byte(half: Half) -> None:
    body = command_in(half.frame).body

    entries = list(decode_batch(body))

    assert len(entries) > 1
    assert (
        b"".join(
            part
            for flag, content, properties in entries
            for part in encode_batch_entry(content, properties, flag)
        )
        == body
    )


@each(COMPRESSED_SENDS)
def test_a_compressed_body_is_inflated(half: Half) -> None:
    body = command_in(half.frame).body

    inflated = inflate(body, int(half.says["ext"]["f"]))

    assert len(inflated) > len(body)


def test_every_kind_of_exchange_was_recorded() -> None:
    encodings = {(half.side, half.binary) for half in HALVES}

    assert encodings == {
        (side, binary) for side in ("request", "response") for binary in (True, False)
    }
    assert {half.says["version"] for half in HALVES} == {407, 513}
    assert all((SIGNED, WITH_MESSAGES, BATCHES, COMPRESSED_SENDS))
