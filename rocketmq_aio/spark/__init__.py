"""RocketMQ as a data source and sink of Spark; needs the extra ``rocketmq-aio[spark]``."""

from rocketmq_aio.lazy_names import lazy_names

# Loaded on first use: parts of the command line work without Spark.  Stub: see `rocketmq_aio`.
_MODULES, __getattr__, __dir__ = lazy_names(
    __name__,
    {"query_lag": "LagListener QueryLag lag_report", "source": "RocketMQDataSource register"},
)
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]
