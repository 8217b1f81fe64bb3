"""Spark session of a command."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketmq_aio.cli.arguments import option, options
from rocketmq_aio.cli.connection import SECRETS
from rocketmq_aio.cli.stop_flag import interruptible
from rocketmq_aio.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_option = partial(option, panel="Spark")
LOGGING: Final = Path(__file__).with_name("log4j2.properties").absolute()
CONNECTOR_OPTIONS: Final = ("--source-option", "--sink-option")
VISIBLE: Final = (
    "is visible to other users: use --credentials-file or the environment (ROCKETMQ_ACCESS_KEY, "
    "ROCKETMQ_SECRET_KEY, ROCKETMQ_SECURITY_TOKEN)"
)
# With one of these, Spark is remote or its JVM is started elsewhere.
EXTERNAL: Final = frozenset(
    "PYSPARK_GATEWAY_PORT SPARK_API_MODE SPARK_CONNECT_MODE_ENABLED SPARK_LOCAL_REMOTE "
    "SPARK_REMOTE".split()
)
# With one of these, not only the options of the command configure Spark.
CONFIGURED: Final = EXTERNAL | {"PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"}
# Prefixes of the settings of Spark that add classes, and so formats.
ADD_CLASSES: Final = ("spark.jars", "spark.driver.extraClassPath", "spark.remote")
# The command shows its own progress bars, and times in UTC.
DEFAULTS: Final = {
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@options
class SparkArguments:
    """Options of the Spark session."""

    master: str | None = _option("Spark master, such as local[4] or spark://host:7077.")
    conf: list[str] = _option("name=value of Spark's configuration; repeatable.", default=())
    packages: str | None = _option("Maven coordinates of jars, such as those of avro or delta.")

    def configuration(self) -> dict[str, str]:
        """Return the configuration of Spark; raise `ConfigError` for a `--conf` without ``=``."""
        given = parse_options("--conf", self.conf)
        if self.packages is not None:
            given["spark.jars.packages"] = self.packages
        return {**DEFAULTS, **given}

    def check_format(self, name: str) -> None:
        """Reject an unknown format if nothing can have added it to Spark.

        :raises ConfigError: the format is unknown, or a `--conf` is not a pair
        """
        from rocketmq_aio.spark.pipelines.formats import check_built_in

        adds = any(each.startswith(ADD_CLASSES) for each in self.configuration())
        if not adds and not CONFIGURED & os.environ.keys():
            check_built_in(name)


def parse_options(option: str, texts: list[str]) -> dict[str, str]:
    """Parse the ``name=value`` pairs of *option*.

    :raises ConfigError: a pair has no ``=``, or is a credential; the error does not contain the
        value, which may be a secret
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(option, None, "expected name=value")
        if option in CONNECTOR_OPTIONS and name.lower() in SECRETS:
            raise ConfigError(option, name, VISIBLE)
        pairs[name] = value
    return pairs


@contextmanager
def session(arguments: SparkArguments, name: str) -> Iterator[SparkSession]:
    """Yield a session with the source registered; stop it afterwards if it was started here.

    After a KeyboardInterrupt Spark is not stopped before the process ends, because running jobs
    would delay the stop.

    :raises ModuleNotFoundError: pyspark is not installed
    """
    from pyspark.sql import SparkSession

    from rocketmq_aio.spark import register
    from rocketmq_aio.spark.pipelines.progress import JVM_ENDED

    configuration = arguments.configuration()
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # about pandas
    # Otherwise Spark uses the first python3 of the PATH, which may lack this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    started_here = not _has_session()
    with interruptible():  # nothing to finish yet
        if started_here:
            _start_jvm(arguments.master, name, configuration)
        builder = SparkSession.Builder().appName(f"rmq pipeline {name}")
        if arguments.master is not None:
            builder = builder.master(arguments.master)
        spark = builder.config(map={**configuration}).getOrCreate()
    try:
        register(spark)
        yield spark
    except Exception:
        with suppress(*JVM_ENDED):
            if started_here:
                spark.stop()
        raise
    else:
        if started_here:
            spark.stop()


def _has_session() -> bool:
    """Return whether this process has a session, created by any thread."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # `getActiveSession` returns the session of the calling thread only.
    context: Any = SparkContext
    return context._active_spark_context is not None or SparkSession.getActiveSession() is not None


def _start_jvm(master: str | None, name: str, configuration: Mapping[str, str]) -> None:
    """Start the context in a JVM without signals of this process group, unless it is external."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    remote = "spark.remote" in configuration or "spark.api.mode" in configuration
    if remote or EXTERNAL & os.environ.keys():
        return
    conf = SparkConf().setAppName(f"rmq pipeline {name}").setAll([*configuration.items()])
    if master is not None:
        conf.setMaster(master)
    gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
    SparkContext(conf=conf, gateway=gateway)
