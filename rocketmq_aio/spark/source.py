"""Data source ``rocketmq`` of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSource

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.options.source_options import (
    check_table_options,
    read_options,
    write_options,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

STREAMS_SINCE: Final = (4, 2)  # older versions do not recognise new queues at a restart


class RocketMQDataSource(DataSource):
    """Topics of RocketMQ: ``spark.read``, ``readStream``, ``write`` and ``writeStream``.

    Spark finds it where the package is installed; elsewhere call `register`.
    """

    # Local imports: Spark imports this module in every Python process that it starts.

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "rocketmq"

    def schema(self) -> StructType:
        """Return all columns; ``.schema("queueOffset long, body binary")`` reads fewer.

        :raises ConfigError: ``CREATE TABLE`` has options
        """
        check_table_options(self.options)
        from rocketmq_aio.spark.arrow.columns import SCHEMA

        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader; raise `ConfigError` if an option or a column is invalid."""
        from rocketmq_aio.spark.read.batch_reader import RocketMQBatchReader

        return RocketMQBatchReader(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the stream reader; with invalid options, one whose methods raise the error.

        :raises PySparkNotImplementedError: this Spark cannot restart a stream safely
        """
        check_streams(pyspark.__version__)
        from rocketmq_aio.spark.read.stream_reader import RefusedStreamReader, RocketMQStreamReader

        try:
            return RocketMQStreamReader(read_options(self.options, streaming=True), schema)
        except ConfigError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer; raise `ConfigError` if option, column or mode is invalid."""
        from rocketmq_aio.spark.write.writer import RocketMQWriter

        return RocketMQWriter(write_options(self.options, streaming=False), schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the stream writer; raise `ConfigError` as `writer` does."""
        from rocketmq_aio.spark.write.writer import RocketMQStreamWriter

        return RocketMQStreamWriter(write_options(self.options, streaming=True), schema, overwrite)


def check_streams(version: str) -> None:
    """Reject versions of Spark whose streams would lose messages at a restart."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < STREAMS_SINCE:
        raise PySparkNotImplementedError(
            f"Streams of rocketmq need pyspark 4.2 or newer, this is {version}: "
            "older versions do not recognise new queues when a query is restarted."
        )


def register(spark: SparkSession) -> None:
    """Register ``format("rocketmq")`` and make *spark* the active session of this thread.

    Call it if the package was shipped with the session (``--py-files``, ``addArtifacts``), in
    each further Python thread that loads or saves, and again after Ctrl-C interrupted a call:
    Spark looks up Python data sources only in the active session of the calling JVM thread, and
    these threads have none.
    """
    spark.dataSource.register(RocketMQDataSource)
    session: Any = spark  # untyped internals
    jvm_session = getattr(session, "_jsparkSession", None)
    if jvm_session is not None:  # None with Spark Connect: the server has the session
        session._get_j_spark_session_class(session._jvm).setActiveSession(jvm_session)
