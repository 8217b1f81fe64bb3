"""Backend for an existing cluster, named by ROCKETMQ_NAMESRV."""

from __future__ import annotations

from typing import NoReturn

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.address import parse_addresses
from rocketmq_aio.testing.errors import ClusterError, NotOwnedError
from rocketmq_aio.testing.server import Backend, Server


def refuse(*_: object, **__: object) -> NoReturn:
    raise NotOwnedError(
        "the cluster of ROCKETMQ_NAMESRV is external: it cannot be started or stopped here"
    )


class ExternalServer(Server):
    start = kill = stop = pause = resume = refuse


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

    namesrv = broker = proxy = mqadmin = refuse

    def close(self) -> None:
        """Do nothing: the servers are external."""
