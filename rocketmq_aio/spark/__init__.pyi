"""The public names; made by `tools/make_stub.py`."""

# ruff: noqa: I001
# fmt: off
from rocketmq_aio.spark.query_lag import LagListener as LagListener
from rocketmq_aio.spark.query_lag import QueryLag as QueryLag
from rocketmq_aio.spark.query_lag import lag_report as lag_report
from rocketmq_aio.spark.source import RocketMQDataSource as RocketMQDataSource
from rocketmq_aio.spark.source import register as register
