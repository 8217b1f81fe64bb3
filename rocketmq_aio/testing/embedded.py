"""Backend that runs the embedded broker, in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.server import VERSIONS, EmbeddedServer
from rocketmq_aio.testing.errors import ClusterError, NotSupportedError
from rocketmq_aio.testing.jvm import AdminTool
from rocketmq_aio.testing.security import Security
from rocketmq_aio.testing.server import Backend, Launched, Server

T = TypeVar("T")
CALL_SECONDS: Final = 30.0  # for a start or a stop; reached only if the thread hangs
FLAGS: Final = {
    "autoCreateTopicEnable": "auto_create_topics",
    "autoCreateSubscriptionGroup": "auto_create_groups",
}


class LoopThread:
    """An event loop in a thread of its own, for blocking callers."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="rocketmq-embedded", daemon=True
        )
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* in the thread and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_SECONDS)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_SECONDS)
            self._loop.close()


class EmbeddedServerControl(Server):
    """Starts and stops one server; it has no process of its own."""

    def __init__(self, thread: LoopThread, server: EmbeddedServer) -> None:
        self._thread = thread
        self._server = server
        self._running = True

    @property
    def pid(self) -> int | None:
        return None

    @property
    def running(self) -> bool:
        return self._running

    def start(self) -> None:
        if self._running:
            raise ClusterError(f"{self._server.address} is running already")
        self._thread.run(self._server.start())
        self._running = True

    def kill(self) -> None:
        self._thread.run(self._server.stop())
        self._running = False

    def stop(self) -> None:
        self.kill()

    def pause(self) -> None:
        raise NotSupportedError("the embedded backend cannot freeze a server yet")

    def resume(self) -> None:
        raise NotSupportedError("the embedded backend cannot freeze a server yet")

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
        self._thread: LoopThread | None = None
        self._tool: AdminTool | None = None
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
        self._thread = LoopThread()
        self._thread.run(self.cluster.__aenter__())
        names = [self._launched("namesrv-a", self.cluster.name_server)]
        return names, [self._launched(each.name, each) for each in self.cluster.brokers]

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
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        try:
            thread.run(self.cluster.__aexit__(None, None, None))
        finally:
            thread.close()

    def _launched(self, name: str, server: EmbeddedServer) -> Launched:
        assert self._thread is not None
        return Launched(name, server.address, EmbeddedServerControl(self._thread, server))


def _settings(properties: Mapping[str, str]) -> dict[str, Any]:
    for name, value in properties.items():
        if name not in FLAGS or value not in ("true", "false"):
            raise NotSupportedError(f"the embedded backend cannot set {name}={value}")
    return {FLAGS[name]: value == "true" for name, value in properties.items()}
