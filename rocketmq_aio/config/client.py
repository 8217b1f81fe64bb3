"""ClientConfig and Credentials: settings shared by all clients of an instance."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field, fields
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack

from rocketmq_aio.config.arguments import check_fields
from rocketmq_aio.config.validation import (
    MIB,
    bool_from,
    bounded,
    check_function,
    check_hook,
    check_settings,
    name_of,
    settings,
)
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.hooks import RPCHook
from rocketmq_aio.model.address import check_namesrv
from rocketmq_aio.model.names import check_client_id_part, check_namespace

HeaderEncoding: TypeAlias = Literal["json", "rocketmq"]
"""How request headers are written."""
NamespaceVersion: TypeAlias = Literal[1, 2]
OpenSocket: TypeAlias = Callable[[str, int], Awaitable[Any]]
"""Returns a ``socket.socket`` that is connected to a host and port."""

MIN_FRAME_BYTES: Final = 64 * 1024
TEXTS: Final = ("namesrv", "namespace", "instance_name", "unit_name", "header_encoding")
KEYS: Final = ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY")
RPC_METHODS: Final = ("before_request", "after_response")


@settings
class Credentials:
    """An account of the broker's access control; its repr hides the secrets.

    :param access_key: name of the account; of RocketMQ 5: of the user
    :param secret_key: signs requests and is never sent; of RocketMQ 5: the password
    :param security_token: of temporary accounts
    :raises ConfigError: one is not a non-empty string
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, blank=False)


class ClientSettings(TypedDict, total=False):
    """The settings of `ClientConfig` as keyword arguments of `ClientConfig.from_env`."""

    namesrv: str | None
    credentials: Credentials | Callable[[], Credentials] | None
    tls: ssl.SSLContext | bool
    namespace: str | None
    namespace_version: NamespaceVersion
    instance_name: str | None
    unit_name: str | None
    unit_mode: bool
    vip_channel: bool
    address_mapper: Callable[[str], str] | None
    open_socket: OpenSocket | None
    rpc_hooks: tuple[RPCHook, ...]
    request_timeout_seconds: float
    connect_timeout_seconds: float
    heartbeat_interval_seconds: float
    route_refresh_interval_seconds: float
    namesrv_refresh_interval_seconds: float
    heartbeat_v2: bool
    header_encoding: HeaderEncoding
    verify_checksums: bool
    allow_stack_dumps: bool
    allow_direct_consumption: bool
    allow_offset_resets: bool
    max_in_flight: int
    max_frame_bytes: int


@settings
class ClientConfig:
    """Connection settings, shared by all clients of an instance.

    :param namesrv: ``host:port``, several joined by ``;``, or the ``http://`` URL of an address
        server that returns such a list
    :param credentials: account that signs every request; or a plain function that returns it, for
        temporary accounts and passwords that change: it is called for each request
    :param tls: True verifies certificate and host name against the system's authorities; or an
        ``ssl.SSLContext``
    :param namespace: namespace of all topics and groups; the application's names do not contain it
    :param namespace_version: 1: brokers store names as ``<namespace>%<name>``; 2: requests carry
        the namespace in a separate field, for servers that require it
    :param instance_name: part of the client id; unique per process and instance by default
    :param unit_name: last part of the client id and of the address server's URL
    :param unit_mode: marks groups and messages as part of a unit
    :param vip_channel: send messages to the VIP port of brokers, their port less 2
    :param address_mapper: maps an advertised ``host:port`` to a reachable one (containers, tunnels)
    :param open_socket: async function that returns a socket connected to a host and port, for
        proxies and tunnels; it gets the host as routes or ``address_mapper`` name it
    :param rpc_hooks: called for every request and response, in this order
    :param request_timeout_seconds: of every request without a deadline of its own
    :param connect_timeout_seconds: of connecting, with TLS
    :param heartbeat_interval_seconds: brokers remove a client after two minutes without a heartbeat
    :param route_refresh_interval_seconds: the longest until new queues and brokers are noticed, by
        all clients with the same value at the same time of the wall clock
    :param namesrv_refresh_interval_seconds: how often the list of an address server is fetched
    :param header_encoding: encoding of request headers; both are decoded
    :param heartbeat_v2: send short heartbeats to brokers that support them (5.1.3 and later)
    :param verify_checksums: verify the checksum of every received body; checksums of compressed
        bodies and of inner batches are always verified
    :param allow_stack_dumps: respond to brokers that request the stacks of tasks and threads
    :param allow_direct_consumption: call the handler with a message that an administrator sends
        through a broker
    :param allow_offset_resets: move to offsets that an administrator sends through a broker
    :param max_in_flight: requests in flight per connection; further calls wait
    :param max_frame_bytes: longest accepted frame; a longer one closes the connection
    :raises ConfigError: a setting is invalid or unknown
    """

    namesrv: str | None = None
    credentials: Credentials | Callable[[], Credentials] | None = None
    tls: ssl.SSLContext | bool = False
    namespace: str | None = None
    namespace_version: NamespaceVersion = 1
    instance_name: str | None = None
    unit_name: str | None = None
    unit_mode: bool = False
    vip_channel: bool = False
    address_mapper: Callable[[str], str] | None = None
    open_socket: OpenSocket | None = None
    rpc_hooks: tuple[RPCHook, ...] = ()
    request_timeout_seconds: float = 3.0
    connect_timeout_seconds: float = 3.0
    heartbeat_interval_seconds: float = 30.0
    route_refresh_interval_seconds: float = 30.0
    namesrv_refresh_interval_seconds: float = 120.0
    heartbeat_v2: bool = False
    header_encoding: HeaderEncoding = "rocketmq"
    verify_checksums: bool = False
    allow_stack_dumps: bool = True
    allow_direct_consumption: bool = True
    allow_offset_resets: bool = True
    max_in_flight: int = 4096
    max_frame_bytes: int = bounded(default=16 * MIB, least=MIN_FRAME_BYTES)

    def __repr__(self) -> str:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        given = self.credentials
        shown = {name: repr(value) for name, value in values.items()}
        if given is not None and not isinstance(given, Credentials):
            shown["credentials"] = name_of(given)  # what is bound to it may be secret
        return f"ClientConfig({', '.join(f'{name}={text}' for name, text in shown.items())})"

    def __post_init__(self) -> None:
        if self.namesrv is not None:
            check_namesrv(self.namesrv)
        _check_credentials(self.credentials)
        if not isinstance(self.tls, bool | ssl.SSLContext):
            raise ConfigError("tls", self.tls, "expected True, False or an ssl.SSLContext")
        if self.address_mapper is not None:
            check_function("address_mapper", self.address_mapper, "address", may_be_async=False)
        if self.open_socket is not None:
            check_function("open_socket", self.open_socket, "host", "port")
        _check_rpc_hooks(self.rpc_hooks)
        check_settings(self)
        check_client_id_part(self, "instance_name", "unit_name")
        if self.namespace is not None:
            check_namespace(self.namespace)

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, **given: Unpack[ClientSettings]
    ) -> ClientConfig:
        """Read ``ROCKETMQ_*`` variables, then ``NAMESRV_ADDR``; *given* settings override them.

        ``ROCKETMQ_ACCESS_KEY``, ``ROCKETMQ_SECRET_KEY`` and ``ROCKETMQ_SECURITY_TOKEN`` are the
        credentials.  Texts, numbers and booleans have variables of their own names, for example
        ``ROCKETMQ_NAMESRV`` and ``ROCKETMQ_TLS`` (true or false).  An empty variable counts as
        not set.

        :param environ: default ``os.environ``
        :raises ConfigError: a variable has an invalid value
        """
        env = os.environ if environ is None else environ
        if not isinstance(env, Mapping):
            reason = "expected a mapping such as os.environ; settings have names: namesrv=..."
            raise ConfigError("environ", environ, reason)
        found: dict[str, Any] = {}
        if namesrv := env.get("NAMESRV_ADDR"):
            found["namesrv"] = namesrv
        for each in fields(cls):
            variable = f"ROCKETMQ_{each.name.upper()}"
            if text := env.get(variable):
                found |= _setting_from(variable, text, each.name, type(each.default))
        access_key, secret_key = (env.get(name, "") for name in KEYS)
        if access_key or secret_key:
            if not (access_key and secret_key):
                missing = KEYS[1] if access_key else KEYS[0]
                raise ConfigError(missing, None, f"{' and '.join(KEYS)} are needed together")
            found["credentials"] = Credentials(
                access_key=access_key,
                secret_key=secret_key,
                security_token=env.get("ROCKETMQ_SECURITY_TOKEN") or None,
            )
        return cls(**{**found, **given})  # rejects unknown names


def _check_credentials(credentials: object) -> None:
    if credentials is None or isinstance(credentials, Credentials):
        return
    if not callable(credentials):
        reason = "expected Credentials(...), or a function that returns them"
        raise ConfigError("credentials", "***", reason)
    check_function("credentials", credentials, may_be_async=False)


def _check_rpc_hooks(hooks: object) -> None:
    if not isinstance(hooks, tuple) or not all(isinstance(each, RPCHook) for each in hooks):
        raise ConfigError("rpc_hooks", hooks, "expected a tuple of RPCHook objects")
    for each in hooks:  # a class has the methods, too
        check_hook(each, RPCHook, RPC_METHODS, setting="rpc_hooks")


def _setting_from(variable: str, text: str, name: str, kind: type) -> dict[str, object]:
    """Return the setting *name*, if *text* can have it."""
    if kind is bool:
        return {name: bool_from(variable, text)}
    if kind in (int, float):
        try:
            return {name: kind(text)}
        except ValueError:
            raise ConfigError(variable, text, "expected a number") from None
    return {name: text} if name in TEXTS else {}
