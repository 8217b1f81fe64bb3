"""Servers of a cluster: name servers, controllers, masters, slaves, proxies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocketmq_aio.protocol.codes import MASTER_ID, RequestCode
from rocketmq_aio.testing import probe
from rocketmq_aio.testing.errors import ClusterError, NotSupportedError, StartError
from rocketmq_aio.testing.server import Launched

START_SECONDS: Final = 120.0
COPY_SECONDS: Final = 120.0  # slaves copy topics every 10 s; 5.5.0 took 60 on a busy machine


class Node:
    """Operations on one server; every call blocks until it is complete."""

    def __init__(self, launched: Launched, check: Callable[[], object]) -> None:
        self.name, self.address, self._server, self.version = launched
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
        """Continue after `pause`."""
        self._server.resume()

    def start(self, version: str | None = None) -> None:
        """Restart on the same port and data; return when it is ready.

        :param version: of RocketMQ, from now on; default: that of the last start
        :raises StartError: it is not ready within two minutes, or it exited
        :raises NotSupportedError: the version of a server can change on the backend "jvm" only
        """
        self._server.start(None if version == self.version else version)
        self.version = version or self.version
        self.wait_ready()

    def restart(self, version: str | None = None) -> None:
        """Stop and `start`."""
        self.stop()
        self.start(version)

    def wait_ready(self) -> None:
        """Wait until it responds.

        :raises StartError: it exited, or is not ready in time
        """
        try:
            probe.wait_until(self._alive_and_ready, seconds=START_SECONDS, what="not ready")
        except probe.ProbeTimeoutError as error:
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


class Slave(Node):
    """A replica of a master; it serves reads when the master does not run, or suggests it."""

    def __init__(
        self,
        launched: Launched,
        check: Callable[[], object],
        master: Broker,
        broker_id: int,
        access: probe.Access,
    ) -> None:
        super().__init__(launched, check)
        self.master = master
        self.broker_id = broker_id
        self._access = access

    def wait_copied(self, topic: str) -> None:
        """Wait until it has *topic* and all messages that the master has now.

        Slaves copy messages at once and topics every ten seconds; until then they respond to pulls
        that the topic does not exist (code 17).

        :raises ClusterError: the master does not run, or the copy takes more than two minutes
        """
        access, master = self._access, self.master.find_master()
        master.check_running()
        number = probe.queues(master.address, topic, access)
        wanted = probe.queue_ends(master.address, topic, number, access)

        def check() -> None:
            number = probe.queues(self.address, topic, access)
            ends = probe.queue_ends(self.address, topic, number, access)
            if len(ends) < len(wanted) or any(map(int.__lt__, ends, wanted)):
                raise probe.ProbeError(f"{self.name} has {ends} of {wanted}")

        probe.wait_until(check, seconds=COPY_SECONDS, what=f"{topic} not copied")


class Broker(Node):
    """A master; with a controller, the replica that was the first master.

    :ivar slaves: its replicas
    """

    def __init__(self, launched: Launched, check: Callable[[], object]) -> None:
        super().__init__(launched, check)
        self.slaves: list[Slave] = []

    @property
    def replicas(self) -> list[Node]:
        """All servers with this broker name, whatever their role is now."""
        return [self, *self.slaves]

    def find_master(self) -> Node:
        """Return the master: with a controller, the one that the name servers know now.

        :raises ClusterError: there is none now
        """
        return self


class ControlledBroker(Broker):
    """Replicas of which another one becomes the master when the master fails.

    :param namesrv: address of a name server
    :param controllers: addresses of the controllers; empty where the replicas elect the master
    """

    def __init__(
        self, launched: Launched, namesrv: str, controllers: str, access: probe.Access
    ) -> None:
        super().__init__(launched, lambda: check_registered(self, self.name, namesrv, access))
        self._namesrv = namesrv
        self._controllers = controllers
        self._access = access

    def find_master(self) -> Node:
        known = probe.members(self._namesrv, self.name, self._access).get(MASTER_ID)
        for each in self.replicas:
            if each.address == known:
                return each
        raise probe.ProbeError(f"{self.name} has no master now")

    def wait_new_master(self, old: Node) -> Node:
        """Return the master as soon as it is another one than *old*.

        :raises ClusterError: after two minutes
        """

        def check() -> None:
            if (now := self.find_master()) is old:
                raise probe.ProbeError(f"{now!r} is the master")
            found.append(now)

        found: list[Node] = []
        probe.wait_until(check, seconds=COPY_SECONDS, what=f"{self.name} has no new master")
        return found[-1]

    def wait_in_sync(self) -> None:
        """Wait until each running replica has all messages, so that any may be the next master.

        :raises NotSupportedError: there are no controllers to ask
        :raises ClusterError: after two minutes
        """
        if not self._controllers:
            raise NotSupportedError(f"{self.name} has no controllers, which know what is in sync")

        def check() -> None:
            wanted = {each.address for each in self.replicas if each.pid is not None}
            known = probe.in_sync(self._controllers, self.name)
            if not wanted <= known:
                raise probe.ProbeError(f"the controllers count {known} of {wanted}")

        probe.wait_until(check, seconds=COPY_SECONDS, what=f"{self.name} not in sync")


def check_registered(
    node: Node, broker_name: str, namesrv: str, access: probe.Access = probe.OPEN
) -> None:
    """Check that a replica of *broker_name* is registered, in any role, and responds.

    :raises ProbeError: it is not
    """
    known = probe.members(namesrv, broker_name, access)
    if node.address not in known.values() or MASTER_ID not in known:
        raise probe.ProbeError(f"{namesrv} knows {known}, without {node!r} or without a master")
    probe.ask(node.address, RequestCode.GET_BROKER_RUNTIME_INFO, access=access)


class Controller(Node):
    """A controller in a process of its own; the majority of a group elects its leader."""


class Proxy(Node):
    """A 5.x proxy in cluster mode; clients use its address as that of a name server."""


class NameServer(Node):
    """A name server. Brokers register again with a restarted one within about ten seconds."""
