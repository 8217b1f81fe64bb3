"""``rmq doctor``: checks what a client needs."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from rocketmq_aio.cli.arguments import Group, command
from rocketmq_aio.cli.connection import ReadArguments
from rocketmq_aio.cli.failures import ExitCode, format_error
from rocketmq_aio.cli.output import counted, show_result
from rocketmq_aio.errors import AuthError, NotConnectedError, PermissionDeniedError, RocketMQError
from rocketmq_aio.model.address import is_url, parse_addresses
from rocketmq_aio.protocol.namespaces import namespace_of
from rocketmq_aio.remoting.acl import current_credentials

if TYPE_CHECKING:
    from rocketmq_aio.admin.client import AdminClient
    from rocketmq_aio.config.client import ClientConfig

app = Group("doctor")
MAX_CLOCK_SECONDS: Final = 5.0  # brokers report their uptime in whole seconds
UPTIME: Final = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")
OPTIONAL: Final = ("uvloop", "lz4", "zstandard", "zlib_ng")
COLUMNS: Final = ("ok", "check", "detail")


class Report:
    """The rows of the report."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(self, check: str, detail: object, *, ok: bool = True) -> None:
        self.rows.append({"ok": ok, "check": check, "detail": str(detail)})

    async def attempt(self, check: str, call: Awaitable[str]) -> bool:
        """Add what *call* returns, with its duration, or its error; return whether it worked."""
        start = time.monotonic()
        try:
            text = await call
        except RocketMQError as error:
            self.add(check, format_error(error), ok=False)
            return False
        self.add(check, f"{text}, {(time.monotonic() - start) * 1000:.0f} ms")
        return True


@command(app, "doctor", ReadArguments, "rmq doctor\nrmq doctor --context prod -o json")
async def _doctor(arguments: ReadArguments) -> int:
    """Check versions, settings, name servers, brokers, slaves, controllers, clocks, permissions.

    It changes nothing. The exit code is 1 if a check failed.
    """
    report, config = Report(), arguments.config()
    _add_versions(report)
    _add_settings(report, config)
    if await _check_name_servers(report, config):
        try:
            async with arguments.admin() as admin:
                await _check_brokers(report, admin)
                await report.attempt("read topics", _count(admin.topics.list()))
                await report.attempt("read groups", _count(admin.groups.list()))
        except RocketMQError as error:  # name servers fail now, or differ
            report.add("cluster", format_error(error), ok=False)
    show_result(report.rows, arguments.output, COLUMNS)
    return ExitCode.DONE if all(row["ok"] for row in report.rows) else ExitCode.INCOMPLETE


def _add_versions(report: Report) -> None:
    try:
        package = version("rocketmq-aio")
    except PackageNotFoundError:
        package = "not installed"
    report.add("versions", f"rocketmq-aio {package}, Python {platform.python_version()}")
    found = [name for name in OPTIONAL if find_spec(name)]
    report.add("optional packages", ", ".join(found) or "none")


def _add_settings(report: Report, config: ClientConfig) -> None:
    given = config.credentials
    account = current_credentials(given, "").access_key if given else "none"
    settings = (f"namesrv {config.namesrv}", f"account {account}", f"TLS {bool(config.tls)}")
    implied = namespace_of(config)
    namespace = config.namespace or (implied.name if implied else "none")
    report.add("settings", ", ".join([*settings, f"namespace {namespace}"]))


async def _check_name_servers(report: Report, config: ClientConfig) -> bool:
    namesrv, worked = config.namesrv or "", False
    for address in (namesrv,) if is_url(namesrv) else parse_addresses(namesrv):
        asking = _registered(replace(config, namesrv=address))
        worked = await report.attempt(f"name server {address}", asking) or worked
    return worked


async def _registered(config: ClientConfig) -> str:
    from rocketmq_aio.admin.client import AdminClient

    async with AdminClient(client=config) as client:
        brokers = (await client.brokers.cluster()).brokers
        return f"{counted(len(brokers), 'broker')} registered"


async def _check_brokers(report: Report, admin: AdminClient) -> None:
    """Check the masters and slaves that name servers list, then the controllers of the masters."""
    controllers: set[str] = set()
    for broker in (await admin.brokers.cluster()).brokers:
        for number, address in {0: broker.master, **broker.addresses}.items():
            name = f"{broker.broker_name}:{number}" if number else broker.broker_name
            asking = _runtime(report, admin, name, address)
            if await report.attempt(f"broker {name}", asking) and not number:
                controllers |= await _controllers(report, admin, name)
    for address in sorted(controllers):
        await report.attempt(f"controller {address}", _leader(admin, address))


async def _runtime(report: Report, admin: AdminClient, name: str, address: str | None) -> str:
    from rocketmq_aio.admin.servers import NO_MASTER
    from rocketmq_aio.protocol.requests.admin import GetBrokerRuntime, KVTable

    if address is None:
        raise NotConnectedError(name, NO_MASTER)
    stats = (await admin.client.broker.read(address, GetBrokerRuntime(), KVTable)).table
    _add_clock(report, name, stats)
    return f"{address} {stats.get('brokerVersionDesc', '')}"


async def _controllers(report: Report, admin: AdminClient, broker: str) -> set[str]:
    """Return the addresses of the controllers in the settings of *broker*, if it has some."""
    try:
        (settings,) = (await admin.brokers.config(brokers=[broker])).values()
    except (AuthError, PermissionDeniedError):
        return set()  # for administrators only, and no client needs it
    except RocketMQError as error:
        report.add(f"settings of {broker}", format_error(error), ok=False)
        return set()
    if settings.get("enableControllerMode") != "true":
        return set()
    return set(filter(None, map(str.strip, settings.get("controllerAddr", "").split(";"))))


async def _leader(admin: AdminClient, address: str) -> str:
    metadata = await admin.controllers.metadata(address)
    if not metadata.leader_address:
        raise NotConnectedError(address, "this controller knows no leader: masters are not elected")
    return f"group {metadata.group}, leader {metadata.leader_address}"


def _add_clock(report: Report, name: str, stats: Mapping[str, str]) -> None:
    """Compare the time of the broker: its start and its uptime."""
    match = UPTIME.search(stats.get("runtime", ""))
    started = stats.get("bootTimestamp", "")
    if match is None or not started.isdecimal():
        return
    try:
        days, hours, minutes, seconds = map(int, match.groups())
        uptime = ((days * 24 + hours) * 60 + minutes) * 60 + seconds + 0.5
        difference = int(started) / 1000 + uptime - time.time()
    except (OverflowError, ValueError):
        report.add(f"clock of {name}", "the broker reports an impossible time", ok=False)
        return
    is_ok = abs(difference) <= MAX_CLOCK_SECONDS
    text = f"{difference:+.0f} s, measured to a second"
    report.add(f"clock of {name}", text, ok=is_ok)


async def _count(call: Awaitable[list[str]]) -> str:
    return f"{len(await call)} found"
