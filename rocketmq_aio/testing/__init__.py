"""Real RocketMQ servers for test suites: `Cluster` in code, fixtures in pytest (`plugin`).

Names are imported on first use, because every pytest run imports this package for the plugin.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketmq_aio.testing.cluster import (
        Broker as Broker,
        Cluster as Cluster,
        NameServer as NameServer,
    )
    from rocketmq_aio.testing.errors import (
        ClusterError as ClusterError,
        NotOwnedError as NotOwnedError,
        StartError as StartError,
        UnavailableError as UnavailableError,
    )
    from rocketmq_aio.testing.security import Account as Account, ServerTLS as ServerTLS

__all__ = [
    "Account",
    "Broker",
    "Cluster",
    "ClusterError",
    "NameServer",
    "NotOwnedError",
    "ServerTLS",
    "StartError",
    "UnavailableError",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "errors" if name.endswith("Error") else "cluster"
    return getattr(import_module(f"{__name__}.{module}"), name)
