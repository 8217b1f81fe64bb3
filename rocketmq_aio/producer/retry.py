"""What a failed attempt means for the send: try again, elsewhere, or stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketmq_aio.errors import (
    BrokerError,
    CodecError,
    ConnectionLostError,
    NotConnectedError,
    NotRunningError,
    OffsetIllegalError,
    RequestTimeoutError,
    RocketMQError,
    SendAttempt,
    SendError,
    SendUnknownError,
    SubscriptionError,
)
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.remoting.response_errors import is_about_account

# Codes of a broker that another broker, or the same one later, may not answer with.
RETRYABLE_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.GO_AWAY,
    }
)
TRANSPORT: Final = (NotConnectedError, ConnectionLostError, RequestTimeoutError)


# Refusals that concern the request itself: another attempt ends the same way.
FINAL_KINDS: Final = (SubscriptionError, OffsetIllegalError)


def is_retryable(error: RocketMQError) -> bool:
    """Whether another attempt can end differently."""
    if isinstance(error, BrokerError):
        final = isinstance(error, FINAL_KINDS) or is_about_account(error)
        return error.code in RETRYABLE_CODES and not final
    return isinstance(error, TRANSPORT)


def may_have_stored(error: BaseException) -> bool:
    """Whether the message may be in the log although the attempt failed.

    An answer that cannot be read is one: only a yes is read that closely.
    """
    return isinstance(error, ConnectionLostError | RequestTimeoutError | CodecError)


def failure(topic: str, message_id: str, attempts: Sequence[SendAttempt]) -> RocketMQError:
    """Return the error that ends the send: what is known of all its attempts.

    A refusal that no retry can change is raised as the broker said it, and the end of the client
    as such, unless an earlier attempt may have stored the message.
    """
    last = attempts[-1].cause
    if any(may_have_stored(attempt.cause) for attempt in attempts):
        return SendUnknownError(topic, message_id, attempts)
    if isinstance(last, BrokerError) and not is_retryable(last):
        return last
    if isinstance(last, NotRunningError):
        return last
    return SendError(topic, message_id, attempts)
