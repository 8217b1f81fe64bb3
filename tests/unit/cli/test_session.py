"""Spark sessions of commands, without a JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from rocketmq_aio import spark
from rocketmq_aio.cli import session as sessions
from rocketmq_aio.cli.session import SparkArguments, session


@pytest.mark.parametrize(
    "arguments",
    [
        SparkArguments(packages="com.example:files:1.0"),
        SparkArguments(conf=["spark.jars=/opt/files.jar"]),
        SparkArguments(conf=["spark.driver.extraClassPath=/opt/files.jar"]),
    ],
)
def test_any_format_is_accepted_with_further_jars(arguments: SparkArguments) -> None:
    arguments.check_format("foo")


@pytest.mark.parametrize("name", ["PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_REMOTE"])
def test_any_format_is_accepted_with_external_configuration(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "something")

    SparkArguments().check_format("foo")


def test_a_session_of_another_thread_is_reused_and_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[bool] = []
    existing: Any = SimpleNamespace(stop=lambda: stopped.append(True))
    # The active session depends on the thread; this thread has none.
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: existing)
    monkeypatch.setattr(spark, "register", lambda _: None, raising=False)

    def refuse(*_: Any) -> None:  # noqa: ANN401
        pytest.fail("a second JVM was started")

    monkeypatch.setattr(sessions, "_start_jvm", refuse)

    with session(SparkArguments(), "export") as found:
        assert found is existing

    assert stopped == []
