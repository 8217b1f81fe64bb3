"""Signatures; recorded frames prove that they equal those of the Java client."""

from __future__ import annotations

from rocketmq_aio.config.client import Credentials
from rocketmq_aio.remoting.acl import sign

ACCOUNT = Credentials(access_key="admin", secret_key="adminsecret")


def signature(fields: dict[str, str], body: bytes = b"", account: Credentials = ACCOUNT) -> str:
    sign(fields, body, account)
    return fields["Signature"]


def test_the_account_is_named_and_the_secret_is_not() -> None:
    fields = {"topic": "orders"}
    sign(fields, b"", ACCOUNT)

    assert fields["AccessKey"] == "admin"
    assert set(fields) == {"topic", "AccessKey", "Signature"}
    assert "adminsecret" not in str(fields)


def test_every_value_and_the_body_count() -> None:
    base = signature({"topic": "orders", "queueId": "1"}, b"body")

    assert signature({"topic": "orders", "queueId": "2"}, b"body") != base
    assert signature({"topic": "orders", "queueId": "1"}, b"other") != base
    assert signature({"queueId": "1", "topic": "orders"}, b"body") == base


def test_signing_again_replaces_the_signature() -> None:
    fields = {"topic": "orders"}
    first = signature(fields)

    assert signature(fields) == first


def test_a_security_token_is_sent_and_signed() -> None:
    account = Credentials(access_key="admin", secret_key="adminsecret", security_token="token")
    fields = {"topic": "orders"}

    assert signature(fields, account=account) != signature({"topic": "orders"})
    assert fields["SecurityToken"] == "token"


def test_text_outside_ascii_is_signed_as_utf8() -> None:
    assert signature({"topic": "訂單"}) != signature({"topic": "??"})
