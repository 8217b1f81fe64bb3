"""Addresses: valid ones are parsed, invalid ones are rejected."""

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.address import before_vip, parse_address, parse_addresses, vip_address


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
def test_invalid_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="namesrv=") as caught:
        parse_address(text, setting="namesrv")

    assert (caught.value.setting, caught.value.value) == ("namesrv", text)


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        host, port = parse_address(text)
    except ConfigError:
        return

    assert host.isprintable()
    assert 1 <= port <= 65_535


@given(st.integers(0, 2**128 - 1), st.integers(1, 65_535))
def test_ipv6_addresses_are_parsed(value: int, port: int) -> None:
    host = ":".join(f"{value >> shift & 0xFFFF:x}" for shift in range(112, -1, -16))

    assert parse_address(f"[{host}]:{port}") == parse_address(f"{host}:{port}") == (host, port)


# --- lists --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["b:1;a:2", "b:1,a:2", " b:1 ; a:2 ;", ";;b:1;;a:2", "b:1;a:2;b:1"]
)
def test_a_list_keeps_its_order_and_drops_duplicates(text: str) -> None:
    assert parse_addresses(text) == ("b:1", "a:2")


@pytest.mark.parametrize("text", ["", " ", ";", " ; , "])
def test_an_empty_list_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        parse_addresses(text)


@pytest.mark.parametrize("text", ["a:1;b", "a:1;:2", "a:1;b:x", "a:1 b:2", "a:1\nb:2"])
def test_a_list_with_an_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="namesrv="):
        parse_addresses(text)


@pytest.mark.parametrize("scheme", ["tcp", "https", "rocketmq"])
def test_an_error_about_a_scheme_names_it(scheme: str) -> None:
    with pytest.raises(ConfigError, match=f"namesrv='{scheme}://.*without {scheme}://"):
        parse_addresses(f"{scheme}://127.0.0.1:9876")


def test_an_address_of_a_list_may_be_ipv6() -> None:
    assert parse_addresses("[::1]:9876;127.0.0.1:9876") == ("[::1]:9876", "127.0.0.1:9876")


@pytest.mark.parametrize(
    ("address", "second"),
    [("10.0.0.1:10911", "10.0.0.1:10909"), ("[::1]:10911", "[::1]:10909"), ("a:3", "a:1")],
)
def test_the_vip_port_is_the_port_less_two(address: str, second: str) -> None:
    assert vip_address(address) == second


@pytest.mark.parametrize("address", ["a:1", "a:2"])
def test_ports_1_and_2_have_no_vip_port(address: str) -> None:
    assert vip_address(address) == address


@pytest.mark.parametrize("address", ["10.0.0.1:10911", "[::1]:10911", "::1:10911", "a:3"])
def test_an_address_is_found_by_its_vip_address(address: str) -> None:
    assert address in before_vip(vip_address(address))


def test_the_vip_address_of_an_invalid_address_is_rejected() -> None:
    with pytest.raises(ConfigError):
        vip_address("a")
