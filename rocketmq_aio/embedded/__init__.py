"""Name server and brokers in Python, in memory, for development and tests; not for production."""

from rocketmq_aio.lazy_names import lazy_names

# Loaded on first use.  Stub: see `rocketmq_aio`.
_MODULES, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "broker.broker": "EmbeddedBroker",
        "clock": "Clock",
        "cluster": "EmbeddedCluster",
        "faults": "Fault Faults HeldResponses",
        "name_server": "EmbeddedNameServer",
        "responses": "Close Raw Response",
    },
)
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]
