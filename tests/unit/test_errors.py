"""Errors: facts as attributes, escaped network text, pickling."""

import copy
import pickle
import threading
from collections.abc import Callable, Mapping

import pytest

from rocketmq_aio import errors
from rocketmq_aio.errors import (
    AckError,
    AdminError,
    AuthError,
    BackpressureError,
    BatchError,
    BrokerError,
    BusyError,
    ClosedError,
    CodecError,
    CommitError,
    ConfigError,
    ConnectionLostError,
    HalfMessageError,
    InvalidMessageError,
    MessageNotFoundError,
    NameServerUnavailableError,
    NotConnectedError,
    NotRunningError,
    NotSupportedError,
    OffsetIllegalError,
    PayloadError,
    PermissionDeniedError,
    ReceiptError,
    ReplyTimeoutError,
    RequestTimeoutError,
    RocketMQError,
    RouteNotFoundError,
    SendAttempt,
    SendError,
    SendUnknownError,
    SubscriptionError,
    UnreadableMessagesError,
    shown,
)
from rocketmq_aio.model.errors import REMARK_SHOWN
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue, SendResult, SendStatus
from tests.unit.costs import MIB, cpu_seconds

QUEUE = MessageQueue("orders", "broker-a", 3)
MESSAGE = MessageExt("orders", b"x", QUEUE, 5, b"", b"")
FORGED = "fine\nERROR all is lost\r\x1b[31m\u2028\u202e"
ATTEMPTS = [
    SendAttempt(
        address="10.0.0.1:10911", cause=NotConnectedError("10.0.0.1:10911", "no"), seconds=0.5
    ),
    SendAttempt(address="10.0.0.2:10911", cause=BusyError(2, FORGED, "10.0.0.2:10911"), seconds=1),
]
STORED = SendResult(SendStatus.SEND_OK, "ID", "OFFSET", QUEUE, 5)
BROKER_KINDS = (
    BrokerError,
    AuthError,
    PermissionDeniedError,
    BusyError,
    SubscriptionError,
    OffsetIllegalError,
    NotSupportedError,
    MessageNotFoundError,
)

CLOSED = ClosedError("closed")
EVERY_ERROR: Mapping[RocketMQError, dict[str, object]] = {
    RocketMQError("text"): {},
    ConfigError("retries", -1, "too few"): {"setting": "retries", "value": -1, "reason": "too few"},
    InvalidMessageError("a.b", "a dot"): {"topic": "a.b", "reason": "a dot"},
    NotRunningError("not started"): {},
    ClosedError("closed"): {},
    NameServerUnavailableError({"a:1": OSError("refused")}): {},
    RouteNotFoundError("orders", "no such topic"): {"topic": "orders"},
    NotConnectedError("a:1", "refused"): {"address": "a:1", "reason": "refused"},
    ConnectionLostError("a:1", 310, "reset"): {"address": "a:1", "code": 310, "reason": "reset"},
    RequestTimeoutError("a:1", 310, 3.0): {"address": "a:1", "code": 310, "seconds": 3.0},
    **{kind(1, "why", "a:1"): {"code": 1, "remark": "why"} for kind in BROKER_KINDS},
    SendError("orders", "ID", ATTEMPTS[:1]): {"topic": "orders", "message_id": "ID"},
    SendUnknownError("orders", "ID", ATTEMPTS): {"topic": "orders", "message_id": "ID"},
    BackpressureError("orders", 4, 9): {"topic": "orders", "in_flight": 4, "in_flight_bytes": 9},
    HalfMessageError(STORED): {"result": STORED},
    BatchError([STORED, SendError("orders", "ID", [])]): {},
    CommitError({QUEUE: OSError("no")}): {},
    AdminError("deleting", {"broker-a": None}, {"broker-b": CLOSED}): {"action": "deleting"},
    ReceiptError("ID", "late"): {"message_id": "ID", "reason": "late"},
    ReplyTimeoutError("t", "ID", "late"): {"topic": "t", "message_id": "ID", "reason": "late"},
    AckError([(MESSAGE, ReceiptError("ID", "late"))]): {},
    UnreadableMessagesError([], [(MESSAGE, CodecError("body", 0, "lz4"))]): {"messages": ()},
    CodecError("magic", 4, "wrong"): {"field": "magic", "position": 4, "reason": "wrong"},
    PayloadError("JSONCodec()", "cut"): {"codec": "JSONCodec()", "reason": "cut"},
}  # fmt: skip

each_error = pytest.mark.parametrize(
    ("error", "facts"), EVERY_ERROR.items(), ids=[type(error).__name__ for error in EVERY_ERROR]
)


def test_every_error_is_tested_here() -> None:
    declared = {
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, RocketMQError)
    }

    assert {type(error) for error in EVERY_ERROR} == declared


@each_error
def test_error_details_are_attributes(error: RocketMQError, facts: dict[str, object]) -> None:
    assert {name: getattr(error, name) for name in facts} == facts


@each_error
def test_an_error_can_be_copied_and_pickled(error: RocketMQError, facts: dict[str, object]) -> None:
    for twin in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert {name: getattr(twin, name) for name in facts} == facts


@pytest.mark.parametrize(
    "make",
    [lambda value: ConfigError("x", value, "no"), lambda value: InvalidMessageError(value, "no")],
)
def test_an_error_about_a_value_without_a_text_has_its_type(
    make: Callable[[object], RocketMQError],
) -> None:
    class Silent:
        def __repr__(self) -> str:
            raise ValueError("no text")

    assert "Silent" in str(make(Silent()))


def test_a_value_that_cannot_be_pickled_is_pickled_as_its_text() -> None:
    error = ConfigError("offset_store", threading.Lock(), "no")

    twin = pickle.loads(pickle.dumps(error))

    assert str(twin) == str(error)
    assert (twin.setting, twin.reason) == ("offset_store", "no")
    assert "lock object" in twin.value


def test_notes_survive_a_pickle() -> None:
    error = CodecError("magic", 4, "wrong")
    error.add_note("while pulling")

    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while pulling"]


def test_send_attempts_can_be_pickled() -> None:
    twin = pickle.loads(pickle.dumps(SendUnknownError("orders", "ID", ATTEMPTS)))

    assert [type(attempt.cause) for attempt in twin.attempts] == [NotConnectedError, BusyError]
    assert twin.attempts[1].cause.remark == FORGED


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (ConfigError, ValueError),
        (InvalidMessageError, ValueError),
        (PayloadError, ValueError),
        (RequestTimeoutError, TimeoutError),
        (ReplyTimeoutError, TimeoutError),
        (SendUnknownError, SendError),
        (ClosedError, NotRunningError),
        *[(kind, BrokerError) for kind in BROKER_KINDS],
    ],
)
def test_errors_have_their_builtin_bases(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)


# --- messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("retries", -1, "at least 0"), "retries=-1: at least 0"),
        (InvalidMessageError("a.b", "a dot"), "message for topic 'a.b': a dot"),
        (CodecError("magic", 4, "wrong"), "magic at byte 4: wrong"),
        (RequestTimeoutError("a:1", 310, 3.0), "a:1: no response to request 310 within 3 s"),
        (BrokerError(17, "no topic", "a:1"), "a:1: code 17: no topic"),
        (BrokerError(1, None, "a:1"), "a:1: code 1: no remark"),
        (BrokerError(26, "no group"), "code 26: no group"),
        (NameServerUnavailableError({}), "no name server responded (none is configured)"),
        (
            NameServerUnavailableError({"a:1": OSError("refused"), "b:2": OSError("reset")}),
            "no name server responded (a:1: refused; b:2: reset)",
        ),
        (
            AdminError("deleting t", {"broker-a": None}, {"broker-b": ClosedError("closed")}),
            "deleting t failed on 1 of 2 servers: broker-b: closed; done on broker-a",
        ),
        (CommitError({QUEUE: OSError("no")}), "1 queue(s) not committed: orders/broker-a/3: no"),
        (
            AckError([(MESSAGE, ReceiptError("ID", "late"))]),
            "1 message(s) not surely acknowledged: message ID: late",
        ),
    ],
)
def test_error_messages_contain_the_details(error: Exception, text: str) -> None:
    assert str(error) == text


def test_a_send_error_lists_attempts_and_outcome() -> None:
    surely, perhaps = (kind("orders", "ID", ATTEMPTS) for kind in (SendError, SendUnknownError))

    assert "the message was not stored" in str(surely)
    assert "it may have been stored" in str(perhaps)
    for error in (surely, perhaps):
        assert "10.0.0.1:10911 after 0.500 s: NotConnectedError" in str(error)
        assert "10.0.0.2:10911 after 1.000 s: BusyError" in str(error)


def test_a_send_error_lists_the_last_attempts() -> None:
    error = SendError("orders", "ID", ATTEMPTS * 20)

    assert "not stored: 35 more attempts; 10.0.0.2:10911 after" in str(error)
    assert str(error).count("BusyError") == 3
    assert len(error.attempts) == 40


def test_a_send_error_without_a_request_has_its_reason_alone() -> None:
    attempt = SendAttempt(address="-", cause=NotConnectedError("-", "no room"), seconds=0.0)

    assert str(SendError("orders", "", [attempt])) == (
        "send to 'orders' failed, the message was not stored: no room"
    )


def test_attributes_are_copies_of_their_sources() -> None:
    causes: dict[str, BaseException] = {"a:1": OSError("refused")}
    error = NameServerUnavailableError(causes)
    causes.clear()

    assert list(error.addresses) == ["a:1"]


# --- text from the network ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(1, FORGED, "a:1"),
        SendError("orders", "ID", ATTEMPTS),
        NameServerUnavailableError({"a:1": BrokerError(1, FORGED)}),
        RouteNotFoundError(FORGED, "no"),
        InvalidMessageError(FORGED, "no"),
        CommitError({MessageQueue("t", FORGED, 0): OSError(FORGED)}),
        AdminError(FORGED, {FORGED: None}, {FORGED: ClosedError(FORGED)}),
        ConfigError("topic", FORGED, "no"),
        PayloadError("JSONCodec()", FORGED),
        ReceiptError(FORGED, "no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_network_text_cannot_forge_log_lines(error: RocketMQError) -> None:
    assert str(error).isprintable()


def test_a_remark_is_stored_whole_and_shown_shortened() -> None:
    remark = "java.lang.RuntimeException\n" + "\tat org.apache\n" * 1000
    error = BrokerError(1, remark, "a:1")

    assert error.remark == remark
    assert len(str(error)) < REMARK_SHOWN + 100
    assert str(error).endswith("...")


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        (None, ""),
        ("", ""),
        ("plain 文字", "plain 文字"),
        ("a\nb\tc\x00d\x7fe\x85f", "a b c d e f"),
        ("\u202eabc\u200b", " abc "),
        ("\ud800", " "),
        ("x" * REMARK_SHOWN, "x" * REMARK_SHOWN),
        ("x" * (REMARK_SHOWN + 1), "x" * REMARK_SHOWN + "..."),
    ],
)
def test_shown_text_is_one_short_line(text: str | None, safe: str) -> None:
    assert shown(text) == safe


def test_a_huge_remark_is_shown_in_bounded_time() -> None:
    huge = "x" * 16 * MIB

    assert cpu_seconds(lambda: shown(huge)) < 0.1


@pytest.mark.parametrize("kind", [ConfigError, InvalidMessageError])
def test_a_long_value_is_shortened_in_the_message(kind: type[RocketMQError]) -> None:
    value = "x" * 100_000

    error = ConfigError("topic", value, "why") if kind is ConfigError else kind(value, "why")

    assert str(error).endswith("xxx...: why")
    assert len(str(error)) < REMARK_SHOWN + 50
    assert value in (getattr(error, "value", None), getattr(error, "topic", None))
