"""Network addresses: ``host:port``, several joined by ``;``."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Final

from rocketmq_aio.model.errors import ConfigError, shown

MAX_PORT: Final = 65_535
VIP_OFFSET: Final = 2
NEVER_IN_HOSTS: Final = " ,;/\\@?#[]"
MAX_HOST: Final = 253  # RFC 1035
URL: Final = "http://"
# The name servers of an instance in a cloud; as for Java clients, its http:// is dropped.
ENDPOINT: Final = re.compile(r"\s*(?:http://)?(MQ_INST_\w+_\w+)\.", re.ASCII)


def parse_address(text: str, *, setting: str = "address") -> tuple[str, int]:
    """Split ``host:port`` at its last colon (IPv6 hosts may be bracketed or bare).

    :raises ConfigError: no port, a port outside 1..65535, or characters no host has
    """
    scheme, of_url, _ = text.strip().partition("://")
    if of_url:
        raise ConfigError(setting, text, f"expected host:port, without {shown(scheme)}://")
    host, colon, port = text.strip().rpartition(":")
    if bracketed := host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host:
        raise ConfigError(setting, text, "expected host:port, for example 127.0.0.1:9876")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= MAX_PORT):
        raise ConfigError(setting, text, f"the port must be a number from 1 to {MAX_PORT}")
    if len(host) > MAX_HOST or not host.isprintable() or any(c in host for c in NEVER_IN_HOSTS):
        raise ConfigError(setting, text, "the host holds characters that no host name has")
    if bracketed or ":" in host:
        try:
            IPv6Address(host)
        except ValueError:
            reason = "the host is written like an IPv6 address and is none"
            raise ConfigError(setting, text, reason) from None
    return host, int(port)


def parse_addresses(text: str, *, setting: str = "namesrv") -> tuple[str, ...]:
    """Split a ``;`` (or ``,``) separated list and check every part; the order is kept."""
    if ENDPOINT.match(text):
        text = text.strip().removeprefix(URL)
    parts = tuple(dict.fromkeys(p.strip() for p in text.replace(",", ";").split(";") if p.strip()))
    if not parts:
        raise ConfigError(setting, text, "expected at least one host:port")
    for part in parts:
        parse_address(part, setting=setting)
    return parts


def has_port(text: str) -> bool:
    """Whether *text* ends with a port: an address, not a broker name."""
    _, colon, port = text.rpartition(":")
    return bool(colon) and port.isdigit()


def vip_address(address: str) -> str:
    """Return the VIP address of the broker at *address*: the same host, the port less 2.

    Ports 1 and 2 have no VIP port; *address* is returned.

    :raises ConfigError: *address* is invalid
    """
    host, port = parse_address(address)
    if port <= VIP_OFFSET:
        return address
    return f"[{host}]:{port - VIP_OFFSET}" if ":" in host else f"{host}:{port - VIP_OFFSET}"


def before_vip(address: str) -> set[str]:
    """Return the addresses of which *address* may be the VIP address, in all spellings.

    :raises ConfigError: *address* is invalid
    """
    host, port = parse_address(address)
    return {f"{host}:{port + VIP_OFFSET}", f"[{host}]:{port + VIP_OFFSET}"}


def is_url(namesrv: str) -> bool:
    """Whether *namesrv* is the URL of an address server."""
    return namesrv.startswith(URL) and not ENDPOINT.match(namesrv)


def check_namesrv(namesrv: object) -> None:
    """Check that *namesrv* is ``host:port;host:port`` or the URL of an address server.

    :raises ConfigError: it is neither
    """
    if not isinstance(namesrv, str):
        raise ConfigError("namesrv", namesrv, "expected a string such as 127.0.0.1:9876")
    if not is_url(namesrv):
        parse_addresses(namesrv)
        return
    host = re.split("[/?#]", namesrv.removeprefix(URL), maxsplit=1)[0]
    try:
        parse_address(host if ":" in host.rpartition("]")[2] else f"{host}:80")
    except ConfigError as error:
        raise ConfigError("namesrv", namesrv, f"no URL of a server: {error.reason}") from None
