"""Backend for an existing cluster, named by ROCKETMQ_NAMESRV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.address import parse_addresses
from rocketmq_aio.testing.errors import ClusterError, NotOwnedError
from rocketmq_aio.testing.server import Backend, BrokerSpec, Launched, Server


def refuse() -> NoReturn:
    raise NotOwnedError(
        "the cluster of ROCKETMQ_NAMESRV is external: it cannot be started or stopped here"
    )


class ExternalServer(Server):
    @property
    def pid(self) -> int | None:
        return None

    def start(self, version: str | None = None) -> None:
        refuse()

    def kill(self) -> None:
        refuse()

    def stop(self) -> None:
        refuse()

    def pause(self) -> None:
        refuse()

    def resume(self) -> None:
        refuse()

    def log_tail(self) -> str:
        return ""


class ExternalBackend(Backend):
    name = "external"

    def __init__(self, namesrv: str) -> None:
        if not namesrv:
            raise ClusterError("set ROCKETMQ_NAMESRV to the name server of the external cluster")
        try:
            self.addresses = list(parse_addresses(namesrv, setting="ROCKETMQ_NAMESRV"))
        except ConfigError as error:
            raise ClusterError(str(error)) from None

    def refuse_choice(self) -> NoReturn:
        raise NotOwnedError(
            "the cluster of ROCKETMQ_NAMESRV is external: slaves, sync_replication, controllers and"
            " broker_versions are what they are there"
        )

    def namesrv(self, name: str, *, controller: bool = False) -> Launched:
        refuse()

    def broker(self, spec: BrokerSpec) -> Launched:
        refuse()

    def proxy(self, name: str) -> Launched:
        refuse()

    def mqadmin(self, arguments: Sequence[str]) -> str:
        refuse()

    def save_logs(self, folder: Path) -> None:
        """Do nothing: the logs are elsewhere."""

    def close(self) -> None:
        """Do nothing: the servers are external."""
