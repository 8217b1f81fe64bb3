"""Formats of pipelines, checked without a Spark session."""

from __future__ import annotations

import pytest

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.options import Connection
from rocketmq_aio.spark.pipelines import LoadSettings, Target

CONNECTION = Connection(name_server="127.0.0.1:9876")


@pytest.mark.parametrize(
    ("given", "meant"), [("parqet", "parquet"), ("jsn", "json"), ("Delat", "delta")]
)
def test_settings_refuse_a_misspelled_format(given: str, meant: str) -> None:
    for settings in (
        lambda: Target(path="/data", format=given),
        lambda: LoadSettings(connection=CONNECTION, topic="t", path="/data", format=given),
    ):
        with pytest.raises(ConfigError, match=f"^format=.*did you mean {meant}"):
            settings()


@pytest.mark.parametrize("given", ["Parquet", "binaryfile", "mongodb", "com.example.Files"])
def test_settings_take_formats_that_spark_may_have(given: str) -> None:
    assert Target(path="/data", format=given).format == given
