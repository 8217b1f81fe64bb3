"""Backend that runs the embedded broker, in a thread of this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.server import VERSIONS, EmbeddedServer
from rocketmq_aio.testing.errors import ClusterError, NotSupportedError
from rocketmq_aio.testing.jvm import AdminTool
from rocketmq_aio.testing.security import Security
from rocketmq_aio.testing.server import Backend, Launched, Server

FLAGS: Final = {
    "autoCreateTopicEnable": "auto_create_topics",
    "autoCreateSubscriptionGroup": "auto_create_groups",
}


class EmbeddedServerControl(Server):
    """Starts and stops one server; it has no process of its own."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    @property
    def pid(self) -> int | None:
        return None

    @property
    def running(self) -> bool:
        return self._server.is_running

    def start(self) -> None:
        if self.running:
            raise ClusterError(f"{self._server.address} is running already")
        self._server.start()

    def kill(self) -> None:
        self._server.kill()

    def stop(self) -> None:
        self._server.stop()

    def pause(self) -> None:
        self._server.freeze()

    def resume(self) -> None:
        self._server.resume()

    def log_tail(self) -> str:
        return ""


class EmbeddedBackend(Backend):
    """An `EmbeddedCluster`; stored messages survive `kill` and `start` of a broker."""

    name = "embedded"

    def __init__(self, version: str, security: Security) -> None:
        if version not in VERSIONS:
            known = " and ".join(VERSIONS)
            raise NotSupportedError(f"the embedded backend has {known}, not {version!r}")
        self._version = version
        self._security = security
        self._tool: AdminTool | None = None
        self._running = False
        self.cluster: EmbeddedCluster

    def launch(
        self, namesrvs: int, brokers: int, properties: Mapping[str, str]
    ) -> tuple[list[Launched], list[Launched]]:
        """Start all servers; return name servers and brokers."""
        if namesrvs != 1:
            raise NotSupportedError("the embedded backend has one name server")
        tls = self._security.tls
        self.cluster = EmbeddedCluster(
            brokers,
            version=self._version,
            tls=None if tls is None else tls.server_context(),
            accounts=self._security.accounts,
            **_settings(properties),
        )
        self.cluster.__enter__()
        self._running = True
        names = [_launched("namesrv-a", self.cluster.name_server)]
        return names, [_launched(each.name, each) for each in self.cluster.brokers]

    def namesrv(self, name: str) -> Launched:
        raise NotImplementedError("use launch")

    def broker(self, name: str, changes: Mapping[str, str]) -> Launched:
        raise NotImplementedError("use launch")

    def mqadmin(self, arguments: Sequence[str]) -> str:
        """Run the tool of real servers, which needs Java and a download."""
        if self._tool is None:
            self._tool = AdminTool(self._version, self._security)
        return self._tool.run(arguments, self.cluster.namesrv)

    def save_logs(self, folder: Path) -> None:
        """Do nothing: it writes no logs."""

    def close(self) -> None:
        if self._running:
            self._running = False
            self.cluster.__exit__(None, None, None)


def _launched(name: str, server: EmbeddedServer) -> Launched:
    return Launched(name, server.address, EmbeddedServerControl(server))


def _settings(properties: Mapping[str, str]) -> dict[str, Any]:
    for name, value in properties.items():
        if name not in FLAGS or value not in ("true", "false"):
            raise NotSupportedError(f"the embedded backend cannot set {name}={value}")
    return {FLAGS[name]: value == "true" for name, value in properties.items()}
