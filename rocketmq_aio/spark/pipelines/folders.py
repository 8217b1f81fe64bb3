"""Files and folders, accessed through Spark, so that every file system works."""

from __future__ import annotations

from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

NOT_FOUND: Final = "PATH_NOT_FOUND"
OWNERS: Final = "_ingests"  # one folder for each checkpoint that started to write to the folder
SINK_LOG: Final = "_spark_metadata"  # log of the batches that a stream has written to the folder


def below(folder: str, name: str) -> str:
    """Return the path of *name* in *folder*."""
    return f"{folder.rstrip('/')}/{name}"


def has_files(spark: SparkSession, path: str) -> bool:
    """Return whether *path* is a file or has visible files below it."""
    found = _list_files(spark, path)
    return found is not None and bool(found.take(1))


def has_sink_log(spark: SparkSession, path: str) -> bool:
    """Return whether a stream has written batches, even empty ones, to the folder *path*."""
    return _list_files(spark, below(path, SINK_LOG)) is not None


def last_batch(spark: SparkSession, log: str) -> int:
    """Return the highest batch in *log*, a folder of Spark with a file for each; -1: none."""
    found = _list_files(spark, log)
    paths = [] if found is None else found.inputFiles()
    names = (path.rpartition("/")[2] for path in paths)
    return max((int(each) for each in names if each.isdigit()), default=-1)


def claim(spark: SparkSession, path: str, owner: str) -> bool:
    """Register *owner* as a writer of the folder *path*; return whether it is the only one.

    Two owners that register at the same time see each other: the result is False for both.
    """
    folder = below(path, OWNERS)
    write_text(spark, below(folder, owner), owner)
    found = _list_files(spark, folder)
    rows = found.collect() if found is not None else []
    return {row[0].split("/")[-2] for row in rows} == {owner}


def _list_files(spark: SparkSession, path: str) -> DataFrame | None:
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        found = reader.load(path).select("path")  # does not read the contents
        _ = found.schema  # Spark Connect looks for the path only now
    except AnalysisException as error:
        if error.getCondition() != NOT_FOUND:
            raise
        return None
    return found


def read_text(spark: SparkSession, path: str) -> str | None:
    """Return the text that `write_text` wrote to *path*; None: no text, or a partial write."""
    if not has_files(spark, path):
        return None
    rows = spark.read.text(path, wholetext=True).take(1)
    return str(rows[0][0]).strip() if rows else None


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write *text* to a file in the folder *path*, and replace earlier texts."""
    rows = spark.createDataFrame([(text,)], "value string")
    rows.coalesce(1).write.mode("overwrite").text(path)
