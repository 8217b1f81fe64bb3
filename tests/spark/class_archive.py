"""The classes of Spark, ready to be mapped: a JVM of it needs half of the CPU time then.

The archive is made once per installation of pyspark, by a session that does a little of
everything, and kept with the jars of RocketMQ.  A JVM that it does not fit to starts without it.
Archives of other installations stay, up to `KEPT` in total.

python -m tests.spark.class_archive FILE
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import pyspark

from rocketmq_aio.testing.jars import cache_folder

SPARK_HOME: Final = Path(pyspark.__file__).parent
SMALL: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SILENT: Final = "-Xlog:disable -Xlog:all=error:stderr"  # of classes that cannot be archived
MAKE_SECONDS: Final = 600.0
KEPT: Final = 4  # archives, about 200 MB each


@cache
def jvm_options() -> str:
    """Return what JVMs of Spark are started with, small and with the archive."""
    return f"{SMALL} {SILENT} -XX:SharedArchiveFile={class_archive()}"


def class_archive() -> Path:
    """Return the archive, made if there is none; processes that ask together wait for one."""
    archive = cache_folder() / f"spark-{pyspark.__version__}-{_what_it_fits()}.jsa"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with _locked(archive.parent / "spark.lock"):
        if not archive.exists():
            _remove_least_recently_used(archive.parent, keep=KEPT - 1)
            _make(archive)
        if archive.exists():
            os.utime(archive)
    return archive


def _remove_least_recently_used(folder: Path, *, keep: int) -> None:
    """Remove all archives of *folder* but the *keep* that were used last."""
    archives = sorted(folder.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime_ns)
    for old in archives[: max(len(archives) - keep, 0)]:
        old.unlink()


def _what_it_fits() -> str:
    """Return a digest of the JVM and the jars: a JVM takes no archive of others."""
    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if not java.exists():
        java = Path(shutil.which("java") or "")
    places = (java.resolve(), SPARK_HOME / "jars")
    stamps = [f"{place} {place.stat().st_mtime_ns}" for place in places]
    return sha256("\n".join(stamps).encode()).hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(archive: Path) -> None:
    """Have a session of its own write *archive* when its JVM ends."""
    # Without the file JVMs start as well, only slower.
    with (
        tempfile.TemporaryDirectory(dir=archive.parent, prefix="making-") as folder,
        suppress(subprocess.SubprocessError),
    ):
        made = Path(folder, "made.jsa")
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", __name__, str(made)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=MAKE_SECONDS,
        )
        made.rename(archive)


def work(target: Path) -> None:
    """Do what tests do: shuffles, Arrow, files, a stream; then end the JVM, which writes."""
    # Here and not above: the options of sessions come from this module.
    from pyspark.sql import SparkSession

    from tests.spark.support import LOCAL, SESSION, end_jvm, use_this_python

    use_this_python()
    options = f"{SMALL} {SILENT} -XX:ArchiveClassesAtExit={target}"
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
