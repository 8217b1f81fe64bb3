"""Python stream without broker requests: the minimum cost of any such stream.

A module of its own, for Spark pickles what the main module defines by value, with every task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.spark.read import ready
from rocketmq_aio.spark.arrow.columns import SCHEMA, arrow_schema

ROWS: Final = 4  # of a micro-batch


class SteadySource(DataSource):
    """Always has `ROWS` rows more."""

    @classmethod
    def name(cls) -> str:
        return "bench-steady"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        return SteadyReader()


class SteadyReader(DataSourceStreamReader):
    """Hands out rows that are ready, in one task."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802
        return {"at": start["at"] + ROWS}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(end["at"] - start["at"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield pa.RecordBatch.from_pydict(ready(partition.value), arrow_schema(SCHEMA))
