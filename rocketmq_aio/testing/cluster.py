"""Cluster: name servers and brokers that are started for tests and removed after them."""

from __future__ import annotations

import json
import os
import string
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, Self, cast

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import probe
from rocketmq_aio.testing.backends import open_backend
from rocketmq_aio.testing.conf import CLUSTER_NAME
from rocketmq_aio.testing.errors import ClusterError, NotSupportedError, StartError
from rocketmq_aio.testing.external import ExternalBackend, ExternalServer
from rocketmq_aio.testing.jvm import UNSECURED
from rocketmq_aio.testing.security import Account, Security, ServerTLS
from rocketmq_aio.testing.server import Backend, Launched

if TYPE_CHECKING:
    from rocketmq_aio.embedded.clock import Clock
    from rocketmq_aio.embedded.cluster import EmbeddedCluster
    from rocketmq_aio.embedded.faults import Faults
    from rocketmq_aio.testing.embedded import EmbeddedBackend

DEFAULT_VERSION: Final = "5.5.0"
START_SECONDS: Final = 120.0
ROUTE_SECONDS: Final = 30.0  # until a new topic is registered with the name servers

_NO_CHANGES: Final[Mapping[str, str]] = MappingProxyType({})


class _Node:
    """Operations on one server; every call blocks until it is complete."""

    def __init__(self, launched: Launched, check: Callable[[], object]) -> None:
        self.name, self.address, self._server = launched
        self._check = check

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.address} pid={self.pid}>"

    @property
    def pid(self) -> int | None:
        """The process id on this machine; None while it is stopped or runs elsewhere."""
        return self._server.pid

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self._server.kill()

    def stop(self) -> None:
        """Shut down gracefully."""
        self._server.stop()

    def pause(self) -> None:
        """Freeze the process: connections stay open, requests get no response."""
        self._server.pause()

    def resume(self) -> None:
        self._server.resume()

    def start(self) -> None:
        """Restart on the same port and data; return when it is ready.

        :raises StartError: it is not ready within two minutes, or it exited
        """
        self._server.start()
        self.wait_ready()

    def restart(self) -> None:
        self.stop()
        self.start()

    def wait_ready(self) -> None:
        try:
            probe.wait_until(self._alive_and_ready, seconds=START_SECONDS, what="not ready")
        except TimeoutError as error:
            raise self._failure(str(error)) from error

    def check_running(self) -> None:
        """See `Cluster.check_running`."""
        if not self._server.running:
            output = self._server.log_tail()
            raise ClusterError(f"{self.name} at {self.address} does not run; it printed:\n{output}")

    def _alive_and_ready(self) -> None:
        if not self._server.running:
            raise self._failure("ended while it started")
        self._check()

    def _failure(self, reason: str) -> StartError:
        output = self._server.log_tail()
        return StartError(f"{self.name} at {self.address}: {reason}; it printed:\n{output}")


class Broker(_Node):
    """A master."""


class NameServer(_Node):
    """A name server. Brokers register again with a restarted one within about ten seconds."""


class Cluster:
    """Name servers and masters.

    `Cluster.start` returns a running cluster.  Leaving the ``with`` block, or `close`, stops its
    servers and removes their data.  So does the end of this process, even by SIGKILL.
    All calls block: use `asyncio.to_thread` in coroutines.
    """

    def __init__(self, backend: Backend, version: str, security: Security = UNSECURED) -> None:
        self._backend = backend
        self._security = security
        self._access = security.access()
        self.version = version
        self.namesrvs: list[NameServer] = []
        self.brokers: list[Broker] = []

    @classmethod
    def start(
        cls,
        version: str = DEFAULT_VERSION,
        *,
        brokers: int = 1,
        namesrvs: int = 1,
        backend: str = "auto",
        broker_properties: Mapping[str, str] = _NO_CHANGES,
        accounts: Iterable[Account] = (),
        tls: ServerTLS | None = None,
    ) -> Self:
        """Start servers and wait until every broker is registered and responds.

        *backend* is "embedded", "jvm", "docker", "external" or "auto", the first real one
        (`backends.open_backend`);
        *broker_properties* are lines for broker.conf.  With *accounts*, the first of which must be
        an admin, brokers enforce access control 1.0 (4.9) or 2.0.  With *tls* all servers
        use TLS, without it none does.  Both need the backend "embedded" or "jvm".  A failed start
        leaves only its logs behind.

        :raises UnavailableError: this machine cannot run RocketMQ
        :raises StartError: a server did not become ready; the message names the log folder
        """
        security = Security(accounts=tuple(accounts), tls=tls)
        cluster = cls(open_backend(backend, version, security), version, security)
        try:
            if isinstance(cluster._backend, ExternalBackend):
                cluster._find_servers(cluster._backend)
            elif (embedded := cluster._embedded) is not None:
                cluster._launch_embedded(embedded, namesrvs, brokers, broker_properties)
            else:
                cluster._launch(namesrvs, brokers, broker_properties)
        except StartError as error:
            logs = cluster.save_logs()
            cluster.close()
            raise StartError(str(error), logs=logs) from error.__cause__
        except BaseException:
            cluster.close()
            raise
        return cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and (logs := self.save_logs()) is not None:
            error.add_note(f"RocketMQ server logs: {logs}")
        self.close()

    @property
    def backend(self) -> str:
        """The backend: "embedded", "jvm", "containers" or "external"."""
        return self._backend.name

    @property
    def namesrv(self) -> str:
        """The addresses of the name servers, joined by semicolons, as clients accept them."""
        return ";".join(server.address for server in self.namesrvs)

    @property
    def faults(self) -> Faults:
        """Faults of the embedded cluster.

        :raises NotSupportedError: the servers are real: use `Broker.kill` and `Broker.pause`
        """
        return self._require_embedded("faults").faults

    @property
    def clock(self) -> Clock:
        """The clock of the embedded cluster.

        :raises NotSupportedError: the servers are real
        """
        return self._require_embedded("a clock that can be moved").clock

    def close(self) -> None:
        """Kill all servers and remove their data. Idempotent."""
        self._backend.close()

    def save_logs(self) -> Path | None:
        """Copy the servers' logs to a new folder and return it.

        None for an external cluster, and for the embedded one, which writes no logs.
        The folder is created in `ROCKETMQ_AIO_LOGS`, by default in the temporary folder.
        """
        if self._backend.name in ("embedded", "external"):
            return None
        parent = os.environ.get("ROCKETMQ_AIO_LOGS")
        if parent:
            Path(parent).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"rocketmq-{self.version}-logs-", dir=parent or None))
        self._backend.save_logs(folder)
        return folder

    def wait_ready(self) -> None:
        """Wait until every name server knows every broker and all servers respond."""
        for node in (*self.namesrvs, *self.brokers):
            node.wait_ready()

    def check_running(self) -> None:
        """Check that all servers are running.

        :raises ClusterError: a server exited; the message contains its last output
        """
        if not isinstance(self._backend, ExternalBackend):
            for node in (*self.namesrvs, *self.brokers):
                node.check_running()

    def create_topic(
        self, name: str, *, queues: int = 8, brokers: Iterable[Broker] | None = None
    ) -> None:
        """Create or change a topic, on all *brokers* by default; return when its route is known."""
        chosen = self.brokers if brokers is None else list(brokers)
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }
        for broker in chosen:
            self._ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        probe.wait_until(
            lambda: self._check_route(name, chosen), seconds=ROUTE_SECONDS, what=f"{name} not found"
        )

    def delete_topic(self, name: str) -> None:
        fields = {"topic": name}
        for broker in self.brokers:
            self._ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, fields)
        for server in self.namesrvs:
            self._ask(server, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)

    def create_group(self, name: str) -> None:
        """Create a consumer group with the defaults of the broker."""
        body = json.dumps({"groupName": name}).encode()
        for broker in self.brokers:
            self._ask(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    def delete_group(self, name: str) -> None:
        for broker in self.brokers:
            fields = {"groupName": name, "cleanOffset": "true"}
            self._ask(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)

    def mqadmin(self, *arguments: str) -> str:
        """Run the official admin tool against this cluster and return its output."""
        return self._backend.mqadmin(arguments)

    def _require_embedded(self, what: str) -> EmbeddedCluster:
        if (embedded := self._embedded) is None:
            reason = f"only the embedded broker has {what}, and this cluster is {self.backend}"
            raise NotSupportedError(reason)
        return embedded.cluster

    @property
    def _embedded(self) -> EmbeddedBackend | None:
        if self._backend.name != "embedded":
            return None
        return cast("EmbeddedBackend", self._backend)

    def _launch_embedded(
        self, backend: EmbeddedBackend, namesrvs: int, brokers: int, changes: Mapping[str, str]
    ) -> None:
        names, masters = backend.launch(namesrvs, brokers, changes)
        for launched in names:
            self._add_namesrv(launched)
        for launched in masters:
            self._add_broker(launched)

    def _launch(self, namesrvs: int, brokers: int, changes: Mapping[str, str]) -> None:
        for letter in _letters(namesrvs, "namesrvs"):
            self._add_namesrv(self._backend.namesrv(f"namesrv-{letter}"))
        for namesrv in self.namesrvs:
            namesrv.wait_ready()
        for letter in _letters(brokers, "brokers"):
            properties = {**self._security.broker_properties(self.version), **changes}
            self._add_broker(self._backend.broker(f"broker-{letter}", properties))
        for broker in self.brokers:
            broker.wait_ready()
            self._security.create_accounts(self.version, broker.address)

    def _ask(
        self, node: _Node, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> None:
        probe.ask(node.address, code, fields, body, self._access)

    def _add_namesrv(self, launched: Launched) -> None:
        def check() -> None:
            probe.masters(launched.address, CLUSTER_NAME, self._access)

        self.namesrvs.append(NameServer(launched, check))

    def _add_broker(self, launched: Launched) -> None:
        def check() -> None:
            # Every broker registers a topic of its own name, whatever its settings.
            self._check_route(launched.name, [broker])
            self._ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)

        broker = Broker(launched, check)
        self.brokers.append(broker)

    def _check_route(self, topic: str, brokers: Sequence[Broker]) -> None:
        for server in self.namesrvs:
            known = probe.masters(server.address, topic, self._access)
            for broker in brokers:
                if known.get(broker.name) != broker.address:
                    raise probe.ProbeError(f"{server.address} does not know {topic} on {broker!r}")

    def _find_servers(self, backend: ExternalBackend) -> None:
        for number, address in enumerate(backend.addresses):
            self._add_namesrv(Launched(f"namesrv-{number}", address, ExternalServer()))
        try:
            found = probe.cluster_masters(backend.addresses[0])
        except OSError as error:
            raise StartError(
                f"no name server answers at {backend.addresses[0]}: {error}"
            ) from error
        for name, address in sorted(found.items()):
            self._add_broker(Launched(name, address, ExternalServer()))
        if not self.brokers:
            raise StartError(f"no broker is registered at {self.namesrv}")


def _letters(count: int, what: str) -> str:
    if not 1 <= count <= len(string.ascii_lowercase):
        raise ClusterError(f"{what}={count}: at least 1, at most 26")
    return string.ascii_lowercase[:count]
