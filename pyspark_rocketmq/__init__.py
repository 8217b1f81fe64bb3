"""Found by Spark, which takes `DefaultSource` of every module whose name begins like this one."""

from rocketmq_aio.spark import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
