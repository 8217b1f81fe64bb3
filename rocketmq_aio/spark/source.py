"""The data source that Spark knows as ``rocketmq``."""

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

STREAMS_SINCE: Final = (4, 2)  # before, a restart cannot tell new queues from old ones


class RocketMQDataSource(DataSource):
    """Topics of RocketMQ: ``spark.read``, ``readStream``, ``write`` and ``writeStream``.

    Spark finds it by itself where the package is installed; see `register` for where it is not.
    """

    # Imports wait until they are needed: Spark imports this module in every Python it starts.

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` takes."""
        return "rocketmq"

    def schema(self) -> StructType:
        """Return all columns; ``.schema("queueOffset long, body binary")`` reads fewer.

        :raises ConfigError: ``CREATE TABLE`` was given options
        """
        check_table_options(self.options)
        from rocketmq_aio.spark.arrow.columns import SCHEMA

        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a range of offsets once.

        :raises ConfigError: an option or a column is wrong
        """
        from rocketmq_aio.spark.read.batch_reader import RocketMQBatchReader

        return RocketMQBatchReader(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return what reads on and on, or says with its first answer that an option is wrong.

        :raises PySparkNotImplementedError: this Spark cannot restart a stream safely
        """
        check_streams(pyspark.__version__)
        from rocketmq_aio.spark.read.stream_reader import RefusedStreamReader, RocketMQStreamReader

        try:
            return RocketMQStreamReader(read_options(self.options, streaming=True), schema)
        except ConfigError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a DataFrame once.

        :raises ConfigError: an option, a column or the mode is wrong
        """
        from rocketmq_aio.spark.write.writer import RocketMQWriter

        return RocketMQWriter(write_options(self.options, streaming=False), schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return what writes a stream.

        :raises ConfigError: an option, a column or the mode is wrong
        """
        from rocketmq_aio.spark.write.writer import RocketMQStreamWriter

        return RocketMQStreamWriter(write_options(self.options, streaming=True), schema, overwrite)


def check_streams(version: str) -> None:
    """Refuse a Spark whose streams would lose messages at a restart.

    :raises PySparkNotImplementedError: it is too old
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < STREAMS_SINCE:
        raise PySparkNotImplementedError(
            f"Streams of rocketmq need pyspark 4.2 or newer, this is {version}: "
            "older ones cannot tell new queues from old ones when a query is restarted."
        )


def register(spark: SparkSession) -> None:
    """Make ``format("rocketmq")`` known to *spark*, and *spark* the session of this thread.

    Call it where the package was shipped with the session (``--py-files``, ``addArtifacts``), in
    each further Python thread that loads or saves, and again after Ctrl-C interrupted a call.
    Spark looks up Python data sources through the active session of the calling JVM thread only,
    and the JVM threads of such calls have none.
    """
    spark.dataSource.register(RocketMQDataSource)
    session: Any = spark  # what follows is not typed
    jvm_session = getattr(session, "_jsparkSession", None)
    if jvm_session is not None:  # with Spark Connect the server finds the session by its id
        session._get_j_spark_session_class(session._jvm).setActiveSession(jvm_session)
