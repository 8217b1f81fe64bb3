"""RocketMQ as a data source and sink of Spark; needs the extra ``rocketmq-aio[spark]``."""

from rocketmq_aio.spark.lag import LagListener, QueryLag, lag_report
from rocketmq_aio.spark.source import RocketMQDataSource, register

__all__ = ["LagListener", "QueryLag", "RocketMQDataSource", "lag_report", "register"]
