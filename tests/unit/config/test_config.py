"""Settings: invalid values are rejected, and secrets are never shown."""

import math
import pprint
import ssl
import sys
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig, Credentials
from rocketmq_aio.config.consumer import ConsumerConfig, LitePullConfig, PopConfig, PushConfig
from rocketmq_aio.config.producer import AutoBatch, Compression, ProducerConfig
from rocketmq_aio.consumer.offsets.local_file import LocalFileOffsetStore
from rocketmq_aio.consumer.rebalance.strategies.averagely import AllocateAveragely
from rocketmq_aio.errors import ConfigError, RocketMQError
from rocketmq_aio.model.codec import JSONCodec, MsgpackCodec, RawCodec
from rocketmq_aio.model.values import MessageModel

Settings = type[Any]
SECRET = "canary-9f3a"
STORE = LocalFileOffsetStore()
KINDS: list[Settings] = [ClientConfig, ProducerConfig, ConsumerConfig, LitePullConfig]
NUMBERS = [
    (kind, field.name, type(field.default))
    for kind in KINDS
    for field in fields(kind)
    if type(field.default) in (int, float)
]
SECONDS = [(kind, name) for kind, name, _ in NUMBERS if name.endswith("_seconds")]
COUNTS = [(kind, name) for kind, name, number in NUMBERS if number is int]
NO_SECONDS: list[object] = [0, 0.0, -1, -0.001, math.nan, math.inf, 10**9, "3", None, True, [3]]
NO_COUNTS: list[object] = [-1, 1.5, 5.0, "5", None, True, 2**53]
SWITCHES = [
    (kind, field.name) for kind in KINDS for field in fields(kind) if type(field.default) is bool
]


class Hook:
    """A hook that does nothing."""

    def before_request(self, *_: object) -> None: ...
    def after_response(self, *_: object) -> None: ...


class AsyncHook(Hook):
    """A hook that would never be awaited."""

    async def before_request(self, *_: object) -> None: ...  # type: ignore[override]


def refusal(make: Callable[..., object], **settings: object) -> ConfigError:
    """Return why *settings* are refused."""
    with pytest.raises(ConfigError) as caught:
        make(**settings)
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_the_defaults_are_valid(kind: Settings) -> None:
    assert kind() == kind()
    assert hash(kind()) == hash(kind())


@pytest.mark.parametrize("kind", KINDS)
def test_settings_are_frozen_and_keyword_only(kind: Settings) -> None:
    name = fields(kind)[0].name

    with pytest.raises(FrozenInstanceError):
        setattr(kind(), name, None)
    with pytest.raises(TypeError):
        kind("127.0.0.1:9876")


def test_replace_validates_the_copy() -> None:
    config = replace(ClientConfig(), max_in_flight=5)

    assert config.max_in_flight == 5
    assert refusal(lambda: replace(config, max_in_flight=0)).setting == "max_in_flight"


# --- typing errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "typo", "meant"),
    [
        (ClientConfig, "namesrvr", "namesrv"),
        (ClientConfig, "request_timeout", "request_timeout_seconds"),
        (ClientConfig, "instanceName", "instance_name"),
        (ProducerConfig, "retry", "retries"),
        (ConsumerConfig, "start_form", "start_from"),
        (LitePullConfig, "autocommit", "auto_commit"),
        (LitePullConfig, "pull_batch", "pull_batch_size"),
    ],
)
def test_a_misspelt_setting_suggests_the_known_one(kind: Settings, typo: str, meant: str) -> None:
    error = refusal(kind, **{typo: 5})

    assert (error.setting, error.value) == (typo, 5)
    assert str(error) == f"{typo}=5: unknown setting of {kind.__name__}; did you mean {meant}?"


def test_an_unknown_setting_lists_the_known_ones() -> None:
    error = refusal(ProducerConfig, zzz=1)

    assert all(field.name in error.reason for field in fields(ProducerConfig))


def test_a_setting_of_another_config_is_rejected() -> None:
    assert refusal(ConsumerConfig, auto_commit=True).setting == "auto_commit"
    assert refusal(LitePullConfig, namesrv="h:1").setting == "namesrv"


# --- numbers and choices ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *[(*each, value) for each in SECONDS for value in NO_SECONDS],
        *[(*each, value) for each in COUNTS for value in NO_COUNTS],
    ],
)
def test_numbers_must_be_in_their_range(kind: Settings, name: str, value: object) -> None:
    error = refusal(kind, **{name: value})

    assert error.setting == name
    assert repr(value) in str(error)


@pytest.mark.parametrize(("kind", "name"), SECONDS)
@pytest.mark.parametrize("value", [0.001, 1, 3600])
def test_seconds_may_be_int_or_float(kind: Settings, name: str, value: float) -> None:
    assert getattr(kind(**{name: value}), name) == value


@pytest.mark.parametrize(("kind", "name"), [each for each in COUNTS if each[1] != "retries"])
def test_only_retries_may_be_zero(kind: Settings, name: str) -> None:
    assert refusal(kind, **{name: 0}).setting == name
    assert ProducerConfig(retries=0).retries == 0


@pytest.mark.parametrize(("kind", "name"), SWITCHES)
@pytest.mark.parametrize("value", [0, 1, None, "true", []])
def test_switches_must_be_booleans(kind: Settings, name: str, value: object) -> None:
    error = refusal(kind, **{name: value})

    assert (error.setting, error.value) == (name, value)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ClientConfig, "header_encoding", "JSON"),
        (ClientConfig, "header_encoding", None),
        (ClientConfig, "max_frame_bytes", 1024),
        (ClientConfig, "tls", "yes"),
        (ClientConfig, "tls", None),
        (ClientConfig, "rpc_hooks", [Hook()]),
        (ClientConfig, "rpc_hooks", Hook()),
        (ClientConfig, "rpc_hooks", (5,)),
        (ClientConfig, "rpc_hooks", (Hook(), None)),
        (ClientConfig, "address_mapper", "h:1"),
        (ClientConfig, "open_socket", "socks5://proxy:1080"),
        (ClientConfig, "address_mapper", {"h:1": "h:2"}),
        (ClientConfig, "instance_name", ""),
        (ClientConfig, "instance_name", "a@b"),
        (ClientConfig, "instance_name", "a\nb"),
        (ClientConfig, "instance_name", 5),
        (ClientConfig, "unit_name", "a@b"),
        (ProducerConfig, "auto_batch", True),
        (AutoBatch, "linger_seconds", -0.1),
        (AutoBatch, "linger_seconds", 31),
        (AutoBatch, "max_bytes", 0),
        (AutoBatch, "max_messages", 1025),
        (ProducerConfig, "compression", "gzip"),
        (ProducerConfig, "compression", False),
        (ProducerConfig, "compression_level", 0),
        (ProducerConfig, "compression_level", 10),
        (ProducerConfig, "template_topic", ""),
        (ProducerConfig, "template_topic", "a.b"),
        (ProducerConfig, "template_topic", None),
        (ConsumerConfig, "message_model", "CLUSTERING"),
        (ConsumerConfig, "message_model", None),
        (ConsumerConfig, "start_from", "first"),
        (ConsumerConfig, "start_from", 0),
        (ConsumerConfig, "start_from", datetime(2024, 1, 1)),
        (ConsumerConfig, "offset_illegal", "ignore"),
        (ConsumerConfig, "unreadable", "ignore"),
        (ConsumerConfig, "offset_illegal", None),
        (ConsumerConfig, "allocate", "AVG"),
        (ConsumerConfig, "allocate", AllocateAveragely),
        (ConsumerConfig, "offset_store", LocalFileOffsetStore),
        (ConsumerConfig, "offset_store", {}),
        (ConsumerConfig, "codec", JSONCodec),
        (ProducerConfig, "codec", "json"),
        (PopConfig, "codec", object()),
        (PushConfig, "undecodable", "ignore"),
        (PushConfig, "undecodable", None),
    ],
)
def test_invalid_values_are_rejected(kind: Settings, name: str, value: object) -> None:
    error = refusal(kind, **{name: value})

    assert (error.setting, error.value) == (name, value)
    assert isinstance(error, ValueError)
    assert isinstance(error, RocketMQError)


@pytest.mark.parametrize("hook", [Hook, AsyncHook()])
def test_rpc_hooks_are_objects_with_plain_methods(hook: object) -> None:
    error = refusal(ClientConfig, rpc_hooks=(Hook(), hook))

    assert (error.setting, error.value) == ("rpc_hooks", hook)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ClientConfig, "header_encoding", "json"),
        (ClientConfig, "tls", True),
        (ClientConfig, "tls", ssl.create_default_context()),
        (ClientConfig, "rpc_hooks", (Hook(), Hook())),
        (ClientConfig, "address_mapper", str.upper),
        (ClientConfig, "instance_name", "worker 1#a"),
        (ClientConfig, "unit_name", "unit-1"),
        (ProducerConfig, "compression", None),
        (ProducerConfig, "compression", "zstd"),
        (ConsumerConfig, "message_model", MessageModel.BROADCASTING),
        (ConsumerConfig, "start_from", datetime(2024, 1, 1, tzinfo=UTC)),
        (ConsumerConfig, "offset_illegal", "error"),
        (ConsumerConfig, "allocate", AllocateAveragely()),
        (ConsumerConfig, "allocate", {"orders": AllocateAveragely()}),
        (ConsumerConfig, "offset_store", STORE),
        (ConsumerConfig, "codec", JSONCodec()),
        (ProducerConfig, "codec", RawCodec()),
        (PopConfig, "codec", MsgpackCodec(dict)),
        (PushConfig, "undecodable", "skip"),
    ],
)
def test_valid_values_are_kept(kind: Settings, name: str, value: object) -> None:
    assert getattr(kind(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("choice", "value"),
    [
        ({"no topic!": AllocateAveragely()}, "no topic!"),
        ({"orders": "AVG"}, "AVG"),
        ({"orders": AllocateAveragely}, AllocateAveragely),
    ],
)
def test_each_strategy_of_a_mapping_is_validated(choice: object, value: object) -> None:
    error = refusal(ConsumerConfig, allocate=choice)

    assert (error.setting, error.value) == ("allocate", value)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (ConsumerConfig, "allocate", "called with (client_id, queues, client_ids), and takes ()"),
        (ClientConfig, "address_mapper", "called with (address), and takes ()"),
        (ClientConfig, "open_socket", "called with (host, port), and takes ()"),
    ],
)
def test_functions_are_called_with_the_arguments_that_they_take(
    kind: Settings, name: str, words: str
) -> None:
    error = refusal(kind, **{name: lambda: None})

    assert error.setting == name
    assert words in error.reason


# --- name servers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "namesrv",
    [
        "127.0.0.1:9876",
        "a:1;b:2",
        "[::1]:9876",
        "http://list.example/rocketmq/nsaddr",
        "http://list.example:8080/rocketmq/nsaddr-unit?nofix=1",
        "http://[::1]:8080/nsaddr",
        "http://[::1]/nsaddr",
        "http://list.example?x=1",
        "http://MQ_INST_123_abc.mq.example.com:8080",
    ],
)
def test_name_servers_are_addresses_or_a_url(namesrv: str) -> None:
    assert ClientConfig(namesrv=namesrv).namesrv == namesrv


@pytest.mark.parametrize(
    "namesrv",
    [
        "",
        ";",
        "localhost",
        "localhost:x",
        "localhost:70000",
        "https://list.example/nsaddr",
        "http://",
        "http:///nsaddr",
        "http://:8080/nsaddr",
        "http://host:port/nsaddr",
        "http://host:99999/nsaddr",
        "http://user@host/nsaddr",
        "http://a b/nsaddr",
        "ftp://host:21",
        5,
        b"h:1",
        ["h:1"],
    ],
)
def test_an_invalid_namesrv_is_rejected(namesrv: object) -> None:
    error = refusal(ClientConfig, namesrv=namesrv)

    assert (error.setting, error.value) == ("namesrv", namesrv)


def test_an_invalid_address_in_a_list_is_named() -> None:
    error = refusal(ClientConfig, namesrv="a:1;b")

    assert (error.setting, error.value) == ("namesrv", "b")


def test_settings_of_a_subclass_are_its_own() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sharded(ProducerConfig):
        shard: int = 0

    assert Sharded().shard == 0
    with pytest.raises(ConfigError, match="max_in_flight"):
        Sharded(max_in_flight=0)


@pytest.mark.parametrize("namespace", ["", "a%b", "a b", "a|b", "x" * 65, "ä", 5])
def test_an_invalid_namespace_is_rejected(namespace: object) -> None:
    assert refusal(ClientConfig, namespace=namespace).setting == "namespace"


@pytest.mark.parametrize("version", [3, 1.0, "1", True, Decimal(1)])
def test_there_are_two_versions_of_namespaces(version: object) -> None:
    assert refusal(ClientConfig, namespace_version=version).setting == "namespace_version"


# --- secrets ------------------------------------------------------------------------------------


def credentials() -> Credentials:
    return Credentials(access_key="user", secret_key=SECRET, security_token=SECRET)


async def later_credentials() -> Credentials:
    return credentials()


@pytest.mark.parametrize(
    "show", [repr, str, "{}".format, pprint.pformat, lambda value: f"{value!r}"]
)
@pytest.mark.parametrize("value", [credentials(), ClientConfig(credentials=credentials())])
def test_reprs_hide_secrets(show: Callable[[object], str], value: object) -> None:
    assert SECRET not in show(value)
    assert "user" in show(value)


def test_the_repr_of_settings_has_the_name_of_the_function_for_credentials() -> None:
    config = ClientConfig(credentials=partial(dict[str, Credentials]().__getitem__, SECRET))

    assert "credentials=partial(" in repr(config)
    assert SECRET not in repr(config)


@pytest.mark.parametrize("function", [later_credentials, lambda region: credentials()])
def test_credentials_can_be_a_plain_function_without_arguments(function: object) -> None:
    assert ClientConfig(credentials=credentials).credentials is credentials
    assert refusal(ClientConfig, credentials=function).setting == "credentials"


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"access_key": ""}, "access_key"),
        ({"access_key": "\udcff"}, "access_key"),
        ({"secret_key": SECRET.encode()}, "secret_key"),
        ({"secret_key": [SECRET]}, "secret_key"),
        ({"secret_key": ""}, "secret_key"),
        ({"secret_key": SECRET + "\udcff"}, "secret_key"),
        ({"secret_key": None}, "secret_key"),
        ({"security_token": [SECRET]}, "security_token"),
        ({"security_token": ""}, "security_token"),
        ({"secretKey": SECRET}, "secretKey"),
        ({"secret": SECRET}, "secret"),
        ({"pass": SECRET}, "pass"),
    ],
)
def test_errors_hide_invalid_credentials(settings: Mapping[str, object], setting: str) -> None:
    given = {"access_key": "a", "secret_key": SECRET, **settings}
    check_hidden(refusal(Credentials, **given), setting)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("secret_key", SECRET), ("accessKey", SECRET), ("security_token", SECRET)),
        *(("Password", SECRET), ("credential", credentials()), ("credentials", SECRET)),
        ("credentials", {"secret_key": SECRET}),
    ],
)
def test_errors_hide_misplaced_secrets(setting: str, value: object) -> None:
    check_hidden(refusal(ClientConfig, **{setting: value}), setting)


def check_hidden(error: ConfigError, setting: str) -> None:
    assert error.setting == setting
    assert SECRET not in str(error) + repr(error) + repr(error.value)


# --- optional libraries --------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "module"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
def test_compression_requires_its_library(
    kind: Compression, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ProducerConfig(compression=kind).compression == kind
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ConfigError, match=r"rocketmq-aio with its extra \[compression\]") as caught:
        ProducerConfig(compression=kind)
    assert (caught.value.setting, caught.value.value) == ("compression", kind)


def test_settings_keep_subclasses_of_str_as_plain_text() -> None:
    class Name(str, Enum):  # noqa: UP042 - its members format as "Name.SHOP"
        SHOP = "shop"

    config = ClientConfig(
        namesrv="127.0.0.1:1", namespace=Name.SHOP, instance_name=Name.SHOP, unit_name=Name.SHOP
    )
    credentials = Credentials(access_key=Name.SHOP, secret_key=Name.SHOP)

    texts = [config.namespace, config.instance_name, config.unit_name]
    texts += [credentials.access_key, credentials.secret_key]
    assert [(type(text), text) for text in texts] == [(str, "shop")] * 5
