"""Options of the data source and of the pipelines."""

from rocketmq_aio.spark.options.source_options import Connection as Connection
