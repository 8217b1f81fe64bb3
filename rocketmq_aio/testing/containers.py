"""RocketMQ servers in containers of a local engine, through testcontainers."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import docker.errors
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient, get_docker_host
from testcontainers.core.network import Network

from rocketmq_aio.testing import conf, reaper
from rocketmq_aio.testing.errors import (
    ClusterError,
    NotSupportedError,
    StartError,
    UnavailableError,
)
from rocketmq_aio.testing.ports import BROKER, choose_port
from rocketmq_aio.testing.server import (
    STOP_SECONDS,
    TAIL_LINES,
    Backend,
    BrokerSpec,
    Launched,
    Server,
    check_same_version,
)

LABEL: Final = "rocketmq-aio.cluster"
ENGINE_SECONDS: Final = 2  # an engine that responds later is not used
PULL_SECONDS: Final = 300  # without progress
KILL_SECONDS: Final = 10
NAMESRV_PORT: Final = 9876
FAILURES: Final = (docker.errors.DockerException, OSError)
OTHERWISE: Final = "or use the backend 'jvm' or 'embedded'"
LOGS: Final = "/home/rocketmq/logs"

# The default heaps of the image are gigabytes.
NAMESRV_MEMORY: Final = "-Xms128m -Xmx128m -Xmn64m"
BROKER_MEMORY: Final = "-Xms512m -Xmx512m -Xmn256m -XX:MaxDirectMemorySize=512m"

# The configuration is an environment variable: an engine may not see our files.
START_BROKER: Final = (
    'printf %s "$BROKER_CONF" >/tmp/broker.conf && exec sh mqbroker -c /tmp/broker.conf'
)
# The first process of the image is a shell that does not forward signals.
STOP_JAVA: Final = """\
for process in /proc/[0-9]*; do
  case $(readlink "$process/exe") in */java) kill -TERM "${process#/proc/}" ;; esac
done"""


def image_of(version: str) -> str:
    return os.environ.get("ROCKETMQ_IMAGE") or f"apache/rocketmq:{version}"


def are_available(version: str) -> bool:
    """Return whether an engine responds that has, or can pull, the image of *version*."""
    try:
        _check_engine()
        engine = DockerClient(timeout=ENGINE_SECONDS).client
    except (docker.errors.DockerException, OSError):
        return False
    with closing(engine):
        try:
            engine.images.get(image_of(version))
        except docker.errors.ImageNotFound:
            return _pull(image_of(version))
        except (docker.errors.APIError, OSError):
            return False
    return True


def _check_engine() -> None:
    """Raise OSError if no engine listens: the client would too, but leak a socket."""
    address = urlsplit(get_docker_host() or "unix:///var/run/docker.sock")
    if address.scheme == "unix" and sys.platform != "win32":  # has engines at pipes
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ENGINE_SECONDS)
            connection.connect(address.path)


def _pull(image: str) -> bool:
    with closing(DockerClient(timeout=PULL_SECONDS).client) as engine:
        try:
            engine.images.pull(image)
        except (docker.errors.APIError, OSError):
            return False
    return True


class ContainerServer(Server):
    def __init__(self, name: str, container: DockerContainer) -> None:
        self._name = name
        self._container = container.start().get_wrapped_container()

    @property
    def pid(self) -> int | None:
        self._container.reload()
        state = self._container.attrs["State"]
        return int(state["Pid"]) if state["Running"] else None

    def start(self, version: str | None = None) -> None:
        if self.running:
            raise ClusterError(f"{self._name} is running already")
        check_same_version("docker", version)
        self._container.start()

    def kill(self) -> None:
        if self.running:
            self._thaw()
            self._container.kill()
            self._container.wait(timeout=KILL_SECONDS)

    def stop(self) -> None:
        if not self.running:
            return
        self._thaw()
        self._container.exec_run(["sh", "-c", STOP_JAVA])
        try:
            self._container.wait(timeout=STOP_SECONDS)
        except OSError:  # raised by requests after a timeout
            self.kill()

    def pause(self) -> None:
        if not self.running:
            raise ClusterError(f"{self._name} is not running")
        self._container.pause()

    def resume(self) -> None:
        self._container.unpause()

    def log_tail(self) -> str:
        return self._printed(tail=TAIL_LINES).decode(errors="replace")

    def save_logs(self, folder: Path) -> None:
        own = folder / self._name
        own.mkdir()
        (own / "stdout.log").write_bytes(self._printed())
        try:
            stream, _ = self._container.get_archive(LOGS)
        except docker.errors.NotFound:  # it exited before it wrote any
            return
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
            archive.extractall(own, filter="data")

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        done = self._container.exec_run(list(command), environment=dict(environment))
        assert isinstance(done.output, bytes)
        output = done.output.decode(errors="replace")
        if done.exit_code != 0:
            raise ClusterError(f"{' '.join(command)} failed:\n{output}")
        return output

    def _printed(self, tail: int | Literal["all"] = "all") -> bytes:
        return b"".join(self._container.logs(stream=True, follow=False, tail=tail))

    def _thaw(self) -> None:
        if self._container.status == "paused":
            self._container.unpause()


class _Pod(NamedTuple):
    """A shared network: id of its container, published ports by broker id."""

    id: str
    ports: list[int]


class ContainerBackend(Backend):
    """Runs servers in containers, with one network per cluster.

    If this process is killed, the containers are removed by testcontainers' Ryuk or, where
    that is disabled, by `reaper`.
    """

    name = "containers"

    def __init__(self, version: str) -> None:
        self._version = version
        self._label = {LABEL: uuid.uuid4().hex}
        self._namesrvs: list[str] = []
        self._servers: list[ContainerServer] = []
        self._pods: dict[str, _Pod] = {}
        self._cleanup = ExitStack()
        try:
            _check_engine()
            self._network = Network(docker_network_kw={"labels": self._label})
        except FAILURES as error:
            raise UnavailableError(
                f"no container engine answers ({error}):"
                " start one, or install one with: apt-get install docker.io"
            ) from error
        try:
            self._prepare()
        except BaseException as error:
            self.close()
            if isinstance(error, FAILURES):
                reason = f"the container engine makes no network ({error}); {OTHERWISE}"
                raise UnavailableError(reason) from error
            raise

    def namesrv(self, name: str, *, controller: bool = False) -> Launched:
        if controller:
            raise NotSupportedError("the backend 'docker' has no controllers; use 'jvm'")
        port = choose_port()
        container = self._container(self._version, NAMESRV_MEMORY)
        self._connect(container, name, {NAMESRV_PORT: port})
        container.with_command(["sh", "mqnamesrv"])
        self._namesrvs.append(f"{name}:{NAMESRV_PORT}")
        return self._launch(name, self._version, container, port)

    def broker(self, spec: BrokerSpec) -> Launched:
        if spec.dledger:
            raise NotSupportedError("the backend 'docker' has no dledger; use 'jvm'")
        container = self._container(spec.version, BROKER_MEMORY)
        # Clients receive brokerIP1:listenPort, so the port is the same inside and outside.
        if spec.replicas == 1:
            port = choose_port()
            self._connect(container, spec.name, {port: port})
        else:
            pod = self._pod_of(spec)
            port = pod.ports[spec.broker_id]
            container.with_kwargs(labels=self._label, network_mode=f"container:{pod.id}")
        properties = conf.broker_conf(spec, port, ";".join(self._namesrvs))
        container.with_env("BROKER_CONF", conf.properties_text(properties))
        container.with_command(["sh", "-c", START_BROKER])
        return self._launch(spec.name, spec.version, container, port)

    def mqadmin(self, arguments: Sequence[str]) -> str:
        server = next((each for each in reversed(self._servers) if each.running), None)
        if server is None:
            raise ClusterError("mqadmin runs in a container of the cluster, and none is running")
        return server.run(["sh", "mqadmin", *arguments], {"NAMESRV_ADDR": ";".join(self._namesrvs)})

    def save_logs(self, folder: Path) -> None:
        for server in self._servers:
            server.save_logs(folder)

    def close(self) -> None:
        self._cleanup.close()

    def _prepare(self) -> None:
        self._cleanup.callback(self._network._docker.client.close)
        if testcontainers_config.ryuk_disabled:
            self._start_reaper()
        self._network.create()
        self._cleanup.callback(self._network.remove)

    def _start_reaper(self) -> None:
        label = f"{LABEL}={self._label[LABEL]}"
        process = subprocess.Popen(
            # Not isolated: `docker` may be in the user's site-packages or on PYTHONPATH.
            [sys.executable, "-P", reaper.__file__, str(os.getpid()), label],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._cleanup.callback(process.communicate, b"\n")

    def _container(self, version: str, memory: str) -> DockerContainer:
        if version != self._version and os.environ.get("ROCKETMQ_IMAGE"):
            raise NotSupportedError(
                f"ROCKETMQ_IMAGE names one image, for {self._version} and not for {version}"
            )
        container = DockerContainer(image_of(version))
        container.with_env("JAVA_OPT_EXT", memory).with_kwargs(labels=self._label)
        return container

    def _connect(self, container: DockerContainer, name: str, ports: dict[int, int]) -> None:
        container.with_network(self._network).with_network_aliases(name)
        published: dict[str, Any] = {str(p): ("127.0.0.1", port) for p, port in ports.items()}
        container.ports = published

    def _pod_of(self, spec: BrokerSpec) -> _Pod:
        """Return the network of a master and its slaves.

        They know each other by the addresses that clients get: 127.0.0.1 with a port.  The network
        belongs to a container that only sleeps, so it survives the end of each broker.
        """
        if (pod := self._pods.get(spec.broker_name)) is None:
            ports = [choose_port(BROKER) for _ in range(spec.replicas)]
            container = self._container(spec.version, "")
            self._connect(container, spec.broker_name, {port: port for port in ports})
            container.with_command(["sleep", "infinity"])
            self._cleanup.callback(container.stop)
            pod = _Pod(str(container.start().get_wrapped_container().id), ports)
            self._pods[spec.broker_name] = pod
        return pod

    def _launch(self, name: str, version: str, container: DockerContainer, port: int) -> Launched:
        self._cleanup.callback(container.stop)
        try:
            server = ContainerServer(name, container)
        except FAILURES as error:
            reason = f"{name} cannot be started from the image {image_of(version)} ({error})"
            raise StartError(f"{reason}: ROCKETMQ_IMAGE names another one; {OTHERWISE}") from error
        self._servers.append(server)
        return Launched(name, f"127.0.0.1:{port}", server, version)
