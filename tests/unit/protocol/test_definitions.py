"""The package and the definitions in protocol/ agree."""

import json
import runpy
from enum import IntEnum, StrEnum
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin

import msgspec
import pytest
from msgspec.structs import FieldInfo, fields

from rocketmq_aio.model import properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol import bodies, codes, record
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.header import Header, RequestHeader
from rocketmq_aio.protocol.requests import admin, groups, offsets, operations, pop, pull, send
from tests.unit.protocol.declared import all_headers
from tests.unit.protocol.wire_files import (
    CODES,
    COMMON_FIELDS,
    DEFINITIONS,
    OPERATIONS,
    PROTOCOL,
    RECORDED,
    Json,
    load_all,
)

RESPONSES: Final[dict[type[Header], tuple[int, ...]]] = {
    admin.GetKVConfigResponse: (101,),
    groups.HeartbeatResponse: (34,),
    offsets.OffsetResponse: (14, 29, 30, 31),
    offsets.TimestampResponse: (32,),
    pop.ChangeInvisibleTimeResponse: (200053,),
    pop.PopMessageResponse: (200050,),
    pull.PullMessageResponse: (11, 361),
    send.RecallMessageResponse: (370,),
    send.SendMessageResponse: (310, 320, 325),
}

UNREAD: Final = {12, 21, 201}  # fields of responses that the package does not use

SHAPES: Final[dict[type[bodies.Body], tuple[str, ...]]] = {
    bodies.QueueData: ("QueueData",),
    bodies.BrokerData: ("BrokerData",),
    bodies.TopicQueueMappingInfo: ("TopicQueueMappingInfo",),
    bodies.TopicRouteData: ("TopicRouteData",),
    bodies.SubscriptionData: ("SubscriptionData",),
    bodies.ProducerData: ("ProducerData",),
    bodies.ConsumerData: ("ConsumerData",),
    bodies.HeartbeatData: ("HeartbeatData",),
    bodies.ConsumerList: ("GetConsumerListByGroupResponseBody",),
    groups.AssignmentRequest: ("QueryAssignmentRequestBody",),
    groups.AssignmentResponse: ("QueryAssignmentResponseBody",),
    groups.MessageQueueAssignment: ("MessageQueueAssignment",),
    groups.ConsumerConnections: ("ConsumerConnection",),
    groups.ConnectionBody: ("Connection",),
    groups.MemberState: ("ConsumerRunningInfo",),
    admin.ClusterInfoBody: ("ClusterInfo",),
    admin.KVTable: ("KVTable",),
    admin.ConsumeStats: ("ConsumeStats",),
    admin.GroupList: ("GroupList",),
    admin.OffsetWrapper: ("OffsetWrapper",),
    admin.ProducerConnections: ("ProducerConnection",),
    admin.SubscriptionGroupBody: ("SubscriptionGroupConfig",),
    admin.SubscriptionGroupTable: ("SubscriptionGroupWrapper",),
    admin.TopicConfigBody: ("TopicConfig",),
    admin.TopicConfigTable: ("TopicConfigSerializeWrapper",),
    admin.TopicList: ("TopicList",),
    admin.TopicOffset: ("TopicOffset",),
    admin.TopicStatsTable: ("TopicStatsTable",),
    operations.MappedTopicBody: ("TopicConfigAndQueueMapping",),
    operations.MappedTopicTable: ("TopicConfigSerializeWrapper",),
    operations.TopicMapping: ("TopicQueueMappingDetail",),
    operations.PhysicalQueue: ("LogicQueueMappingItem",),
    bodies.CheckClientRequest: ("CheckClientRequestBody",),
    bodies.BatchAck: ("BatchAck",),
    bodies.BatchAckRequest: ("BatchAckMessageRequestBody",),
    bodies.LockBatchRequest: ("LockBatchRequestBody", "UnlockBatchRequestBody"),
    bodies.LockBatchResponse: ("LockBatchResponseBody",),
    bodies.MessageQueueBody: ("MessageQueue",),
    bodies.ProcessQueueInfo: ("ProcessQueueInfo",),
    bodies.PopProcessQueueInfo: ("PopProcessQueueInfo",),
    bodies.ConsumeStatus: ("ConsumeStatus",),
    bodies.ConsumerRunningInfo: ("ConsumerRunningInfo",),
    bodies.ConsumerStatusBody: ("GetConsumerStatusBody",),
    bodies.ConsumeDirectlyResult: ("ConsumeMessageDirectlyResult",),
}

PYTHON_TYPES: Final = {
    "string": str,
    "enum": str,
    "int": int,
    "long": int,
    "int32": int,
    "int64": int,
    "boolean": bool,
    "double": float,
}

FLAGS: Final = [
    (codes.RESPONSE_FLAG, "command_flags", "RESPONSE"),
    (codes.ONEWAY_FLAG, "command_flags", "ONEWAY"),
    (codes.JSON_HEADER, "serialize_types", "JSON"),
    (codes.BINARY_HEADER, "serialize_types", "ROCKETMQ"),
    (codes.COMPRESSED, "message_sys_flags", "COMPRESSED_FLAG"),
    (codes.TRANSACTION_MASK, "message_sys_flags", "TRANSACTION_MASK"),
    (codes.TRANSACTION_PREPARED, "message_sys_flags", "TRANSACTION_PREPARED_TYPE"),
    (codes.TRANSACTION_COMMIT, "message_sys_flags", "TRANSACTION_COMMIT_TYPE"),
    (codes.TRANSACTION_ROLLBACK, "message_sys_flags", "TRANSACTION_ROLLBACK_TYPE"),
    (codes.BORN_IPV6, "message_sys_flags", "BORNHOST_V6_FLAG"),
    (codes.STORE_IPV6, "message_sys_flags", "STOREHOSTADDRESS_V6_FLAG"),
    (codes.NEED_UNWRAP, "message_sys_flags", "NEED_UNWRAP_FLAG"),
    (codes.INNER_BATCH, "message_sys_flags", "INNER_BATCH_FLAG"),
    (codes.COMPRESSION_MASK, "message_sys_flags", "COMPRESSION_TYPE_MASK"),
    (codes.COMPRESSION_BITS["lz4"], "message_sys_flags", "COMPRESSION_LZ4_TYPE"),
    (codes.COMPRESSION_BITS["zstd"], "message_sys_flags", "COMPRESSION_ZSTD_TYPE"),
    (codes.COMPRESSION_BITS["zlib"], "message_sys_flags", "COMPRESSION_ZLIB_TYPE"),
    (codes.PULL_COMMIT, "pull_sys_flags", "FLAG_COMMIT_OFFSET"),
    (codes.PULL_SUSPEND, "pull_sys_flags", "FLAG_SUSPEND"),
    (codes.PULL_SUBSCRIPTION, "pull_sys_flags", "FLAG_SUBSCRIPTION"),
    (codes.PULL_LITE, "pull_sys_flags", "FLAG_LITE_PULL_MESSAGE"),
    (codes.PERM_WRITE, "perm_bits", "PERM_WRITE"),
    (codes.PERM_READ, "perm_bits", "PERM_READ"),
]


def subclasses(kind: type[Any]) -> set[type[Any]]:
    below = set(kind.__subclasses__())
    return below.union(*map(subclasses, below))


HEADERS: Final = set(all_headers())
ALL_REQUESTS: Final = sorted(
    (kind for kind in HEADERS if issubclass(kind, RequestHeader) and kind.__name__[0] != "_"),
    key=lambda kind: kind.code,
)
REQUESTS: Final = [each for each in ALL_REQUESTS if each.__module__ != operations.__name__]
OPERATOR_REQUESTS: Final = [each for each in ALL_REQUESTS if each not in REQUESTS]
ANSWERS: Final = [(kind, code) for kind, known in RESPONSES.items() for code in known]


def entries(side: Json) -> dict[str, Json]:
    """Return what one side of a definition may carry, by the name on the wire."""
    common = [COMMON_FIELDS[name] for name in side.get("common", ())]
    return {entry["name"]: entry for entry in [*side["header"], *side.get("beside", ()), *common]}


def shape(name: str) -> dict[str, Json]:
    """Return the keys of the JSON object *name*, in whichever definition it occurs."""
    for definition in DEFINITIONS.values():
        for side in (definition["request"], definition.get("response", {})):
            body = side.get("body") or {}
            if body.get("shape") == name and "keys" in body:
                return {entry["name"]: entry for entry in body["keys"]}
            if name in body.get("parts", {}):
                return {entry["name"]: entry for entry in body["parts"][name]}
    raise LookupError(name)


def python_type(field: FieldInfo) -> type[Any]:
    """Return the type of *field* without its None."""
    kinds = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
    (kind,) = (kind for kind in kinds if kind is not NoneType)
    plain: type[Any] = get_origin(kind) or kind
    return plain


def assert_agree(kind: type[Header], defined: dict[str, Json]) -> None:
    declared = {field.encode_name: field for field in fields(kind)}
    needed = {name for name, entry in defined.items() if entry["required"]}

    assert declared.keys() <= defined.keys()
    assert {name for name, field in declared.items() if field.required} == needed
    for name, field in declared.items():
        assert python_type(field) is PYTHON_TYPES[defined[name]["type"]], name


@pytest.mark.parametrize(
    ("enum", "table"), [(RequestCode, "request_codes"), (ResponseCode, "response_codes")]
)
def test_codes_match_the_protocol_tables(enum: type[IntEnum], table: str) -> None:
    ours = {member.name: int(member) for member in enum}
    theirs = {name: CODES[table][name]["code"] for name in ours}

    assert ours == theirs


@pytest.mark.parametrize(("value", "table", "name"), FLAGS, ids=[flag[2] for flag in FLAGS])
def test_flags_match_the_protocol_tables(value: int, table: str, name: str) -> None:
    assert value == CODES[table][name]


@pytest.mark.parametrize(
    ("magic", "name"),
    [(record.MAGIC_V1, "MESSAGE_VERSION_V1"), (record.MAGIC_V2, "MESSAGE_VERSION_V2")],
)
def test_magics_match_the_protocol_tables(magic: int, name: str) -> None:
    assert magic & 0xFFFF_FFFF == int(CODES["message_magics"][name], 16)


def test_the_language_is_in_the_protocol_tables() -> None:
    assert CODES["language_codes"][codes.LANGUAGE]["code"] == codes.LANGUAGE_CODE


def test_the_client_version_is_that_of_a_release() -> None:
    assert CODES["versions"]["V5_5_0"] == codes.CLIENT_VERSION
    assert CODES["versions"]["V5_0_0"] == codes.V5_0_0


def test_releases_have_names_from_their_numbers() -> None:
    since_4 = {n: v for n, v in CODES["versions"].items() if codes.V4_0_0_SNAPSHOT <= v < 612}

    assert {name: codes.release_name(number) for name, number in since_4.items()} == {
        name: name for name in since_4
    }
    assert [codes.release_name(number) for number in (-1, 211, 612)] == [""] * 3
    assert codes.release_name(212) == "V4_0_0_SNAPSHOT"


def test_property_names_match_the_protocol_tables() -> None:
    constants = {
        value
        for name, value in vars(properties).items()
        if name.isupper() and isinstance(value, str) and value.isprintable()
    }

    assert constants | properties.RESERVED <= CODES["message_properties"].keys()


def test_every_request_code_has_a_header_and_a_definition() -> None:
    assert {kind.code for kind in REQUESTS} == DEFINITIONS.keys()
    assert {kind.code for kind in OPERATOR_REQUESTS} == OPERATIONS.keys()
    assert set(RequestCode) == DEFINITIONS.keys() | OPERATIONS.keys()
    assert len(ALL_REQUESTS) == len(RequestCode)


@pytest.mark.parametrize("kind", OPERATOR_REQUESTS, ids=lambda kind: kind.__name__)
def test_a_request_of_operators_is_as_defined(kind: type[RequestHeader]) -> None:
    defined = OPERATIONS[kind.code]

    assert_agree(kind, {entry["name"]: entry for entry in defined["request"]})
    assert CODES["request_codes"][defined["name"]]["code"] == kind.code
    if (since := operations.first_release(kind.code)) is not None:
        assert CODES["request_codes"][defined["name"]]["since"].startswith(since)
    else:
        assert "4.9.7" in CODES["request_codes"][defined["name"]]["known_by"]


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_request_header_is_as_defined(kind: type[RequestHeader]) -> None:
    assert_agree(kind, entries(DEFINITIONS[kind.code]["request"]))


@pytest.mark.parametrize(
    ("kind", "code"), ANSWERS, ids=[f"{code}-{kind.__name__}" for kind, code in ANSWERS]
)
def test_an_answers_header_is_as_defined(kind: type[Header], code: int) -> None:
    assert_agree(kind, entries(DEFINITIONS[code]["response"]))


def test_every_defined_answer_with_fields_has_a_header() -> None:
    defined = {
        code
        for code, each in DEFINITIONS.items()
        if "response" in each and entries(each["response"])
    }

    assert {code for _, code in ANSWERS} == defined - UNREAD
    responses = {kind for kind in HEADERS if not issubclass(kind, RequestHeader)}
    assert responses == RESPONSES.keys()


@pytest.mark.parametrize("kind", SHAPES, ids=lambda kind: kind.__name__)
def test_a_body_has_the_keys_that_are_defined(kind: type[bodies.Body]) -> None:
    for name in SHAPES[kind]:
        defined = shape(name)
        declared = {field.encode_name: field for field in fields(kind)}
        needed = {key for key, entry in defined.items() if entry["required"]}

        assert needed <= declared.keys() <= defined.keys()
        for key, field in declared.items():
            assert is_of(defined[key]["type"], python_type(field)), key


def is_of(defined: str, kind: type[Any]) -> bool:
    if defined.startswith("["):
        return kind is list
    if defined.startswith("{"):
        return kind in (dict, msgspec.Raw)
    if defined in PYTHON_TYPES:
        return kind is PYTHON_TYPES[defined] or (defined == "string" and issubclass(kind, StrEnum))
    return defined in set(SHAPES.get(kind, ()))


def _is_of_the_client(module: str) -> bool:
    return module.startswith("rocketmq_aio.") and not module.startswith("rocketmq_aio.embedded.")


def test_every_body_has_a_definition() -> None:
    kinds = {kind for kind in subclasses(bodies.Body) if _is_of_the_client(kind.__module__)}
    public = {kind for kind in kinds if not kind.__name__.startswith("_")}

    assert public == SHAPES.keys()


@pytest.mark.parametrize("code", DEFINITIONS)
def test_a_definition_is_complete(code: int) -> None:
    definition = DEFINITIONS[code]
    known = CODES["request_codes"][definition["name"]]
    answers = {str(entry["code"]) for entry in CODES["response_codes"].values()}

    assert (code, definition["known_by"]) == (known["code"], known["known_by"])
    assert definition["about"]
    assert definition["direction"] in (
        "client to broker",
        "client to name server",
        "broker to client",
    )
    assert definition["oneway"] in ("never", "optional", "usual", "always")
    assert ("response" in definition) == (definition["oneway"] != "always")
    assert definition.get("codes", {}).keys() <= answers
    for side in ("request", "response"):
        for field in definition.get(side, {"header": []})["header"]:
            assert field["meaning"], field["name"]


def test_every_definition_has_frames_of_a_java_client_and_a_server() -> None:
    for name, document in load_all("messages").items():
        exchanges = RECORDED[name]["exchanges"]
        directions = {exchange["direction"] for exchange in exchanges}

        assert document["code"] == RECORDED[name]["code"]
        assert directions == {document["direction"]}
    assert load_all("messages").keys() == RECORDED.keys()


def test_a_queue_is_the_same_value_as_json() -> None:
    queue = bodies.MessageQueueBody(topic="t", broker_name="b", queue_id=3)

    assert queue.queue() == MessageQueue("t", "b", 3)


def test_files_have_the_form_that_the_tools_write() -> None:
    pretty = runpy.run_path(str(PROTOCOL.parent / "tools/readable_json.py"))["pretty"]
    files = [
        PROTOCOL / "codes.json",
        *PROTOCOL.glob("messages/*.json"),
        *PROTOCOL.rglob("frames/**/*.json"),
    ]
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert text == pretty(json.loads(text)) + "\n", path
