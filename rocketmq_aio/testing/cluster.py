"""Cluster: name servers and brokers that are started for tests and removed after them."""

from __future__ import annotations

import json
import os
import string
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
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
from rocketmq_aio.testing.nodes import (
    Broker,
    ControlledBroker,
    Controller,
    NameServer,
    Node,
    Proxy,
    Slave,
    check_registered,
)
from rocketmq_aio.testing.security import Account, Security, ServerTLS
from rocketmq_aio.testing.server import Backend, BrokerSpec, Launched

if TYPE_CHECKING:
    from rocketmq_aio.embedded.clock import Clock
    from rocketmq_aio.embedded.cluster import EmbeddedCluster
    from rocketmq_aio.embedded.faults import Faults
    from rocketmq_aio.testing.embedded import EmbeddedBackend

DEFAULT_VERSION: Final = "5.5.0"
MAX_SERVERS: Final = len(string.ascii_lowercase)  # of a kind; each has a letter
MIN_DLEDGER_SLAVES: Final = 2  # a majority of two would be both
ROUTE_SECONDS: Final = 30.0  # until a new topic is registered with the name servers

_NO_CHANGES: Final[Mapping[str, str]] = MappingProxyType({})


class Cluster:
    """Name servers, controllers, masters and their slaves, proxies.

    `Cluster.start` returns a running cluster.  Leaving the ``with`` block, or `close`, stops its
    servers and removes their data.  So does the end of this process, even by SIGKILL.
    All calls block: use `asyncio.to_thread` in coroutines.
    """

    def __init__(self, backend: Backend, version: str, security: Security = UNSECURED) -> None:
        if isinstance(backend, str):
            raise TypeError("use Cluster.start(), which starts the servers of a cluster")
        self._backend = backend
        self._security = security
        self._access = security.access()
        self.version = version
        self.namesrvs: list[NameServer] = []
        self.controllers: list[Controller] = []
        self.brokers: list[Broker] = []
        self.proxies: list[Proxy] = []

    @classmethod
    def start(
        cls,
        version: str = DEFAULT_VERSION,
        *,
        brokers: int = 1,
        namesrvs: int = 1,
        slaves: int = 0,
        sync_replication: bool = False,
        controller: bool = False,
        controllers: int = 0,
        dledger: bool = False,
        broker_versions: Sequence[str] = (),
        proxies: int = 0,
        backend: str = "auto",
        broker_properties: Mapping[str, str] = _NO_CHANGES,
        accounts: Iterable[Account] = (),
        tls: ServerTLS | None = None,
    ) -> Self:
        """Start servers and wait until every broker is registered and responds.

        *backend* is "embedded", "jvm", "docker", "external" or "auto", the first real one
        (`backends.open_backend`);
        *broker_properties* are lines for broker.conf.  Each of the *brokers* is a master with
        *slaves* slaves (`Broker.slaves`); with *sync_replication* it confirms a message when a
        slave has it.  With *controller* (5.x, backend "jvm") a controller in the first name server
        makes another replica the master when the master fails (`ControlledBroker`);
        *sync_replication* is then ``allAckInSyncStateSet``.  *controllers* are as many controllers
        in processes of their own (`find_leader`), in place of the one in the name server.  With
        *dledger* (backend "jvm") the replicas elect the master themselves, also on 4.9; a majority
        must run.
        *broker_versions* are the versions of the masters, in place of *brokers*, and of their
        slaves; name servers and admin tool are of *version*.  *proxies* are 5.x proxies in cluster
        mode, in front of all brokers.

        With *accounts*, the first of which must be an admin, brokers enforce access control 1.0
        (4.9) or 2.0.  With *tls* all servers use TLS, without it none does.  Both need the backend
        "embedded" or "jvm".  A failed start leaves only its logs behind.

        :raises NotSupportedError: the backend cannot do this
        :raises UnavailableError: this machine cannot run RocketMQ
        :raises StartError: a server did not become ready; the message names the log folder
        """
        security = Security(accounts=tuple(accounts), tls=tls)
        controlled = controller or controllers > 0
        if dledger:
            _check_dledger(slaves, controlled=controlled, sync_replication=sync_replication)
        if controlled and any(each.startswith("4.") for each in (version, *broker_versions)):
            raise NotSupportedError("RocketMQ before 5.0 has no controllers, which choose masters")
        cluster = cls(open_backend(backend, version, security), version, security)
        try:
            _letters(namesrvs, "namesrvs")
            _letters(slaves, "slaves", least=0)
            _letters(controllers, "controllers", least=0)
            _letters(proxies, "proxies", least=0)
            _check_texts(broker_properties)
            specs = [
                BrokerSpec(
                    broker_name=f"broker-{letter}",
                    version=each,
                    properties=broker_properties,
                    replicas=1 + slaves,
                    sync_replication=sync_replication,
                    controlled=controlled,
                    dledger=dledger,
                )
                for letter, each in _versions(brokers, broker_versions, version)
            ]
            if isinstance(cluster._backend, ExternalBackend):
                if slaves or sync_replication or controlled or dledger or broker_versions:
                    cluster._backend.refuse_choice()
                cluster._find_servers(cluster._backend)
            elif (embedded := cluster._embedded) is not None:
                cluster._launch_embedded(embedded, namesrvs, specs)
            else:
                cluster._launch_controllers(controllers)
                cluster._launch(namesrvs, specs)
                cluster._launch_slaves(specs)
            cluster._launch_proxies(proxies)
        except BaseException as error:
            with closing(cluster):
                if isinstance(error, StartError):
                    logs = cluster._save_logs_of_failure()
                    raise StartError(str(error), logs=logs) from error.__cause__
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
        with closing(self):
            if isinstance(error, Exception) and (logs := self._save_logs_of_failure()) is not None:
                error.add_note(f"RocketMQ server logs: {logs}")

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
        for node in self._nodes:
            node.wait_ready()

    def check_running(self) -> None:
        """Check that all servers are running.

        :raises ClusterError: a server exited; the message contains its last output
        """
        if not isinstance(self._backend, ExternalBackend):
            for node in self._nodes:
                node.check_running()

    def find_leader(self) -> Controller:
        """Return the leader of the controllers.

        :raises ClusterError: there is none now, or none in a process of its own
        """
        if not self.controllers:
            raise ClusterError("no controllers in processes of their own: controllers=3")
        known = probe.leader(self._backend.controller)
        for each in self.controllers:
            if each.address == known and each.pid is not None:
                return each
        raise probe.ProbeError(f"{known} does not lead the controllers {self.controllers}")

    def create_topic(
        self, name: str, *, queues: int = 8, brokers: Iterable[Broker] | None = None
    ) -> None:
        """Create or change a topic, on all *brokers* by default; return when its route is known.

        Slaves copy it later: `Slave.wait_copied`.

        :raises ClusterError: a broker does not respond or rejects it, or a name server does not
            know the route within 30 s
        """
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
            self._ask(broker.find_master(), RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        what = f"no route of topic {name} (do all servers run? `check_running`)"
        probe.wait_until(lambda: self._check_route(name, chosen), seconds=ROUTE_SECONDS, what=what)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages, at brokers and name servers."""
        fields = {"topic": name}
        for broker in self.brokers:
            self._ask(broker.find_master(), RequestCode.DELETE_TOPIC_IN_BROKER, fields)
        for server in self.namesrvs:
            self._ask(server, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)

    def create_group(self, name: str) -> None:
        """Create a consumer group with the defaults of the broker."""
        body = json.dumps({"groupName": name}).encode()
        for broker in self.brokers:
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            self._ask(broker.find_master(), code, body=body)

    def delete_group(self, name: str) -> None:
        """Delete a consumer group and its offsets."""
        for broker in self.brokers:
            fields = {"groupName": name, "cleanOffset": "true"}
            self._ask(broker.find_master(), RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)

    def mqadmin(self, *arguments: str) -> str:
        """Run the official admin tool against this cluster and return its output."""
        return self._backend.mqadmin(arguments)

    def _save_logs_of_failure(self) -> Path | None:
        """Copy the logs if possible: the disk may be full, which may be why the servers failed."""
        try:
            return self.save_logs()
        except OSError:
            return None

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

    @property
    def _nodes(self) -> list[Node]:
        slaves = [slave for broker in self.brokers for slave in broker.slaves]
        return [*self.namesrvs, *self.controllers, *self.brokers, *slaves, *self.proxies]

    def _launch_embedded(
        self, backend: EmbeddedBackend, namesrvs: int, specs: Sequence[BrokerSpec]
    ) -> None:
        names, groups = backend.launch(namesrvs, specs)
        for launched in names:
            self._add_namesrv(launched)
        for master, *slaves in groups:
            broker = self._add_broker(master)
            for number, launched in enumerate(slaves, 1):
                self._add_slave(launched, broker, number)

    def _launch_controllers(self, count: int) -> None:
        """Start a group of controllers; they elect a leader while name servers start."""
        if not count:
            return
        names = [f"controller-{letter}" for letter in _letters(count, "controllers")]
        for launched in self._backend.controllers(names):
            self.controllers.append(Controller(launched, partial(probe.leader, launched.address)))

    def _launch(self, namesrvs: int, specs: Sequence[BrokerSpec]) -> None:
        for letter in _letters(namesrvs, "namesrvs"):
            first = specs[0].controlled and not self.namesrvs and not self.controllers
            self._add_namesrv(self._backend.namesrv(f"namesrv-{letter}", controller=first))
        for server in (*self.namesrvs, *self.controllers):
            server.wait_ready()
        for spec in specs:
            launched = self._backend.broker(self._secured(spec))
            if spec.is_replica:
                address, controller = self.namesrvs[0].address, self._backend.controller
                self.brokers.append(ControlledBroker(launched, address, controller, self._access))
            else:
                self._add_broker(launched)
        if not specs[0].dledger:
            self._wait_brokers()

    def _wait_brokers(self) -> None:
        for broker in self.brokers:
            broker.wait_ready()
            self._security.create_accounts(broker.version, broker.address)

    def _launch_slaves(self, specs: Sequence[BrokerSpec]) -> None:
        """Start the slaves of running masters: others would find their master 10 s later."""
        for broker, spec in zip(self.brokers, specs, strict=True):
            for number in range(1, spec.replicas):
                launched = self._backend.broker(self._secured(spec)._replace(broker_id=number))
                self._add_slave(launched, broker, number)
        if specs[0].dledger:
            self._wait_brokers()
        for broker in self.brokers:
            for slave in broker.slaves:
                slave.wait_ready()

    def _launch_proxies(self, count: int) -> None:
        for letter in _letters(count, "proxies", least=0):
            launched = self._backend.proxy(f"proxy-{letter}")
            self.proxies.append(Proxy(launched, partial(self._check_proxy, launched.address)))
        for proxy in self.proxies:
            proxy.wait_ready()

    def _check_proxy(self, address: str) -> None:
        for broker in self.brokers:
            if probe.masters(address, broker.name).get(broker.name) != address:
                raise probe.ProbeError(f"{address} does not know {broker!r}")

    def _secured(self, spec: BrokerSpec) -> BrokerSpec:
        access_control = self._security.broker_properties(spec.version)
        return spec._replace(properties={**access_control, **spec.properties})

    def _ask(
        self, node: Node, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> None:
        try:
            probe.ask(node.address, code, fields, body, self._access)
        except OSError as error:
            reason = f"{node!r} does not respond ({error}): start it, or see `check_running`"
            raise probe.ProbeError(reason) from error

    def _add_namesrv(self, launched: Launched) -> None:
        def check() -> None:
            probe.masters(launched.address, CLUSTER_NAME, self._access)

        self.namesrvs.append(NameServer(launched, check))

    def _add_broker(self, launched: Launched) -> Broker:
        def check() -> None:
            # Every broker registers a topic of its own name, whatever its settings.
            self._check_route(launched.name, [broker])
            self._ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)

        broker = Broker(launched, check)
        self.brokers.append(broker)
        return broker

    def _add_slave(self, launched: Launched, master: Broker, broker_id: int) -> None:
        def check() -> None:
            if isinstance(master, ControlledBroker):
                for server in self.namesrvs:
                    check_registered(slave, master.name, server.address, self._access)
                return
            for server in self.namesrvs:
                known = probe.members(server.address, master.name, self._access)
                if known.get(broker_id) != launched.address:
                    raise probe.ProbeError(f"{server.address} does not know {slave!r}")
            self._ask(slave, RequestCode.GET_BROKER_RUNTIME_INFO)

        slave = Slave(launched, check, master, broker_id, self._access)
        master.slaves.append(slave)

    def _check_route(self, topic: str, brokers: Sequence[Broker]) -> None:
        for server in self.namesrvs:
            known = probe.masters(server.address, topic, self._access)
            for broker in brokers:
                if known.get(broker.name) != broker.find_master().address:
                    raise probe.ProbeError(f"{server.address} does not know {topic} on {broker!r}")

    def _find_servers(self, backend: ExternalBackend) -> None:
        for number, address in enumerate(backend.addresses):
            launched = Launched(f"namesrv-{number}", address, ExternalServer(), self.version)
            self._add_namesrv(launched)
        try:
            found = probe.cluster_masters(backend.addresses[0])
        except OSError as error:
            raise StartError(
                f"no name server answers at {backend.addresses[0]}: {error}"
            ) from error
        for name, address in sorted(found.items()):
            self._add_broker(Launched(name, address, ExternalServer(), self.version))
        if not self.brokers:
            raise StartError(f"no broker is registered at {self.namesrv}")


def _versions(brokers: int, versions: Sequence[str], default: str) -> list[tuple[str, str]]:
    """Return letter and version of each broker."""
    if versions and brokers not in (1, len(versions)):
        raise ClusterError(f"brokers={brokers}, but broker_versions has {len(versions)}")
    chosen = list(versions) or [default] * brokers
    return list(zip(_letters(len(chosen), "brokers"), chosen, strict=True))


def _check_dledger(slaves: int, *, controlled: bool, sync_replication: bool) -> None:
    if controlled or sync_replication or slaves < MIN_DLEDGER_SLAVES:
        raise ClusterError(
            f"dledger=True with slaves={slaves}, controller={controlled} and"
            f" sync_replication={sync_replication}: replicas that elect a master are three or"
            " more (slaves=2), copy in step, and have no controller"
        )


def _check_texts(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if not isinstance(value, str):
            reason = "expected text as in broker.conf, such as 'true' or '1000'"
            raise ClusterError(f"broker property {name}={value!r}: {reason}")


def _letters(count: int, what: str, least: int = 1) -> str:
    if not least <= count <= MAX_SERVERS:
        raise ClusterError(f"{what}={count}: at least {least}, at most {MAX_SERVERS}")
    return string.ascii_lowercase[:count]
