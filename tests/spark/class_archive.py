"""The class archive of Spark, made by a session that does a little of everything.

python -m tests.spark.class_archive FILE
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import pyspark

from tests.class_archive import QUICK, SILENT, class_archive

SPARK_HOME: Final = Path(pyspark.__file__).parent
MAKE_SECONDS: Final = 600.0


@cache
def jvm_options() -> str:
    """Return what JVMs of Spark are started with, small and with the archive."""
    return f"{QUICK} {SILENT} -XX:SharedArchiveFile={spark_archive()}"


def spark_archive() -> Path:
    return class_archive("spark", pyspark.__version__, SPARK_HOME / "jars", _make)


def _make(archive: Path) -> None:
    """Have a session of its own write *archive* when its JVM ends."""
    # Without the file JVMs start as well, only slower.
    with suppress(subprocess.SubprocessError):
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", __name__, str(archive)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=MAKE_SECONDS,
        )


def work(target: Path) -> None:
    """Do what tests do: shuffles, Arrow, files, a stream; then end the JVM, which writes."""
    # Here and not above: the options of sessions come from this module.
    from pyspark.sql import SparkSession

    from tests.spark.support import LOCAL, SESSION, end_jvm, use_this_python

    use_this_python()
    options = f"{QUICK} {SILENT} -XX:ArchiveClassesAtExit={target}"
    settings: dict[str, bool | float | int | str | None] = {
        **SESSION,
        "spark.driver.extraJavaOptions": options,
        "spark.local.dir": str(target.parent / "local"),
        "spark.sql.warehouse.dir": str(target.parent / "warehouse"),
    }
    spark = SparkSession.Builder().master(LOCAL).config(map=settings).getOrCreate()
    rows = spark.range(1000).selectExpr("id % 7 AS k", "CAST(id AS STRING) AS v")
    rows.groupBy("k").count().orderBy("k").collect()
    rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(str(target.parent / "rows"))
    spark.read.parquet(str(target.parent / "rows")).toArrow()
    stream = spark.readStream.schema(rows.schema).parquet(str(target.parent / "rows"))
    sink = stream.writeStream.format("parquet").option("path", str(target.parent / "sink"))
    sink = sink.option("checkpointLocation", str(target.parent / "checkpoint"))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()
    end_jvm(MAKE_SECONDS)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
