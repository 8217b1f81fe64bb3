"""Options of the data source: parsing, validation and errors with a way out."""

from __future__ import annotations

import pickle

import pytest

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.options.source_options import (
    OPTIONS,
    Connection,
    read_options,
    write_options,
)

BASIC = {"nameServer": "127.0.0.1:9876", "subscribe": "orders"}


def refused(given: dict[str, str], *, streaming: bool = True) -> str:
    with pytest.raises(ConfigError) as raised:
        read_options({**BASIC, **given}, streaming=streaming)
    return str(raised.value)


def test_limits_of_a_trigger_may_be_any_number_of_offsets() -> None:
    most = str(2**63 - 1)
    read = read_options(
        {**BASIC, "maxOffsetsPerTrigger": most, "minOffsetsPerTrigger": most}, streaming=True
    )

    assert read.max_offsets_per_trigger == read.min_offsets_per_trigger == 2**63 - 1
    assert "from 1 to 9223372036854775807" in refused({"maxOffsetsPerTrigger": str(2**63)})


def test_pauses_between_retries_double_up_to_a_minute() -> None:
    many = read_options({**BASIC, "fetchOffset.numRetries": "1000"}, streaming=True)
    pauses = list(many.retry_pauses())
    slow = read_options({**BASIC, "fetchOffset.retryIntervalMs": "90000"}, streaming=True)

    assert pauses[:8] == [0.5, 1, 2, 4, 8, 16, 32, 60]
    assert pauses[8:] == [60] * 992
    assert list(slow.retry_pauses()) == [90] * 5


def test_option_names_are_case_insensitive() -> None:
    read = read_options({"NAMESERVER": "a:1, b:2", "Topic": "x, y,x"}, streaming=False)

    assert read.connection.name_server == "a:1;b:2"
    assert read.subscribe == ("x", "y")


def test_defaults_differ_between_batch_and_stream() -> None:
    assert read_options(BASIC, streaming=False).starting_offsets == "earliest"
    assert read_options(BASIC, streaming=True).starting_offsets == "latest"


def test_values_of_all_types_are_parsed() -> None:
    read = read_options(
        {
            **BASIC,
            "startingOffsets": '{"v":1,"end":{"orders":{"broker-a":{"0":5,"1":-1}}}}',
            "startingTimestamp": "2026-01-31T08:00:00+01:00",
            "failOnDataLoss": "FALSE",
            "maxTriggerDelay": "90s",
            "expressionType": "sql92",
            "subExpression": "price > 3",
            "readFrom": "Suggested",
            "fetchOffset.numRetries": "0",
            "pullWindow": "8",
        },
        streaming=True,
    )

    assert read.starting_offsets == {("orders", "broker-a", 0): 5, ("orders", "broker-a", 1): -1}
    assert read.starting_timestamp == 1769842800000
    assert (read.fail_on_data_loss, read.max_trigger_delay) == (False, 90)
    assert (read.expression_type, read.read_from) == ("SQL92", "suggested")
    assert (read.fetch_num_retries, read.pull_window) == (0, 8)


def test_queues_can_be_assigned() -> None:
    given = {"nameServer": "a:1", "assign": '{"T":{"broker-a":[1,0,1]}}'}

    read = read_options(given, streaming=True)

    assert read.assign == (("T", "broker-a", 0), ("T", "broker-a", 1))


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"startOffsets": "first"}, "='first': unknown option; did you mean startingOffsets?"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({"batchBytes": "5"}, "an option of a write only"),
        ({"endingOffsets": "latest"}, "an option of a batch read only"),
        ({"zzz": "5"}, "known are"),
        ({"kafka.bootstrap.servers": "a:1"}, "an option of Kafka; use nameServer"),
        ({"kafka.group.id": "g"}, "an option of Kafka; use group"),
        ({"groupIdPrefix": "g"}, "an option of Kafka; use group"),
        ({"includeHeaders": "true"}, "an option of Kafka; select the column properties"),
        ({"kafkaConsumer.pollTimeoutMs": "5"}, "an option of Kafka; use pullTimeoutMs"),
        ({"kafka.max.poll.records": "5"}, "an option of Kafka, which has no meaning here"),
        ({"kafka.sasl.jaas.config": "x"}, "an option of Kafka; use accessKey and secretKey"),
    ],
)
def test_an_unknown_option_names_the_closest_match(given: dict[str, str], hint: str) -> None:
    assert hint in refused(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "from 1 to"),
        ({"maxOffsetsPerTrigger": "many"}, "whole number"),
        ({"fetchOffset.numRetries": "0" * 5000}, "whole number from 0 to 1000"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"startingOffsets": "first"}, "earliest or latest or group or offsets as JSON"),
        ({"startingOffsets": '{"T":{"a":{"0":-3}}}'}, "expected a whole number from -2 to 9"),
        ({"startingOffsets": f'{{"T":{{"a":{{"0":{2**63}}}}}}}'}, "from -2 to 9223372036854775807"),
        ({"startingOffsets": f'{{"T":{{"a":{{"{2**31}":0}}}}}}'}, "id is a whole number from 0 to"),
        ({"startingOffsets": f'{{"T":{{"a":{{"{10**4000}":0}}}}}}'}, "id is a whole number"),
        ({"startingTimestamp": "2026-01-31T08:00:00"}, "time with zone"),
        ({"startingTimestamp": "1769842800"}, "1769842800': expected milliseconds since"),
        ({"startingTimestamp": "20260131"}, "milliseconds since 1970 (13 digits), or a time with"),
        (
            {"startingOffsetsByTimestamp": '{"T":{"a":{"0":1769842800}}}'},
            "startingOffsetsByTimestamp=1769842800: expected milliseconds since 1970 (13 digits)",
        ),
        ({"startingOffsetsByTimestampStrategy": "fail"}, "latest or error"),
        ({"subscribe": ","}, "separated by commas"),
        ({"subscribe": "a b"}, "only letters"),
        ({"subscribePattern": "x.*"}, "one of subscribe, subscribePattern and assign"),
        ({"topic": "x"}, "the same as subscribe"),
        ({"nameServer": "nowhere"}, "expected host:port"),
        ({"group": "DEFAULT_CONSUMER"}, "reserved"),
        ({"subExpression": "||"}, "expected tags"),
        ({"expressionType": "SQL92"}, "not an SQL condition"),
        ({"subExpression": "price > 3"}, "expressionType to SQL92"),
        ({"subExpression": "price>3"}, "expressionType to SQL92"),
        ({"subExpression": "TAGS in ('a', 'b')"}, "expressionType to SQL92"),
        ({"subExpression": "a is not null"}, "or to TAG"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "more than maxOffsets"),
        ({"minPartitions": "9", "maxPartitions": "3"}, "more than maxPartitions"),
        ({"maxTriggerDelay": "soon"}, "such as 15m"),
        ({"maxTriggerDelay": "9" * 5000 + "s"}, "such as 15m"),
        ({"accessKey": "me"}, "secretKey=None: not given"),
        ({"tlsCertFile": "x.pem"}, "tlsKeyFile=None: not given"),
        ({"tls": "false", "tlsCaFile": "x.pem"}, "leave them out"),
        ({"tlsCaFile": " "}, "empty: give it a value"),
        ({"assign": '{"T":{"a":5}}'}, 'expected {"topic":{"broker-a":[0,1]}}'),
        ({"assign": '{"T":{"a":[true]}}'}, 'expected {"topic":{"broker-a":[0,1]}}'),
        ({"assign": '{"T":{"a":[]}}'}, "names no queue"),
        ({"securityToken": "planted"}, "needs accessKey"),
    ],
)
def test_an_invalid_value_is_rejected_with_a_way_out(given: dict[str, str], message: str) -> None:
    assert message in refused(given)


@pytest.mark.parametrize(
    "given",
    [
        {"subExpression": "new || not-paid||in transit"},
        {"subExpression": "price > 3", "expressionType": "TAG"},
        {"subExpression": "price > 3", "expressionType": "SQL92"},
    ],
)
def test_a_filter_is_taken_as_its_type_says(given: dict[str, str]) -> None:
    read = read_options({**BASIC, **given}, streaming=False)

    assert read.sub_expression == given["subExpression"]
    assert read.expression_type == given.get("expressionType", "TAG")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffsets": "latest"}, "would be empty"),
        ({"endingOffsets": '{"T":{"a":{"0":-2}}}'}, "{'T': {'a': {'0': -2}}}: -2 is no end"),
        ({"startingTimestamp": f"{10**12}", "endingTimestamp": "0"}, "before startingTimestamp"),
        (
            {
                "startingOffsets": '{"T":{"a":{"0":5,"1":9}}}',
                "endingOffsets": '{"T":{"a":{"0":5,"1":8}}}',
            },
            "startingOffsets=9: above endingOffsets (8) of T/a/1",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"T":{"a":{"0":1769842800001}}}',
                "endingOffsetsByTimestamp": '{"T":{"a":{"0":1769842800000}}}',
            },
            "startingOffsetsByTimestamp=1769842800001: above endingOffsetsByTimestamp "
            "(1769842800000) of T/a/0",
        ),
        ({"commitOffsets": "true"}, "an option of a streaming read only"),
    ],
)
def test_streaming_only_values_are_rejected_in_a_batch(given: dict[str, str], message: str) -> None:
    assert message in refused(given, streaming=False)


@pytest.mark.parametrize(
    ("start", "end"), [("5", "5"), ("-2", "0"), ("-1", "0"), ("7", "-1"), ("0", "9")]
)
def test_starts_up_to_the_end_are_accepted(start: str, end: str) -> None:
    form = '{"T":{"a":{"0":%s}}}'
    given = {"startingOffsets": form % start, "endingOffsets": form % end}

    read = read_options({**BASIC, **given}, streaming=False)

    assert read.ending_offsets == {("T", "a", 0): int(end)}


@pytest.mark.parametrize(
    "time",
    [
        {"endingTimestamp": "1769842800000"},
        {"startingTimestamp": "1769842800000"},
        {"startingOffsetsByTimestamp": '{"T":{"a":{"0":1769842800000}}}'},
    ],
)
def test_offsets_that_a_timestamp_overrides_are_not_compared(time: dict[str, str]) -> None:
    given = {"startingOffsets": '{"T":{"a":{"0":5}}}', "endingOffsets": '{"T":{"a":{"0":3}}}'}

    read = read_options({**BASIC, **given, **time}, streaming=False)

    assert read.ending_offsets == {("T", "a", 0): 3}


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30 S", 30), ("15m", 900), ("2min", 120), ("1h", 3600)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    read = read_options({**BASIC, "maxTriggerDelay": text}, streaming=True)

    assert read.max_trigger_delay == seconds


def test_certificate_files_turn_tls_on() -> None:
    assert read_options({**BASIC, "tlsCaFile": "ca.pem"}, streaming=True).connection.tls


def test_offsets_of_a_topic_may_look_like_a_line_of_a_checkpoint() -> None:
    read = read_options({**BASIC, "startingOffsets": '{"end":{"a":{"0":5}}}'}, streaming=True)

    assert read.starting_offsets == {("end", "a", 0): 5}


@pytest.mark.parametrize(
    "start",
    [
        {"startingTimestamp": "2026-01-31T08:00:00Z"},
        {"startingOffsetsByTimestamp": '{"T":{"a":{"0":1769842800000}}}'},
    ],
)
def test_a_batch_with_a_start_by_time_may_have_latest_as_its_other_start(
    start: dict[str, str],
) -> None:
    read = read_options({**BASIC, **start, "startingOffsets": "latest"}, streaming=False)

    assert read.starting_offsets == "latest"


def test_a_batch_can_start_queues_at_the_latest_offset() -> None:
    read = read_options({**BASIC, "startingOffsets": '{"T":{"a":{"0":-1}}}'}, streaming=False)

    assert read.starting_offsets == {("T", "a", 0): -1}


def test_a_pattern_must_compile() -> None:
    with pytest.raises(ConfigError, match=r"subscribePattern='\('.*not a regular expression"):
        read_options({"nameServer": "a:1", "subscribePattern": "("}, streaming=True)


@pytest.mark.parametrize("missing", ["nameServer", "subscribe"])
def test_a_missing_required_option_is_named(missing: str) -> None:
    given = {name: each for name, each in BASIC.items() if name != missing}

    with pytest.raises(ConfigError, match=missing):
        read_options(given, streaming=True)


@pytest.mark.parametrize("name", ["secretKey", "secretkeys", "accesKey", "securityTokn"])
def test_errors_do_not_show_secrets(name: str) -> None:
    given = {**BASIC, name: "planted"}

    with pytest.raises(ConfigError) as raised:
        read_options(given, streaming=True)

    assert "planted" not in str(raised.value)


def test_values_of_kafka_options_are_not_shown() -> None:
    assert "planted" not in refused({"kafka.sasl.jaas.config": "password=planted"})


def test_a_connection_hides_secrets_and_is_hashable() -> None:
    given = {
        **BASIC,
        "accessKey": "planted-a",
        "secretKey": "planted-b",
        "securityToken": "planted-c",
    }
    connection = read_options(given, streaming=True).connection

    assert "planted" not in repr(connection)
    assert {connection: 1}[pickle.loads(pickle.dumps(connection))] == 1


def test_options_of_a_write() -> None:
    given = {"nameServer": "a:1", "topic": "T", "batchBytes": "1000", "checkpointLocation": "/x"}

    write = write_options(given, streaming=True)

    assert (write.topic, write.batch_bytes, write.batch_records) == ("T", 1000, 256)
    assert write.connection == Connection(name_server="a:1")


def test_options_that_spark_adds_to_streams_are_rejected_in_a_batch() -> None:
    with pytest.raises(ConfigError, match="checkpointLocation"):
        write_options({"nameServer": "a:1", "checkpointLocation": "/x"}, streaming=False)


def test_option_names_are_unique() -> None:
    names = [option.name.lower() for option in OPTIONS.values()]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_scan_without_options_explains_tables_of_sql(streaming: bool) -> None:
    """Spark passes the OPTIONS of a table to no scan of a Python data source."""
    for parse in (read_options, write_options):
        with pytest.raises(ConfigError, match=r"WITH \(`nameServer`='host:port', .*\)"):
            parse({}, streaming=streaming)
