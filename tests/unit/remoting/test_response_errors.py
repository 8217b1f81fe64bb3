"""Response errors: the exception type of each response code."""

from __future__ import annotations

import pytest

from rocketmq_aio.errors import (
    AuthError,
    BrokerError,
    BusyError,
    NotSupportedError,
    OffsetIllegalError,
    PermissionDeniedError,
    SubscriptionError,
)
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.remoting.response_errors import broker_error, is_about_account
from tests.unit.costs import peak_bytes

ADDRESS = "127.0.0.1:10911"
DENIED = PermissionDeniedError
ACL_4 = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, AclException"


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (1, "something broke", BrokerError),
        (1, ACL_4, AuthError),
        (1, "AclException: Check signature failed for accessKey=admin", AuthError),
        (1, "AclException: No default permission for topic:others", PermissionDeniedError),
        (1, "AclException: Need admin permission for request code=17", PermissionDeniedError),
        (1, "Authorization failed", BrokerError),
        (1, "AclException: No default permission for AclException", PermissionDeniedError),
        (1, "topic[AclException: signature] not exist", BrokerError),
        (1, "The broker does not support consumer to filter message by SQL92", SubscriptionError),
        (2, "[REJECTREQUEST]system busy, start flow control for a while", BusyError),
        (3, "request type 9999 not supported", NotSupportedError),
        (13, "the message is illegal", BrokerError),
        (14, "service not available now", BrokerError),
        (16, "the broker[broker-a] sending message is forbidden", PermissionDeniedError),
        (16, "the topic[contract-signature-events] sending message is forbidden", DENIED),
        (16, "subscription group no permission, accessKey", DENIED),
        (16, "subscription group no permission, User:x is not found.", DENIED),
        (16, "Sending message to topic[Authentication failed] is forbidden.", DENIED),
        (16, "the consumer group[is disabled] is forbidden for topic[not found]", DENIED),
        (16, "User:x has no permission to access Topic:signature from 127.0.0.1, denied.", DENIED),
        (16, "No accessKey is configured", AuthError),
        (16, "Check signature failed for accessKey=admin", AuthError),
        (16, "No default permission for signature", DENIED),
        (16, "username cannot be null.", AuthError),
        (16, "User:x is not found.", AuthError),
        (16, "User:x is disabled.", AuthError),
        (16, "check signature failed.", AuthError),
        (16, "User:x not found.", AuthError),
        (16, "Authentication failed. Please verify the credentials.", AuthError),
        (16, "Authorization failed. Please verify your access rights.", PermissionDeniedError),
        (16, "User:x has no permission to access Topic:T", PermissionDeniedError),
        (17, "topic[orders] not exist", BrokerError),
        (17, "topic is not found", BrokerError),
        (21, "the offset is illegal", OffsetIllegalError),
        (23, "parse the consumer's subscription failed", SubscriptionError),
        (24, "the consumer's subscription not exist", SubscriptionError),
        (25, "the consumer's subscription not latest", SubscriptionError),
        (26, "subscription group [g] does not exist", SubscriptionError),
        (215, "flow control", BusyError),
        (31999, None, BrokerError),
    ],
)
def test_response_codes_map_to_exception_types(
    code: int, remark: str | None, kind: type[BrokerError]
) -> None:
    error = broker_error(Command(code, 1, remark=remark), ADDRESS)

    assert type(error) is kind
    assert (error.code, error.remark, error.address) == (code, remark, ADDRESS)


@pytest.mark.parametrize(
    ("code", "remark", "about"),
    [
        (16, "User:x has no permission to access Topic:T", True),
        (16, "username cannot be null.", True),
        (16, "the broker[broker-a] sending message is forbidden", False),
        (16, "the topic[contract-signature-events] sending message is forbidden", False),
        (16, "the topic[Authorization failed] sending message is forbidden", False),
        (1, ACL_4, True),
        (1, "something broke", False),
        (2, "AclException", False),
    ],
)
def test_account_errors_are_recognised(code: int, remark: str, about: bool) -> None:
    assert is_about_account(BrokerError(code, remark, ADDRESS)) is about


def test_a_long_remark_takes_no_more_memory_than_it_has() -> None:
    remark = "a: " * 500_000  # each may begin the name of an exception

    assert peak_bytes(lambda: broker_error(Command(1, 1, remark=remark), ADDRESS)) < len(remark)
