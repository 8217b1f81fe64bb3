"""Entry point for Spark, which imports `DefaultSource` of each module named ``pyspark_*``."""

from rocketmq_aio.spark import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
