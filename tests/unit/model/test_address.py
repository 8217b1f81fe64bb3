"""Addresses: what can be dialled is understood, what cannot is refused before it is tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.address import parse_address, parse_addresses, vip_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876),
        (" broker-a:10911 ", "broker-a", 10911),
        ("my_container:1", "my_container", 1),
        ("host.example:65535", "host.example", 65535),
        ("[::1]:9876", "::1", 9876),
        ("::1:9876", "::1", 9876),
        ("[fe80::1%eth0]:9876", "fe80::1%eth0", 9876),
        ("[2001:db8::10.0.0.1]:80", "2001:db8::10.0.0.1", 80),
        ("名字.example:80", "名字.example", 80),
        ("h:00080", "h", 80),
        ("h" * 253 + ":80", "h" * 253, 80),
    ],
)
def test_an_address_is_split_at_its_last_colon(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "9876",
        "localhost",
        "localhost:",
        ":9876",
        "[]:9876",
        "[:9876",
        "]:9876",
        "[::1",
        "[::1:9876",
        "::1]:9876",
        "[::1]",
        "[localhost]:9876",
        "[127.0.0.1]:9876",
        "localhost:9876:9876",
        "a:b:80",
        "1::2::3:80",
        "h:0",
        "h:-1",
        "h:+80",
        "h:65536",
        "h:000080",
        "h:00000199999999",
        "h:" + "0" * 5000 + "80",
        "h:" + "9" * 5000,
        "h:80x",
        "h:8 0",
        "h:８０",
        "h:²",
        "h: 80",
        "a b:80",
        "a/b:80",
        "a\\b:80",
        "user@host:80",
        "a?b:80",
        "a#b:80",
        "a,b:80",
        "a;b:80",
        "a\nb:80",
        "a\x00b:80",
        "\ud800:80",
        "http://host:80",
        "h" * 254 + ":80",
    ],
)
def test_what_nobody_can_dial_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match="namesrv=") as caught:
        parse_address(text, setting="namesrv")

    assert (caught.value.setting, caught.value.value) == ("namesrv", text)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        host, port = parse_address(text)
    except ConfigError:
        return

    assert host.isprintable()
    assert 1 <= port <= 65_535


@given(st.integers(0, 2**128 - 1), st.integers(1, 65_535))
def test_every_ipv6_address_is_understood(value: int, port: int) -> None:
    host = ":".join(f"{value >> shift & 0xFFFF:x}" for shift in range(112, -1, -16))

    assert parse_address(f"[{host}]:{port}") == parse_address(f"{host}:{port}") == (host, port)


# --- lists --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["b:1;a:2", "b:1,a:2", " b:1 ; a:2 ;", ";;b:1;;a:2", "b:1;a:2;b:1"]
)
def test_a_list_is_split_in_its_order_and_without_repeats(text: str) -> None:
    assert parse_addresses(text) == ("b:1", "a:2")


@pytest.mark.parametrize("text", ["", " ", ";", " ; , "])
def test_a_list_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        parse_addresses(text)


@pytest.mark.parametrize("text", ["a:1;b", "a:1;:2", "a:1;b:x", "a:1 b:2", "a:1\nb:2"])
def test_one_bad_address_spoils_its_list(text: str) -> None:
    with pytest.raises(ConfigError, match="namesrv="):
        parse_addresses(text)


def test_an_address_of_a_list_may_be_ipv6() -> None:
    assert parse_addresses("[::1]:9876;127.0.0.1:9876") == ("[::1]:9876", "127.0.0.1:9876")


@pytest.mark.parametrize(
    ("address", "second"),
    [("10.0.0.1:10911", "10.0.0.1:10909"), ("[::1]:10911", "[::1]:10909"), ("a:3", "a:1")],
)
def test_the_second_port_of_a_broker_is_two_below(address: str, second: str) -> None:
    assert vip_address(address) == second


@pytest.mark.parametrize("address", ["a:1", "a:2"])
def test_a_broker_whose_port_has_none_below_is_reached_at_its_own(address: str) -> None:
    assert vip_address(address) == address


def test_the_second_port_of_a_malformed_address_is_refused() -> None:
    with pytest.raises(ConfigError):
        vip_address("a")
