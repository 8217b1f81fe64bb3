"""Who a client is to brokers with access control."""

from __future__ import annotations

from dataclasses import field

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.settings import settings


@settings
class Credentials:
    """An account of the broker's access control; its repr shows no secret."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.access_key, str) or not self.access_key:
            raise ConfigError("access_key", self.access_key, "expected a non-empty string")
        if not isinstance(self.secret_key, str) or not self.secret_key:
            raise ConfigError("secret_key", "***", "expected a non-empty string")
        token = self.security_token
        if token is not None and (not isinstance(token, str) or not token):
            raise ConfigError("security_token", "***", "expected a non-empty string or None")
