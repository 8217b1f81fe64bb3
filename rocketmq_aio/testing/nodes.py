"""Servers of a cluster: name servers, masters, slaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocketmq_aio.testing import probe
from rocketmq_aio.testing.errors import ClusterError, StartError
from rocketmq_aio.testing.server import Launched

START_SECONDS: Final = 120.0
COPY_SECONDS: Final = 60.0  # slaves copy topics every 10 s


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

        :raises ClusterError: the master does not run, or the copy takes more than a minute
        """
        access = self._access
        self.master.check_running()
        number = probe.queues(self.master.address, topic, access)
        wanted = probe.queue_ends(self.master.address, topic, number, access)

        def check() -> None:
            number = probe.queues(self.address, topic, access)
            ends = probe.queue_ends(self.address, topic, number, access)
            if len(ends) < len(wanted) or any(map(int.__lt__, ends, wanted)):
                raise probe.ProbeError(f"{self.name} has {ends} of {wanted}")

        try:
            probe.wait_until(check, seconds=COPY_SECONDS, what=f"{topic} not copied")
        except TimeoutError as error:
            raise ClusterError(str(error)) from error


class Broker(Node):
    """A master.

    :ivar slaves: its replicas
    """

    def __init__(self, launched: Launched, check: Callable[[], object]) -> None:
        super().__init__(launched, check)
        self.slaves: list[Slave] = []


class NameServer(Node):
    """A name server. Brokers register again with a restarted one within about ten seconds."""
