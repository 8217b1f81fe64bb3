"""Retry policy: decides after each attempt whether a send is retried, and how it ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from time import monotonic
from typing import Final

from rocketmq_aio.errors import (
    NO_ADDRESS,
    NO_RESPONSE,
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
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.producer.send_request import SendRequest
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.remoting.backoff import Backoff, BackoffError
from rocketmq_aio.remoting.response_errors import is_about_account

# Response codes that another broker, or the same broker later, may not return.
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
INVALID_PARAMETER: Final = 29
# How the remark of a `SYSTEM_ERROR` begins if the code of a broker raised: the name of a class.
EXCEPTION: Final = re.compile(r"[\w.$]+\.[\w$]+(Exception|Error)\b")
TOO_LARGE: Final = "size exceeded"  # in the remark of a 5.5.0 broker, before it stores anything
UNKNOWN_QUEUE: Final = "request queueId["  # how the remark about a queue begins
# Rejections of the request itself: another attempt ends the same way.
FINAL_KINDS: Final = (SubscriptionError, OffsetIllegalError)


class RetryState:
    """The outcomes of the attempts of one send so far."""

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        self.failed: set[str] = set()  # names of the brokers that were really tried
        self.weaker: SendResult | None = None  # stored with another status than SEND_OK
        self._weaker_target = request.target
        self._attempts: list[SendAttempt] = []
        self._backoff = Backoff()
        self._backoff.failures = 1

    def should_retry(self, outcome: RocketMQError | SendResult, started: float) -> bool:
        """Record an outcome; return whether another attempt could end better."""
        if isinstance(outcome, SendResult):
            self.weaker, self._weaker_target = outcome, self.request.target
            return True
        if not isinstance(outcome, BackoffError):
            self.failed.add(self.request.target.broker_name)
        self._attempts.append(_attempt(self.request.target.address, outcome, started))
        # Another queue may exist: the topic has fewer than its route said.
        elsewhere = not self.request.fixed and is_unknown_queue(outcome)
        return elsewhere or is_retryable(outcome)

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt at a broker that was tried."""
        return self._backoff.next_pause()

    def result(self) -> SendResult:
        """Return the weaker result, or raise the error of all attempts."""
        if self.weaker is not None:
            self.request.target = self._weaker_target  # a later attempt may have changed it
            return self.weaker
        raise failure(self.request.topic, self.request.message_id, self._attempts)


def is_retryable(error: RocketMQError) -> bool:
    if isinstance(error, BrokerError):
        final = isinstance(error, FINAL_KINDS) or is_about_account(error)
        return error.code in RETRYABLE_CODES and not final
    return isinstance(error, NO_RESPONSE) and not isinstance(error, NotRunningError)


def is_unknown_queue(outcome: RocketMQError | SendResult) -> bool:
    """Whether a broker from 5.3.2 rejected the queue; older ones respond `SYSTEM_ERROR`."""
    if not isinstance(outcome, BrokerError) or outcome.code != INVALID_PARAMETER:
        return False
    return (outcome.remark or "").startswith(UNKNOWN_QUEUE)


def may_have_stored(error: BaseException) -> bool:
    """Whether the message may be stored although the attempt failed.

    A response that cannot be decoded counts: only responses of success are decoded that far.  So
    does an exception of the broker, which may come after the message was stored (seen with 4.9.7
    and 5.5.0 after ``flushDiskType`` of a running broker was changed).
    """
    if isinstance(error, BrokerError) and error.code == ResponseCode.SYSTEM_ERROR:
        remark = error.remark or ""
        is_raised = EXCEPTION.match(remark) is not None
        return is_raised and TOO_LARGE not in remark and not is_about_account(error)
    return isinstance(error, ConnectionLostError | RequestTimeoutError | CodecError)


def failure(topic: str, message_id: str, attempts: Sequence[SendAttempt]) -> RocketMQError:
    """Return the error of a send after its last attempt.

    An error that is not retryable, and the end of the client, are returned as they are, unless an
    earlier attempt may have stored the message.
    """
    last = attempts[-1].cause
    if any(may_have_stored(attempt.cause) for attempt in attempts):
        return SendUnknownError(topic, message_id, attempts)
    if isinstance(last, BrokerError) and not is_retryable(last):
        return last
    if isinstance(last, NotRunningError):
        return last
    return SendError(topic, message_id, attempts)


def never_sent(
    topic: str, reason: str, message_id: str = "", address: str = NO_ADDRESS
) -> SendError:
    """Return the error of a send that made no attempt."""
    cause = NotConnectedError(address, reason)
    return SendError(topic, message_id, [_attempt(NO_ADDRESS, cause, monotonic())])


def _attempt(address: str, cause: RocketMQError, started: float) -> SendAttempt:
    return SendAttempt(address=address, cause=cause, seconds=monotonic() - started)
