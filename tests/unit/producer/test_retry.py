"""Retry policy."""

from __future__ import annotations

import pytest

from rocketmq_aio.errors import (
    AuthError,
    BrokerError,
    BusyError,
    ClosedError,
    CodecError,
    ConnectionLostError,
    NotConnectedError,
    NotSupportedError,
    PermissionDeniedError,
    RequestTimeoutError,
    RocketMQError,
    SendAttempt,
    SendError,
    SendUnknownError,
    SubscriptionError,
)
from rocketmq_aio.producer.retry import failure, is_retryable
from rocketmq_aio.remoting.connection import UnansweredClosedError, UnsentClosedError

A = "127.0.0.1:10911"
REFUSED = NotConnectedError(A, "refused")
LOST = ConnectionLostError(A, 310, "reset")
LATE = RequestTimeoutError(A, 310, 3.0)
BUSY = BusyError(2, "busy", A)
ILLEGAL = BrokerError(13, "the message is illegal", A)
DENIED = AuthError(16, "check signature failed.", A)
RAISED = BrokerError(1, "java.lang.ClassCastException: class A cannot be cast to class B, x()", A)
UNSENT = UnsentClosedError(A, "the client was closed")
UNANSWERED = UnansweredClosedError(A, 310, "the client was closed")
UNREADABLE = CodecError("msgId", 0, "missing")


def ended(*causes: RocketMQError) -> RocketMQError:
    attempts = [SendAttempt(address=A, cause=cause, seconds=0.1) for cause in causes]
    return failure("orders", "0A", attempts)


@pytest.mark.parametrize(
    ("error", "retried"),
    [
        (REFUSED, True),
        (LOST, True),
        (LATE, True),
        (BUSY, True),
        (BusyError(215, "flow control", A), True),
        (BrokerError(1, "store error", A), True),
        (BrokerError(14, "not available", A), True),
        (BrokerError(17, "no topic", A), True),
        (PermissionDeniedError(16, "sending is forbidden", A), True),
        (BrokerError(1500, "go away", A), True),
        (ILLEGAL, False),
        (DENIED, False),
        (AuthError(1, "AclException", A), False),
        (PermissionDeniedError(16, "User:x has no permission to access Topic:orders", A), False),
        (PermissionDeniedError(1, "AclException: No default permission for topic", A), False),
        (NotSupportedError(3, "no such request", A), False),
        (SubscriptionError(26, "no group", A), False),
        (BrokerError(31999, "unheard of", A), False),
        (ClosedError("closed"), False),
        (UNSENT, False),
        (UNANSWERED, False),
        (UNREADABLE, False),
    ],
)
def test_errors_that_may_pass_are_retried(error: RocketMQError, retried: bool) -> None:
    assert is_retryable(error) is retried


@pytest.mark.parametrize(
    ("causes", "kind"),
    [
        ((REFUSED,), SendError),
        ((REFUSED, BUSY), SendError),
        ((BrokerError(1, "store error", A),), SendError),
        ((BrokerError(1, "java.lang.RuntimeException: message size exceeded, x()", A),), SendError),
        ((RAISED,), SendUnknownError),
        ((RAISED, REFUSED), SendUnknownError),
        ((LOST,), SendUnknownError),
        ((UNANSWERED,), SendUnknownError),
        ((LOST, UNSENT), SendUnknownError),
        ((LATE, REFUSED, REFUSED), SendUnknownError),
        ((REFUSED, LATE), SendUnknownError),
        ((LOST, ILLEGAL), SendUnknownError),
        ((UNREADABLE,), SendUnknownError),
        ((LOST, ClosedError("closed")), SendUnknownError),
    ],
)
def test_a_send_is_unknown_if_any_attempt_may_have_stored_it(
    causes: tuple[RocketMQError, ...], kind: type[SendError]
) -> None:
    error = ended(*causes)

    assert type(error) is kind
    assert isinstance(error, SendError)
    assert [attempt.cause for attempt in error.attempts] == list(causes)
    assert (error.topic, error.message_id) == ("orders", "0A")


@pytest.mark.parametrize("last", [ILLEGAL, DENIED, ClosedError("closed"), UNSENT])
def test_failure_returns_a_final_error_as_it_is(last: RocketMQError) -> None:
    assert ended(last) is last
    assert ended(REFUSED, last) is last


def test_failure_of_a_busy_broker_is_a_send_error() -> None:
    error = ended(BUSY, BUSY)

    assert type(error) is SendError
    assert "busy" in str(error)
