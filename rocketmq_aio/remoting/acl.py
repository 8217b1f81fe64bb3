"""Request signatures for RocketMQ access control (the same in 1.0 and 2.0).

A signature authenticates; it neither encrypts nor prevents replay: use TLS.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable, Mapping, MutableMapping

from rocketmq_aio.config.client import Credentials
from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.errors import NotConnectedError

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"


def current_credentials(
    credentials: Credentials | Callable[[], Credentials], address: str
) -> Credentials:
    """Return the account that signs a request to *address* now.

    :raises NotConnectedError: the application's function raised, or returned something else
    """
    if isinstance(credentials, Credentials):
        return credentials
    try:
        found: object = credentials()
    except APPLICATION_ERRORS as error:
        raise NotConnectedError(address, f"credentials() raised {type(error).__name__}") from error
    if not isinstance(found, Credentials):
        reason = f"credentials() returned {type(found).__name__}, expected Credentials"
        raise NotConnectedError(address, reason)
    return found


def sign(ext_fields: MutableMapping[str, str], body: bytes, credentials: Credentials) -> None:
    """Add access key and signature to *ext_fields*; add nothing afterwards.

    The signature covers the values of all fields, sorted by name, and the body.
    """
    ext_fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        ext_fields[SECURITY_TOKEN] = credentials.security_token
    ext_fields.pop(SIGNATURE, None)
    ext_fields[SIGNATURE] = signature_of(ext_fields, body, credentials.secret_key)


def signature_of(signed_fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """Return the signature of *signed_fields* and *body*."""
    # Java sorts by UTF-16 units: the same order for field names, which are ASCII.
    signed = "".join([signed_fields[name] for name in sorted(signed_fields)]).encode() + body
    return b64encode(hmac.digest(secret_key.encode(), signed, "sha1")).decode()
