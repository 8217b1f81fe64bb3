"""Which error a response code is: one type per decision of the caller."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.errors import (
    AuthError,
    BrokerError,
    BusyError,
    NotSupportedError,
    OffsetIllegalError,
    PermissionDeniedError,
    SubscriptionError,
)
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.command import Command

KINDS: Final[dict[int, type[BrokerError]]] = {
    ResponseCode.SYSTEM_BUSY: BusyError,
    ResponseCode.FLOW_CONTROL: BusyError,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: NotSupportedError,
    ResponseCode.NO_PERMISSION: PermissionDeniedError,
    ResponseCode.PULL_OFFSET_MOVED: OffsetIllegalError,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: SubscriptionError,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionError,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: SubscriptionError,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: SubscriptionError,
    ResponseCode.FILTER_DATA_NOT_EXIST: SubscriptionError,
    ResponseCode.FILTER_DATA_NOT_LATEST: SubscriptionError,
}

# The words by which brokers refuse an account: 4.9 answers 1 with the name of a Java exception,
# 5.3 and later answer 16 (seen on live 4.9.7 and 5.5.0 brokers).
ACCOUNT_WORDS: Final = (
    "AclException",
    "accessKey",
    "signature",
    "username cannot be null",
    "is not found",
    "is disabled",
)


def refusal(command: Command, address: str) -> BrokerError:
    """Return the error that *command*, an answer from *address* that is no success, stands for."""
    remark = command.remark or ""
    kind = KINDS.get(command.code, BrokerError)
    denied = command.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION)
    if denied and any(words in remark for words in ACCOUNT_WORDS):
        # "is not found" alone can be about anything: only a code 16 about a user is an account.
        about_account = "AclException" in remark or command.code == ResponseCode.NO_PERMISSION
        kind = AuthError if about_account else kind
    return kind(command.code, command.remark, address)
