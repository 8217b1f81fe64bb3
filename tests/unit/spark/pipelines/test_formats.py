"""Formats of pipelines, checked without a Spark session."""

from __future__ import annotations

import pytest

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines import LoadSettings, ReplaySettings, Selection, Target
from rocketmq_aio.spark.pipelines.formats import check_built_in

CONNECTION = Connection(name_server="127.0.0.1:9876")


@pytest.mark.parametrize(
    ("given", "meant"), [("parqet", "parquet"), ("jsn", "json"), ("Delat", "delta")]
)
def test_settings_reject_a_misspelled_format(given: str, meant: str) -> None:
    for settings in (
        lambda: Target(path="/data", format=given),
        lambda: LoadSettings(connection=CONNECTION, topic="t", path="/data", format=given),
    ):
        with pytest.raises(ConfigError, match=f"^format=.*did you mean {meant}"):
            settings()


@pytest.mark.parametrize("given", ["mongodb", "com.example.Files"])
def test_settings_accept_formats_that_jars_may_add(given: str) -> None:
    assert Target(path="/data", format=given).format == given


@pytest.mark.parametrize(("given", "name"), [("CSV", "csv"), ("binaryfile", "binaryFile")])
def test_names_of_formats_are_case_insensitive(given: str, name: str) -> None:
    loaded = LoadSettings(connection=CONNECTION, topic="t", path="/data", format=given)

    assert (Target(path="/data", format=given).format, loaded.format) == (name, name)


@pytest.mark.parametrize("given", ["ORC", "kafka", "com.example.Files"])
def test_built_in_formats_and_classes_are_accepted_without_jars(given: str) -> None:
    check_built_in(given)


def test_unknown_formats_are_rejected_without_jars() -> None:
    with pytest.raises(ConfigError, match=r"^format=.foo.: .*known are avro, .*--packages"):
        check_built_in("foo")


@pytest.mark.parametrize("name", ["topic", "TOPIC"])
def test_the_topic_to_send_to_is_no_option_of_the_sink(name: str) -> None:
    selection = Selection(topics=("t",), end="2026-01-01T00:00:00Z")
    with pytest.raises(ConfigError, match="options='topic': is a setting of its own"):
        ReplaySettings(connection=CONNECTION, selection=selection, options={name: "other"})
    with pytest.raises(ConfigError, match="options='topic': is a setting of its own"):
        LoadSettings(connection=CONNECTION, topic="t", path="/data", options={name: "other"})
