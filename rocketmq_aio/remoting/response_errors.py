"""Response codes to exception types."""

from __future__ import annotations

import re
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

# Rejected accounts: 4.9 returns code 1 with the name of a Java exception, 5.3 and later code 16
# (verified with 4.9.7 and 5.5.0).  The patterns match whole phrases at the beginning of the
# remark: the rest may quote the name of a topic or group.
LONGEST: Final = 1000  # what is searched of a remark: a search takes many times its memory
ACCOUNT_CODES: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION)
ACL_EXCEPTION: Final = re.compile(r"(?:[\w.$]+: )*[\w.$]*AclException(?:: ?|$)")
# Unknown account or failed authentication.
UNKNOWN_ACCOUNT: Final = re.compile(
    r"No (?:accessKey is configured|acl config for |PlainAccessResource for accessKey=)"
    r"|[Cc]heck signature failed"
    r"|username cannot be null"
    r"|User:.* (?:not found|is disabled)\.?$"
    r"|Authentication failed\b"
    r"|authentication (?:header|keyValues length|credential length) is incorrect"
    r"|create authentication context error"
)
# Authenticated account without the permission.
DENIED_ACCOUNT: Final = re.compile(
    r"User:.* has no permission to access "
    r"|Authorization failed\b"
    r"|No default permission for "
    r"|Need admin permission for "
)

# ``enablePropertyFilter`` is off: also code 1 (4.9.7 and 5.5.0).
NO_SQL: Final = "The broker does not support consumer to filter message by "


def broker_error(command: Command, address: str) -> BrokerError:
    """Return the error for *command*, an unsuccessful response from *address*."""
    code, remark = command.code, command.remark or ""
    kind = _account_kind(code, remark) or KINDS.get(code, BrokerError)
    if code == ResponseCode.SYSTEM_ERROR and remark.startswith(NO_SQL):
        kind = SubscriptionError
    return kind(code, command.remark, address)


def is_about_account(error: BrokerError) -> bool:
    """Whether the broker rejected the account, not the request: every broker would."""
    return _account_kind(error.code, error.remark or "") is not None


def _account_kind(code: int, remark: str) -> type[BrokerError] | None:
    if code not in ACCOUNT_CODES:
        return None
    remark = remark[:LONGEST]
    exception = ACL_EXCEPTION.match(remark)
    # Code 1 is generic: only the name of the exception is conclusive.
    if code == ResponseCode.SYSTEM_ERROR and exception is None:
        return None
    start = 0 if exception is None else exception.end()
    if DENIED_ACCOUNT.match(remark, start):
        return PermissionDeniedError
    if exception is not None or UNKNOWN_ACCOUNT.match(remark, start):
        return AuthError
    return None
