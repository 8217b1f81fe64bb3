"""Requests of administrators: to one server, or to many with a result for each."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Final, Generic, NamedTuple, TypedDict, TypeVar, Unpack

import anyio
import msgspec
from msgspec.structs import replace

from rocketmq_aio.admin.results import BrokerInfo, ClusterInfo, Result
from rocketmq_aio.admin.server_results import read_properties
from rocketmq_aio.errors import (
    NO_RESPONSE,
    AdminError,
    AuthError,
    BrokerError,
    ClosedError,
    ConfigError,
    NotConnectedError,
    NotSupportedError,
    PermissionDeniedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.name_servers import AT_BROKERS
from rocketmq_aio.instance.routes import TEMPLATE_TOPIC
from rocketmq_aio.model.address import parse_address
from rocketmq_aio.protocol.bodies import BrokerData, TopicRouteData
from rocketmq_aio.protocol.codes import CLIENT_VERSION, V4_9_1, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import RequestHeader
from rocketmq_aio.protocol.namespaces import name_inside, names_inside
from rocketmq_aio.protocol.requests.admin import ClusterInfoBody, GetBrokerRuntime, GetClusterInfo
from rocketmq_aio.protocol.requests.operations import GET_BROKER_CONFIG, first_release, server_kind
from rocketmq_aio.remoting.gather import gather_limited
from rocketmq_aio.remoting.remoting_client import SUCCESS

T = TypeVar("T")

AT_ONCE: Final = 16  # concurrent requests
POLL_SECONDS: Final = 0.05
SLOW_SECONDS: Final = 60.0
SLOW: Final = frozenset(  # servers respond when it is done: brokers of a container stop in 13 s
    {
        *(RequestCode.ADD_BROKER, RequestCode.REMOVE_BROKER, RequestCode.SWITCH_TIMER_ENGINE),
        *(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, RequestCode.POP_ROLLBACK),
        *(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC),
        # Brokers wait for members: 10 s for a handler, 5 s for the offsets of each.
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    }
)
BY_PROXY: Final = "a proxy supports no administration but `topic_route`"
FOUND_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
TOPIC_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
LISTED: Final = "the name server knows"
NO_MASTER: Final = "no name server knows a master of this broker"

# Prefixes of codes of requests that change nothing: a rehearsal sends only these.
READING: Final = (
    *("GET_", "QUERY_", "VIEW_", "SEARCH_", "PULL_"),
    *("AUTH_GET_", "AUTH_LIST_", "CONTROLLER_GET_"),
)
READS: Final = frozenset(code for code in RequestCode if code.name.startswith(READING))
ACCESS_CONTROL: Final = range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)
NOT_CONFIGURED: Final = re.compile("An system error occurred|MetadataProvider is not configured")
NO_PROVIDERS: Final = (  # the remark of brokers does not always say it
    "broker.conf may lack the authenticationMetadataProvider or authorizationMetadataProvider "
    "that access control 2.0 needs"
)

# Why servers did not respond, by address; None outside of `asking_once`.
_silent: ContextVar[dict[str, RocketMQError] | None] = ContextVar("silent", default=None)
_is_rehearsal: ContextVar[bool] = ContextVar("is_rehearsal", default=False)

Brokers = Iterable[str] | None
Masters = Mapping[str, str | None]  # address by broker name; None: no master now


class Where(TypedDict, total=False):
    """The brokers that a call goes to: all masters, those of *cluster*, or *brokers* by name."""

    cluster: str | None
    brokers: Brokers


@contextmanager
def asking_once() -> Iterator[None]:
    """In the block, requests to a server that has not responded to one fail at once."""
    token = _silent.set({})
    try:
        yield
    finally:
        _silent.reset(token)


class _ChangeBeginsError(Exception):
    """A call has passed all checks and would send its first change; not an error of it."""


async def rehearse(call: Awaitable[object]) -> None:
    """Run *call* up to its first change, which is not sent; raise the errors until then."""
    token = _is_rehearsal.set(True)
    try:
        await call
    except* _ChangeBeginsError:
        pass
    finally:
        _is_rehearsal.reset(token)


def begin_change() -> None:
    """End the call here if it is rehearsed: what follows changes something."""
    if _is_rehearsal.get():
        raise _ChangeBeginsError


class Held(NamedTuple, Generic[T]):
    """A topic or group on a broker; *body* is None if it does not exist there."""

    body: T | None
    address: str
    version: int  # of the broker


def bodies(held: Mapping[str, Held[T]]) -> dict[str, T]:
    """Return the bodies by broker name, for brokers that have the topic or group."""
    return {name: each.body for name, each in held.items() if each.body is not None}


class Servers:
    """Requests to one server or to many.

    :param check_running: raises the error for a call that the client cannot serve now
    """

    def __init__(self, instance: MQClientInstance, check_running: Callable[[], None]) -> None:
        self.instance = instance
        self.check_running = check_running
        self._answering: set[str] = set()  # brokers that respond to requests they do not know

    # --- one server -----------------------------------------------------------------------------

    async def request(
        self,
        address: str,
        header: RequestHeader,
        body: bytes = b"",
        *,
        accept: Container[int] = SUCCESS,
        version: int = CLIENT_VERSION,
    ) -> Command:
        """Send a request; see `RemotingClient.request_checked`.

        One of `SLOW` has at least `SLOW_SECONDS`.

        :raises ConfigError: *address* is no host and port
        """
        self.check_running()
        parse_address(address)  # without a port: else taken for a broker without a master
        if header.code not in READS:
            begin_change()
        usual = self.instance.config.request_timeout_seconds
        seconds = max(usual, SLOW_SECONDS) if header.code in SLOW else usual
        silent = _silent.get()
        if silent is not None and address in silent:
            raise copy(silent[address])
        try:
            await self._check_answering(address, header.code)
            return await self._explained(
                self.instance.remoting.request_checked(
                    address, header, body, accept=accept, timeout=seconds, version=version
                )
            )
        except NO_RESPONSE as error:
            if silent is not None:
                silent[address] = error
            raise
        except BrokerError as error:
            if (remark := _remark_of(error, header.code)) is None:
                raise
            raise type(error)(error.code, remark, error.address) from error

    async def _check_answering(self, address: str, code: int) -> None:
        """Raise NotSupportedError if a broker leaves requests that it does not know unanswered."""
        is_known = first_release(code) is None or server_kind(code) != "broker"
        if is_known or address in self._answering:
            return
        response = await self.instance.remoting.request(address, GetBrokerRuntime())
        if response.version < V4_9_1:
            raise not_supported(address, "it is older than 4.9.1")
        self._answering.add(address)

    async def read(
        self, address: str, header: RequestHeader, kind: type[T], body: bytes = b""
    ) -> T:
        """Send a request; return the JSON body of the response as *kind*."""
        return read_body((await self.request(address, header, body)).body, kind)

    async def on_any_name_server(self, header: RequestHeader) -> list[Command]:
        """Return the responses of the name servers that respond; one is enough."""
        self.check_running()
        return await self._explained(self.instance.name_servers.request_all(header))

    async def _explained(self, call: Awaitable[T]) -> T:
        """Return the result of *call*; a proxy that does not support it is named as the cause."""
        try:
            return await call
        except NotSupportedError as error:
            if not await self.instance.name_servers.find_proxies(TEMPLATE_TOPIC):
                raise
            remark = f"{BY_PROXY}: {AT_BROKERS} ({(error.remark or '').strip()})"
            raise NotSupportedError(error.code, remark, error.address) from error

    async def route(self, topic: str) -> TopicRouteData:
        """Return the current route of *topic*; RouteNotFoundError if there is no such topic."""
        self.check_running()
        return await self.instance.name_servers.route(topic)

    async def wait_for_route(
        self, topic: str, seconds: float, is_complete: Callable[[TopicRouteData], bool]
    ) -> bool:
        """Return whether the route of *topic*, empty until there is one, gets complete in time."""
        with anyio.move_on_after(seconds):
            while True:
                try:
                    route = await self.route(topic)
                except RouteNotFoundError:
                    route = TopicRouteData()
                if is_complete(route):
                    return True
                await anyio.sleep(POLL_SECONDS)
        return False

    # --- many servers ---------------------------------------------------------------------------

    async def on_each(
        self,
        action: str,
        targets: Masters,
        call: Callable[[str, str], Awaitable[T]],
        *,
        of: str = "servers",
    ) -> dict[str, T]:
        """Call *call* with name and address of each of *targets*; return the results by name.

        :param of: kind of the names, for errors
        :raises AdminError: some calls failed; an error common to all is raised itself
        """

        async def call_one(name: str) -> T:
            if (address := targets[name]) is None:
                raise NotConnectedError(name, NO_MASTER)
            return await call(name, address)

        done, failed = await gather_limited(call_one, targets, AT_ONCE)
        if failed:
            raise failure(action, done, failed, of=of)
        return done

    async def read_each(
        self, action: str, targets: Masters, header: RequestHeader, kind: type[T]
    ) -> dict[str, T]:
        """Send *header* to each of *targets*; return the JSON bodies of the responses by name."""

        async def read(_: str, address: str) -> T:
            return await self.read(address, header, kind)

        return await self.on_each(action, targets, read)

    async def read_from(
        self, action: str, header: RequestHeader, kind: type[T], **where: Unpack[Where]
    ) -> dict[str, T]:
        """Do what `read_each` does with the masters that `masters` returns."""
        return await self.read_each(action, await self.masters(**where), header, kind)

    async def read_stored(
        self,
        action: str,
        targets: Masters,
        header: RequestHeader,
        kind: type[T],
        absent: str | None = None,
    ) -> dict[str, T]:
        """Do what `read_each` does, without servers that do not have what is read.

        They send a response without a body, or an error whose remark contains *absent*.
        """

        async def read(_: str, address: str) -> T | None:
            try:
                body = (await self.request(address, header)).body
            except BrokerError as error:
                if absent is None or absent not in (error.remark or ""):
                    raise
                return None
            return read_body(body, kind) if body else None

        found = await self.on_each(action, targets, read)
        return {name: each for name, each in found.items() if each is not None}

    async def request_each(
        self, action: str, targets: Masters, header: RequestHeader, accept: Container[int] = SUCCESS
    ) -> dict[str, Command]:
        """Send *header* to each of *targets*; return the responses by name."""

        async def send(_: str, address: str) -> Command:
            return await self.request(address, header, accept=accept)

        return await self.on_each(action, targets, send)

    async def send_each(
        self, action: str, targets: Masters, header: RequestHeader, body: bytes = b""
    ) -> None:
        """Send *header* and *body*, a change without a result, to each of *targets*."""

        async def send(_: str, address: str) -> None:
            await self.request(address, header, body)

        await self.on_each(action, targets, send)

    async def send_to(
        self, action: str, header: RequestHeader, body: bytes | Result = b"", **where: Unpack[Where]
    ) -> None:
        """Do what `send_each` does with the masters that `masters` returns."""
        masters = await self.masters(**where)
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        await self.send_each(action, masters, header, data)

    async def read_settings(
        self, targets: Masters, header: RequestHeader
    ) -> dict[str, dict[str, str]]:
        """Return the settings of each of *targets*, which *header* requests."""

        async def read(_: str, address: str) -> dict[str, str]:
            return read_properties((await self.request(address, header)).body)

        return await self.on_each("reading settings", targets, read)

    async def setting(self, address: str, name: str) -> str | None:
        """Return a setting of a broker, "" if it has none; None if the account may not read it."""
        try:
            response = await self.request(address, GET_BROKER_CONFIG)
        except (AuthError, PermissionDeniedError):
            return None
        return read_properties(response.body).get(name, "")

    async def change_settings(
        self,
        targets: Masters,
        settings: Mapping[str, str],
        body: bytes,
        *,
        read: RequestHeader,
        change: RequestHeader,
    ) -> None:
        """Change *settings*, encoded in *body*, of each of *targets*.

        Servers acknowledge values that they cannot use, and keep the old ones: all are read again.

        :raises ConfigError: a server does not have one of them, and would ignore it
        :raises BrokerError: a server did not take one of the values
        """
        is_readable = True
        try:
            tables = await before_change(self.read_settings(targets, read))
            _check_known(settings, tables)
        except (AuthError, PermissionDeniedError):  # the account may not read them
            is_readable = False

        async def change_one(_: str, address: str) -> None:
            await self.request(address, change, body)
            if is_readable:
                held = read_properties((await self.request(address, read)).body)
                _check_taken(settings, held, address)

        await self.on_each("changing settings", targets, change_one)

    # --- which servers --------------------------------------------------------------------------

    @property
    def name_servers(self) -> Masters:
        """All name servers by address; they do not replicate to each other."""
        return {each: each for each in self.instance.name_servers.addresses}

    async def cluster_info(self) -> ClusterInfo:
        # A restarted name server may lack some of the brokers.
        responses = await self.on_any_name_server(GetClusterInfo())
        tables = [read_body(each.body, ClusterInfoBody).broker_addr_table for each in responses]
        return ClusterInfo(brokers=tuple(_merged(b for table in tables for b in table.values())))

    async def masters(self, cluster: str | None = None, brokers: Brokers = None) -> Masters:
        """Return the masters of *cluster*, those named by *brokers*, or all.

        :raises ConfigError: there is no such cluster, or no such broker
        :raises NotConnectedError: no broker is registered
        """
        masters = {each.broker_name: each.master for each in await self._brokers(cluster)}
        return masters if brokers is None else _named(masters, brokers)

    async def replicas(self, cluster: str | None = None, brokers: Brokers = None) -> Masters:
        """Return what `masters` does, with a slave of each broker that has no master now."""
        return _readable(await self._brokers(cluster), brokers)

    async def _brokers(self, cluster: str | None) -> list[BrokerInfo]:
        known = (await self.cluster_info()).brokers
        if not known:
            reason = "they know no broker: is one running and registered with them?"
            raise NotConnectedError(";".join(self.instance.name_servers.addresses), reason)
        chosen = [each for each in known if cluster in (None, each.cluster)]
        if not chosen:
            clusters = sorted({each.cluster for each in known})
            raise ConfigError("cluster", cluster, f"the name server knows {clusters}")
        return chosen

    async def targets(self, *, replicas: bool, **where: Unpack[Where]) -> Masters:
        """Return the masters as `masters` does, and their *replicas* as ``<name>:<id>``."""
        masters = await self.masters(**where)
        if not replicas:
            return masters
        return {
            each.broker_name if number == 0 else f"{each.broker_name}:{number}": address
            for each in (await self.cluster_info()).brokers
            if each.broker_name in masters
            for number, address in {0: each.master, **each.addresses}.items()
        }

    async def masters_of(self, topic: str) -> Masters:
        """Return the masters that have *topic*; RouteNotFoundError if there is no such topic."""
        return {each.broker_name: each.master for each in await self._brokers_of(topic)}

    async def replicas_of(self, topic: str, brokers: Brokers = None) -> Masters:
        """Return what `masters_of` does, with a slave of each broker that has no master now.

        :raises ConfigError: one of *brokers* does not have the topic
        """
        return _readable(await self._brokers_of(topic), brokers, f"topic {topic} is on")

    async def _brokers_of(self, topic: str) -> list[BrokerInfo]:
        self.check_running()
        routes = await self.instance.name_servers.routes(topic)
        return _merged(each for route in routes for each in route.broker_datas)

    # --- names ----------------------------------------------------------------------------------

    def outer(self, name: str) -> str:
        """Return the broker's form of *name*."""
        namespace = self.instance.remoting.namespace
        return name if namespace is None else namespace.outer(name)

    def inner(self, name: str) -> str | None:
        """Return the client's form of a broker's *name*, None if it is in no or another namespace.

        Without a namespace every name is the client's.
        """
        return name_inside(self.instance.remoting.namespace, name)

    def inner_names(self, lists: Iterable[Iterable[str]]) -> set[str]:
        """Return the names in *lists* that are in the namespace of the client, without it."""
        names = (name for each in lists for name in each)
        return names_inside(self.instance.remoting.namespace, names)


def broker_info(data: BrokerData) -> BrokerInfo:
    """Return the addresses of a broker, sorted by id."""
    addresses = dict(sorted(data.broker_addrs.items()))
    return BrokerInfo(broker_name=data.broker_name, cluster=data.cluster, addresses=addresses)


def _merged(brokers: Iterable[BrokerData]) -> list[BrokerInfo]:
    """Return each broker once, with the addresses from all name servers: the first wins."""
    merged: dict[str, BrokerData] = {}
    for each in brokers:
        known = merged.setdefault(each.broker_name, each)
        addresses = {**each.broker_addrs, **known.broker_addrs}
        merged[each.broker_name] = replace(known, broker_addrs=addresses)
    return [broker_info(merged[name]) for name in sorted(merged)]


def _readable(known: Iterable[BrokerInfo], brokers: Brokers, place: str = LISTED) -> Masters:
    """Return the address of the least id of each broker or of *brokers*: its master, or a slave."""
    found = {each.broker_name: next(iter(each.addresses.values()), None) for each in known}
    return found if brokers is None else _named(found, brokers, place)


def _named(masters: Masters, brokers: Iterable[str], place: str = LISTED) -> Masters:
    names = list(brokers)
    if not names:
        raise ConfigError("brokers", names, f"expected some of {sorted(masters)}")
    for name in names:
        if name not in masters:
            raise ConfigError("brokers", name, f"{place} {sorted(masters)}")
    return {name: masters[name] for name in names}


def _check_known(settings: Mapping[str, str], tables: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ConfigError for one of *settings* that is not in one of *tables*, by server."""
    for name in settings:
        if lacking := [server for server, table in tables.items() if name not in table]:
            from difflib import get_close_matches  # imported only for an error: it is slow

            near = get_close_matches(name, tables[lacking[0]], 1)
            hint = f": did you mean {near[0]}?" if near else ""
            reason = f"not a setting of {', '.join(lacking)}{hint} (config() returns all)"
            raise ConfigError("settings", name, f"{reason}; nothing was changed")


def _check_taken(settings: Mapping[str, str], held: Mapping[str, str], address: str) -> None:
    """Raise BrokerError for one of *settings* that a server acknowledged, and does not have."""
    for name, value in settings.items():
        # Properties of Java: a backslash begins an escape.
        if "\\" not in value and _canonical(held.get(name, "")) != _canonical(value):
            remark = f"it acknowledged {name}={value}, and holds {held.get(name)}: check the value"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark, address)


def _canonical(value: str) -> float | str:
    """Return the number of a value, or its text without case: servers write True as true."""
    try:
        return float(value)
    except ValueError:
        return value.strip().casefold()


async def before_change(call: Awaitable[T]) -> T:
    """Return what *call* reads for a change that has not begun; its errors say so."""
    try:
        return await call
    except AdminError as error:
        raise AdminError(
            error.action, error.done, error.failed, of=error.of, unchanged=True
        ) from error


def _remark_of(error: BrokerError, code: int) -> str | None:
    """Return a remark that says what the server of request *code* lacks, None if unknown."""
    said, since = (error.remark or "").strip(), first_release(code)
    if isinstance(error, NotSupportedError) and since is not None:
        return f"this needs a {server_kind(code)} of {since} or newer ({said})"
    if code in ACCESS_CONTROL and NOT_CONFIGURED.search(said):
        return f"{NO_PROVIDERS} ({said})"
    return None


def not_supported(address: str, reason: str) -> NotSupportedError:
    """Return the error for a broker that does not support a request."""
    return NotSupportedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, reason, address)


def failure(
    action: str,
    done: Mapping[str, object],
    failed: Mapping[str, RocketMQError],
    *,
    of: str = "servers",
) -> RocketMQError:
    """Return the common error of all servers, or `AdminError`."""
    for each in failed.values():
        if isinstance(each, ClosedError):  # the client, whatever the servers did
            return each
    first, *others = failed.values()
    if done or not all(_is_same(first, each) for each in others):
        return AdminError(action, done, failed, of=of)
    for each in others:
        first.add_note(f"likewise {each}")
    return first


def _is_same(first: RocketMQError, other: RocketMQError) -> bool:
    if not isinstance(first, BrokerError) or type(other) is not type(first):
        return False
    return first.code == other.code
