"""RocketMQ as a data source and sink of Spark; needs the extra ``rocketmq-aio[spark]``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocketmq_aio.spark.query_lag import LagListener, QueryLag, lag_report
    from rocketmq_aio.spark.source import RocketMQDataSource, register

__all__ = ["LagListener", "QueryLag", "RocketMQDataSource", "lag_report", "register"]

# Loaded on first use: parts of the command line work without Spark.
_MODULES: Final = {
    **dict.fromkeys(("LagListener", "QueryLag", "lag_report"), "rocketmq_aio.spark.query_lag"),
    **dict.fromkeys(("RocketMQDataSource", "register"), "rocketmq_aio.spark.source"),
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
