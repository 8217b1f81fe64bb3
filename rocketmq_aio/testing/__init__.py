"""RocketMQ for test suites, embedded or real: `Cluster` in code, fixtures in pytest (`plugin`)."""

from rocketmq_aio.lazy_names import lazy_names

# Loaded on first use: every pytest run imports this package for the plugin.  Stub: see
# `rocketmq_aio`.
_MODULES, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "cluster": "Cluster",
        "errors": "ClusterError NotOwnedError NotSupportedError StartError UnavailableError",
        "messages": "received_message",
        "nodes": "Broker ControlledBroker Controller NameServer Proxy Slave",
        "security": "Account ServerTLS",
    },
)
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]
