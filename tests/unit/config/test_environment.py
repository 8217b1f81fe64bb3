"""Settings from the environment: parsed, validated, overridden by arguments."""

from dataclasses import fields
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig, ClientSettings, Credentials
from rocketmq_aio.errors import ConfigError

SECRET = "canary-9f3a"


def refusal(
    environ: dict[str, str],
    **given: Any,  # noqa: ANN401 - also what type checkers refuse
) -> ConfigError:
    """Return why *environ* and what is *given* are refused."""
    with pytest.raises(ConfigError) as caught:
        ClientConfig.from_env(environ, **given)
    return caught.value


def test_an_empty_environment_gives_the_defaults() -> None:
    assert ClientConfig.from_env({}) == ClientConfig()


def test_an_address_instead_of_an_environment_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"environ='ns:9876': .* namesrv=\.\.\."):
        ClientConfig.from_env("ns:9876")  # type: ignore[arg-type]


def test_all_settings_are_read_from_the_environment() -> None:
    config = ClientConfig.from_env(
        {
            "ROCKETMQ_NAMESRV": "a:1;b:2",
            "ROCKETMQ_ACCESS_KEY": "user",
            "ROCKETMQ_SECRET_KEY": SECRET,
            "ROCKETMQ_SECURITY_TOKEN": "token",
            "ROCKETMQ_TLS": "TRUE",
            "ROCKETMQ_HEARTBEAT_V2": "on",
            "ROCKETMQ_INSTANCE_NAME": "worker",
            "ROCKETMQ_UNIT_NAME": "east",
            "ROCKETMQ_UNIT_MODE": "true",
            "ROCKETMQ_VIP_CHANNEL": "true",
            "ROCKETMQ_VERIFY_CHECKSUMS": "true",
            "ROCKETMQ_NAMESPACE": "shop",
            "ROCKETMQ_NAMESPACE_VERSION": "2",
            "ROCKETMQ_REQUEST_TIMEOUT_SECONDS": "1.5",
            "ROCKETMQ_MAX_IN_FLIGHT": "10",
            "ROCKETMQ_HEADER_ENCODING": "json",
            "ROCKETMQ_HOME": "/opt/rocketmq",
        }
    )

    assert config == ClientConfig(
        namesrv="a:1;b:2",
        credentials=Credentials(access_key="user", secret_key=SECRET, security_token="token"),
        tls=True,
        heartbeat_v2=True,
        instance_name="worker",
        unit_name="east",
        unit_mode=True,
        vip_channel=True,
        verify_checksums=True,
        namespace="shop",
        namespace_version=2,
        request_timeout_seconds=1.5,
        max_in_flight=10,
        header_encoding="json",
    )


def test_namesrv_addr_is_read() -> None:
    other, own = {"NAMESRV_ADDR": "a:1"}, {"ROCKETMQ_NAMESRV": "b:2"}

    assert ClientConfig.from_env(other).namesrv == "a:1"
    assert ClientConfig.from_env(other | own).namesrv == "b:2"


def test_arguments_override_the_environment() -> None:
    environ = {"ROCKETMQ_NAMESRV": "a:1", "ROCKETMQ_MAX_IN_FLIGHT": "10"}
    config = ClientConfig.from_env(environ, namesrv="b:2", max_in_flight=20)

    assert (config.namesrv, config.max_in_flight) == ("b:2", 20)


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", "a:1")

    assert ClientConfig.from_env().namesrv == "a:1"


@pytest.mark.parametrize(
    "name", ["NAMESRV", "ACCESS_KEY", "SECRET_KEY", "TLS", "MAX_IN_FLIGHT", "HEADER_ENCODING"]
)
def test_an_empty_variable_counts_as_not_set(name: str) -> None:
    assert ClientConfig.from_env({f"ROCKETMQ_{name}": ""}) == ClientConfig()


@pytest.mark.parametrize(
    ("variable", "text", "setting"),
    [
        ("ROCKETMQ_MAX_IN_FLIGHT", "ten", "ROCKETMQ_MAX_IN_FLIGHT"),
        ("ROCKETMQ_MAX_IN_FLIGHT", "1e3", "ROCKETMQ_MAX_IN_FLIGHT"),
        ("ROCKETMQ_MAX_IN_FLIGHT", "9" * 5000, "ROCKETMQ_MAX_IN_FLIGHT"),
        ("ROCKETMQ_MAX_IN_FLIGHT", "0", "max_in_flight"),
        ("ROCKETMQ_REQUEST_TIMEOUT_SECONDS", "soon", "ROCKETMQ_REQUEST_TIMEOUT_SECONDS"),
        ("ROCKETMQ_REQUEST_TIMEOUT_SECONDS", "-1", "request_timeout_seconds"),
        ("ROCKETMQ_REQUEST_TIMEOUT_SECONDS", "nan", "request_timeout_seconds"),
        ("ROCKETMQ_TLS", "maybe", "ROCKETMQ_TLS"),
        ("ROCKETMQ_HEARTBEAT_V2", "2", "ROCKETMQ_HEARTBEAT_V2"),
        ("ROCKETMQ_NAMESRV", "localhost", "namesrv"),
        ("ROCKETMQ_HEADER_ENCODING", "xml", "header_encoding"),
        ("ROCKETMQ_ACCESS_KEY", "user", "ROCKETMQ_SECRET_KEY"),
        ("ROCKETMQ_SECRET_KEY", SECRET, "ROCKETMQ_ACCESS_KEY"),
    ],
)
def test_an_invalid_variable_is_named(variable: str, text: str, setting: str) -> None:
    error = refusal({variable: text})

    assert error.setting == setting
    assert SECRET not in str(error)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("yes", True), ("On", True), ("0", False), ("FALSE", False), ("off", False)],
)
def test_booleans_are_parsed_from_common_spellings(text: str, value: bool) -> None:
    assert ClientConfig.from_env({"ROCKETMQ_TLS": text}).tls is value


def test_from_env_rejects_unknown_settings() -> None:
    assert refusal({}, namesrvr="a:1").setting == "namesrvr"


def test_from_env_takes_every_setting_with_its_type() -> None:
    settings = {each.name: each.type for each in fields(ClientConfig)}  # as they are written

    taken = {name: ref.__forward_arg__ for name, ref in ClientSettings.__annotations__.items()}
    assert taken == settings
