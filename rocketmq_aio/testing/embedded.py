"""Backend that runs the embedded broker, in a thread of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.broker.state import (
    AUTO_CREATE_GROUPS,
    AUTO_CREATE_TOPICS,
    LIGHT_QUEUES,
    MULTI_DISPATCH,
)
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.name_server import EmbeddedNameServer
from rocketmq_aio.embedded.server import VERSIONS, EmbeddedServer
from rocketmq_aio.testing.conf import BROKER_DEFAULTS
from rocketmq_aio.testing.errors import ClusterError, NotSupportedError
from rocketmq_aio.testing.jvm import AdminTool
from rocketmq_aio.testing.security import Security
from rocketmq_aio.testing.server import Backend, BrokerSpec, Launched, Server, check_same_version

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}  # of messageDelayLevel


class EmbeddedServerControl(Server):
    """Starts, stops and freezes one server; it has no process of its own."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    @property
    def running(self) -> bool:
        return self._server.is_running

    def start(self, version: str | None = None) -> None:
        if self.running:
            raise ClusterError(f"{self._server.address} is running already")
        if not self._server.thread.elsewhere:
            raise ClusterError(f"{self._server.address} cannot start: its cluster is closed")
        check_same_version("embedded", version)
        self._server.start()

    def kill(self) -> None:
        self._server.kill()

    def stop(self) -> None:
        if self.running:
            self._server.stop()

    def pause(self) -> None:
        if not self.running:
            raise ClusterError(f"{self._server.address} is not running")
        self._server.freeze()

    def resume(self) -> None:
        self._server.resume()


class EmbeddedBackend(Backend):
    """An `EmbeddedCluster`; stored messages survive `kill` and `start` of a broker."""

    name = "embedded"

    def __init__(self, version: str, security: Security) -> None:
        _check_version(version)
        self._version = version
        self._security = security
        self._tool: AdminTool | None = None
        self._running = False
        self._more_name_servers: list[EmbeddedNameServer] = []
        self.cluster: EmbeddedCluster

    def launch(
        self, namesrvs: int, specs: Sequence[BrokerSpec]
    ) -> tuple[list[Launched], list[list[Launched]]]:
        """Start all servers; return name servers, and each master with its slaves."""
        if specs[0].sync_replication:
            raise NotSupportedError(
                "the embedded backend has no sync_replication:"
                " its slaves share the messages of their master; use 'jvm' or 'docker'"
            )
        if specs[0].is_replica:
            raise NotSupportedError(
                "the embedded backend has no elections: use EmbeddedBroker.promote, or 'jvm'"
            )
        for spec in specs:
            _check_version(spec.version)
        tls = self._security.tls
        context = None if tls is None else tls.server_context()
        self.cluster = EmbeddedCluster(
            len(specs),
            version=self._version,
            broker_versions=[spec.version for spec in specs],
            replicas=specs[0].replicas - 1,
            tls=context,
            accounts=self._security.accounts,
        )
        for broker, spec in zip(self.cluster.brokers, specs, strict=True):
            apply_properties(broker, spec.properties)
        self.cluster.__enter__()
        self._running = True
        for _ in range(namesrvs - 1):
            server = EmbeddedNameServer(
                version=self._version,
                tls=context,
                thread=self.cluster.thread,
                clock=self.cluster.clock,
                faults=self.cluster.faults,
            )
            server.errors = self.cluster.name_server.errors  # which are raised at the end
            self._more_name_servers.append(server)
            for broker in self.cluster.brokers:
                server.register(broker)
            server.start()
        names = [self.cluster.name_server, *self._more_name_servers]
        groups = [
            [
                _launched(spec._replace(broker_id=each.broker_id).name, each)
                for each in (broker, *broker.replicas)
            ]
            for broker, spec in zip(self.cluster.brokers, specs, strict=True)
        ]
        return [_launched(f"namesrv-{n}", server) for n, server in enumerate(names)], groups

    def mqadmin(self, arguments: Sequence[str]) -> str:
        """Run the tool of real servers, which needs Java and a download."""
        if self._tool is None:
            self._tool = AdminTool(self._version, self._security)
        return self._tool.run(arguments, self.cluster.namesrv)

    def close(self) -> None:
        if not self._running:
            return
        self._running = False
        with ExitStack() as stack:  # one that does not stop does not keep the others
            stack.callback(self.cluster.__exit__, None, None, None)
            for server in self._more_name_servers:
                stack.callback(server.stop)


def apply_properties(broker: EmbeddedBroker, properties: Mapping[str, str]) -> None:
    """Apply settings of broker.conf.

    :raises NotSupportedError: the embedded broker does not have one of them
    :raises ClusterError: its value cannot be read
    """
    for name, value in properties.items():
        if name in WITHOUT_EFFECT or BROKER_DEFAULTS.get(name) == value:
            continue  # the embedded broker behaves so
        if name in PROPERTIES:
            place, read = PROPERTIES[name]
            part, attribute = place.split(".")
            try:
                setattr(getattr(broker, part), attribute, read(value))
            except (ValueError, LookupError):
                raise ClusterError(f"broker property {name}={value!r} cannot be read") from None
        elif name not in SETTINGS:
            raise NotSupportedError(f"the embedded backend cannot set {name}={value}")
        broker.state.update_settings({name: value})


def _delay_levels(value: str) -> list[float]:
    return [int(text[:-1]) * UNITS[text[-1]] for text in value.split()]


def _seconds(value: str) -> float:
    return int(value) / 1000


# Settings of broker.conf: where they belong, and how their text is read.
PROPERTIES: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "messageDelayLevel": ("delays.seconds", _delay_levels),
    "transactionTimeOut": ("transactions.first_check_seconds", _seconds),
    "transactionCheckInterval": ("transactions.check_interval_seconds", _seconds),
    "transactionCheckMax": ("transactions.max_checks", int),
}


# Those that the embedded broker reads when they are needed.
SETTINGS: Final = frozenset(
    {AUTO_CREATE_TOPICS, AUTO_CREATE_GROUPS, LIGHT_QUEUES, MULTI_DISPATCH, "recallMessageEnable"}
)

# How real brokers record ended transactions: embedded ones do so at once.
WITHOUT_EFFECT: Final = frozenset({"transactionOpMsgMaxSize", "transactionOpBatchInterval"})


def _launched(name: str, server: EmbeddedServer) -> Launched:
    return Launched(name, server.address, EmbeddedServerControl(server), server.version.name)


def _check_version(version: str) -> None:
    if version not in VERSIONS:
        known = " and ".join(VERSIONS)
        raise NotSupportedError(f"the embedded backend has {known}, not {version!r}")
