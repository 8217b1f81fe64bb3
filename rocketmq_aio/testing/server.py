"""Interfaces of backends and their servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rocketmq_aio.testing.errors import NotSupportedError

TAIL_LINES: Final = 30
STOP_SECONDS: Final = 60.0  # a 5.5.0 broker takes 17 on an idle machine


def check_same_version(backend: str, version: str | None) -> None:
    """Raise for a change of version on a backend other than "jvm".

    :raises NotSupportedError: *version* is not None
    """
    if version is not None:
        raise NotSupportedError(
            f"the {backend} backend cannot change the version of a server: use 'jvm'"
        )


class Server(ABC):
    """One server of a cluster, running or stopped; data exists until `Backend.close`."""

    @property
    def pid(self) -> int | None:
        """The process id on this machine, None while it is not running, or has none of its own."""
        return None

    @abstractmethod
    def start(self, version: str | None = None) -> None:
        """Start on the same port and data, without waiting until it is ready.

        :param version: from now on; default: that of the last start
        :raises NotSupportedError: the version of this server cannot be changed
        """

    @abstractmethod
    def kill(self) -> None:
        """Kill the process (SIGKILL); return when it has ended."""

    @abstractmethod
    def stop(self) -> None:
        """Shut down gracefully; kill it after `STOP_SECONDS`."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze the process: connections stay open, requests get no response."""

    @abstractmethod
    def resume(self) -> None: ...

    def log_tail(self) -> str:
        """Return the last lines of its output, if it is known here."""
        return ""

    @property
    def running(self) -> bool:
        return self.pid is not None


class Launched(NamedTuple):
    """A server and its address as seen from this machine."""

    name: str
    address: str
    server: Server
    version: str


class BrokerSpec(NamedTuple):
    """A broker to start.

    :param broker_name: shared by a master and its slaves
    :param broker_id: 0 is the master
    :param replicas: number of brokers with this name
    :param sync_replication: the master waits for a slave before it confirms a message
    :param controlled: a controller chooses the master; the broker id is only part of the name
    :param dledger: the replicas elect the master; likewise
    :param properties: lines of broker.conf beyond those of `conf.broker_conf`
    """

    broker_name: str
    version: str
    properties: Mapping[str, str]
    broker_id: int = 0
    replicas: int = 1
    sync_replication: bool = False
    controlled: bool = False
    dledger: bool = False

    @property
    def is_replica(self) -> bool:
        """Whether it may become the master."""
        return self.controlled or self.dledger

    @property
    def name(self) -> str:
        """The name of the server, of its folder and of its logs."""
        if self.broker_id == 0:
            return self.broker_name
        role = "replica" if self.is_replica else "slave"
        return f"{self.broker_name}-{role}-{self.broker_id}"


class Backend(ABC):
    """Runs the servers of one cluster.

    :ivar controller: addresses of the controllers, joined by semicolons; empty without one
    """

    name: str
    controller: str = ""

    def namesrv(self, name: str, *, controller: bool = False) -> Launched:
        """Start a name server. Start all name servers before the first broker.

        :param controller: run a controller in it, which brokers started later register with
        :raises NotSupportedError: this backend has no controllers
        """
        raise NotImplementedError

    def controllers(self, names: Sequence[str]) -> list[Launched]:
        """Start a group of controllers, which brokers started later register with.

        :raises NotSupportedError: this backend has none
        """
        raise NotSupportedError(f"controllers need the backend 'jvm', not {self.name!r}")

    def broker(self, spec: BrokerSpec) -> Launched:
        """Start a broker that registers with all name servers started so far.

        Start a master before its slaves.
        """
        raise NotImplementedError

    def proxy(self, name: str) -> Launched:
        """Start a proxy in cluster mode, in front of all brokers.

        :raises NotSupportedError: this backend has no proxies
        """
        raise NotSupportedError(f"proxies need the backend 'jvm', not {self.name!r}")

    @abstractmethod
    def mqadmin(self, arguments: Sequence[str]) -> str:
        """Run the official admin tool and return its output."""

    def save_logs(self, folder: Path) -> None:  # noqa: B027 - not all backends have logs
        """Copy the server logs, if there are any, to *folder*."""

    @abstractmethod
    def close(self) -> None:
        """Kill all servers and remove their data. Idempotent."""
