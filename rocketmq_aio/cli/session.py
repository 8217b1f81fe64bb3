"""The Spark session of a command."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rocketmq_aio.cli.signals import interrupt
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.signals import stop_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PANEL: Final = "Spark"
LOGGING: Final = Path(__file__).with_name("log4j2.properties").absolute()
CREDENTIALS: Final = frozenset({"accesskey", "secretkey", "securitytoken"})
OF_ROCKETMQ: Final = ("--source-option", "--sink-option")
SEEN: Final = (
    "is seen by others: --credentials-file or the environment (ROCKETMQ_ACCESS_KEY, "
    "ROCKETMQ_SECRET_KEY, ROCKETMQ_SECURITY_TOKEN) hold credentials"
)
# Spark is reached, or its JVM was started, by somebody else.
NOT_OURS: Final = frozenset(
    {
        "PYSPARK_GATEWAY_PORT",
        "SPARK_API_MODE",
        "SPARK_CONNECT_MODE_ENABLED",
        "SPARK_LOCAL_REMOTE",
        "SPARK_REMOTE",
    }
)
# Spark is configured by more than the options of the command.
CONFIGURED: Final = NOT_OURS | {"PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"}
# Settings of Spark that add classes, and formats with them, by their beginnings.
ADD_CLASSES: Final = ("spark.jars", "spark.driver.extraClassPath", "spark.remote")
# A command shows bars of its own, and times that mean the same everywhere.
DEFAULTS: Final = {
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(kw_only=True)
class SparkArguments:
    """Where Spark runs."""

    master: Annotated[
        str | None,
        typer.Option(
            help="Spark master, such as local[4] or spark://host:7077.", rich_help_panel=PANEL
        ),
    ] = None
    conf: Annotated[
        list[str],
        typer.Option(help="name=value of Spark's configuration; repeat it.", rich_help_panel=PANEL),
    ] = field(default_factory=list)
    packages: Annotated[
        str | None,
        typer.Option(
            help="Maven coordinates of jars, such as those of avro or delta.", rich_help_panel=PANEL
        ),
    ] = None

    def configuration(self) -> dict[str, str]:
        """Return the configuration that is meant.

        :raises ConfigError: a `--conf` is no pair
        """
        given = pairs("--conf", self.conf)
        if self.packages is not None:
            given["spark.jars.packages"] = self.packages
        return {**DEFAULTS, **given}

    def check_format(self, name: str) -> None:
        """Refuse an unknown format where nothing can have added it to Spark.

        :raises ConfigError: it is one, or a `--conf` is no pair
        """
        from rocketmq_aio.spark.pipelines.formats import check_built_in

        adds = any(each.startswith(ADD_CLASSES) for each in self.configuration())
        if not adds and not CONFIGURED & os.environ.keys():
            check_built_in(name)


def pairs(option: str, texts: list[str]) -> dict[str, str]:
    """Return the ``name=value`` pairs that *option* was given.

    :raises ConfigError: one has no ``=``, or is a credential; its text is not told, for it may
        hold a secret
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(option, None, "expected name=value")
        if option in OF_ROCKETMQ and name.strip().lower() in CREDENTIALS:
            raise ConfigError(option, name.strip(), SEEN)
        found[name.strip()] = value
    return found


@contextmanager
def session(arguments: SparkArguments, name: str) -> Iterator[SparkSession]:
    """Give the block a session that knows the source; one that was started here is stopped.

    A block that raises KeyboardInterrupt leaves it to the end of the process to stop Spark: jobs
    under way would hold the stop up.

    :raises ModuleNotFoundError: there is no pyspark
    """
    from pyspark.sql import SparkSession

    from rocketmq_aio.spark import register

    configuration = arguments.configuration()
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # of pandas
    # Else Spark takes the first python3 of the path, which need not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    ours = not _has_session()
    with stop_signals(interrupt):  # nothing is done yet
        if ours:
            _start_jvm(arguments.master, name, configuration)
        builder = SparkSession.Builder().appName(f"rmq pipeline {name}")
        if arguments.master is not None:
            builder = builder.master(arguments.master)
        spark = builder.config(map={**configuration}).getOrCreate()
    try:
        register(spark)
        yield spark
    except Exception:
        if ours:
            _stop(spark)
        raise
    else:
        if ours:
            spark.stop()


def _has_session() -> bool:
    """Return whether this process has a session; another thread may have made it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # Spark tells the active session of the calling thread only.
    context: Any = SparkContext
    return context._active_spark_context is not None or SparkSession.getActiveSession() is not None


def _start_jvm(master: str | None, name: str, configuration: Mapping[str, str]) -> None:
    """Start the context of the session in a JVM that no signal to our process group ends.

    Where Spark Connect or spark-submit is used, the JVM is not ours to start.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    remote = "spark.remote" in configuration or "spark.api.mode" in configuration
    if remote or NOT_OURS & os.environ.keys():
        return
    conf = SparkConf().setAppName(f"rmq pipeline {name}").setAll([*configuration.items()])
    if master is not None:
        conf.setMaster(master)
    gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
    SparkContext(conf=conf, gateway=gateway)


def _stop(spark: SparkSession) -> None:
    """Stop Spark after a failure; a JVM that has ended is stopped."""
    from rocketmq_aio.spark.pipelines.progress import JVM_ENDED

    with suppress(*JVM_ENDED):
        spark.stop()
