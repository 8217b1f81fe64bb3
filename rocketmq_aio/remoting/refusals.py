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
ACCOUNT_CODES: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION)
ACL_1: Final = "AclException"
UNKNOWN_WORDS: Final = (
    "accessKey",
    "signature",
    "username cannot be null",
    "not found",
    "is disabled",
    "Authentication failed",
)
# Whom the broker knows, and what it does not let that account do.
DENIED_WORDS: Final = (
    "has no permission to access",
    "Authorization failed",
    "No default permission",
    "Need admin permission",
)


def refusal(command: Command, address: str) -> BrokerError:
    """Return the error that *command*, an answer from *address* that is no success, stands for."""
    code, remark = command.code, command.remark or ""
    kind = _account_kind(code, remark) or KINDS.get(code, BrokerError)
    return kind(code, command.remark, address)


def is_about_account(error: BrokerError) -> bool:
    """Whether the broker refuses the account, not the request: every broker will."""
    return _account_kind(error.code, error.remark or "") is not None


def _account_kind(code: int, remark: str) -> type[BrokerError] | None:
    # Of a code 1 only the exception tells: its words alone can be about anything.
    if code not in ACCOUNT_CODES or (code == ResponseCode.SYSTEM_ERROR and ACL_1 not in remark):
        return None
    if any(words in remark for words in DENIED_WORDS):
        return PermissionDeniedError
    if ACL_1 in remark or any(words in remark for words in UNKNOWN_WORDS):
        return AuthError
    return None
