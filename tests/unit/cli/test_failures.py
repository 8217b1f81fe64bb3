"""Errors as one sentence, and exit codes."""

from __future__ import annotations

import re

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, StreamingQueryException

from rocketmq_aio.cli import dlq, pipelines
from rocketmq_aio.cli.failures import OPTIONS, ExitCode, exit_code, format_error
from rocketmq_aio.errors import AuthError, ConfigError, NameServerUnavailableError
from rocketmq_aio.spark.read.data_loss import TopicGoneError

OF_SPARK = """[PYTHON_DATA_SOURCE_ERROR] Failed when ...
Traceback (most recent call last):
  File "x.py", line 1, in read
    raise DataLossError(...)
rocketmq_aio.spark.read.data_loss.DataLossError: orders/broker-a/0: offset 5 is gone

SQLSTATE: 38000"""

OF_LOSS = """Traceback (most recent call last):
rocketmq_aio.spark.data_loss.TopicGoneError: gone: set failOnDataLoss=false to skip it"""

MISSING = ModuleNotFoundError("No module named 'pyspark'", name="pyspark")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("mode", "x", "expected y"), ExitCode.USAGE),
        (MISSING, ExitCode.USAGE),
        (AnalysisException(OF_SPARK), ExitCode.FAILED),
    ],
)
def test_what_the_caller_gave_wrongly_has_an_exit_code_of_its_own(
    error: Exception, code: ExitCode
) -> None:
    assert exit_code(error) is code


def test_the_options_named_in_errors_exist() -> None:
    commands = [*pipelines.app.commands.values(), *dlq.app.commands.values()]
    known = {name for command in commands for param in command.params for name in param.opts}

    named = {name for text in OPTIONS.values() for name in re.findall(r"--[\w-]+", text)}

    assert named <= known


@pytest.mark.parametrize(
    ("error", "said"),
    [
        *[
            (ConfigError(setting, "x", "expected y"), f"{option} 'x': expected y")
            for setting, option in (
                ("startingTimestamp", "--from"),
                ("endingOffsets", "--to"),
                ("nameServer", "--name-server"),
                ("mode", "--mode"),
                ("bad_rows", "--bad-rows"),
                ("something", "something"),
            )
        ],
        (
            ConfigError("sql", "a >", "Encountered <EOF>\nWas expecting"),
            "--sql 'a >': Encountered <EOF>",
        ),
        (MISSING, "pipelines need pyspark: install rocketmq-aio with its extra [spark]"),
        (RuntimeError(), "RuntimeError"),
        (
            TopicGoneError("orders"),
            "topic 'orders' is unknown to every name server (TOPICS): create it, or "
            "give --allow-loss to skip it",
        ),
        (AnalysisException(OF_LOSS), "gone: give --allow-loss to skip it"),
        (AnalysisException(OF_SPARK), "orders/broker-a/0: offset 5 is gone"),
        (
            AnalysisException("[USER_RAISED_EXCEPTION] no text: use base64 SQLSTATE: P0001"),
            "no text: use base64",
        ),
        (
            AnalysisException(
                '[PATH_ALREADY_EXISTS] Path file:/data/a already exists. Set mode as "overwrite" '
                "to overwrite the existing path. SQLSTATE: 42K04"
            ),
            "--path file:/data/a: it already exists: give --mode append or overwrite, or another "
            "--path",
        ),
        (
            AnalysisException(
                "[TABLE_OR_VIEW_ALREADY_EXISTS] Cannot create table or view `a`.`b` because it "
                "already exists.\nChoose a different name SQLSTATE: 42P07"
            ),
            "--table `a`.`b`: it already exists: give --mode append or overwrite, or another "
            "--table",
        ),
        (
            AnalysisException(
                "[PATH_NOT_FOUND] Path does not exist: file:/data/no.csv. SQLSTATE: 42K03"
            ),
            "PATH file:/data/no.csv: there is no such file or folder",
        ),
        (
            AnalysisException(
                "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure the "
                "provider name is correct SQLSTATE: 42K02"
            ),
            "--format delta: Spark knows no such format: check the name, or add its jar with "
            "--packages",
        ),
        (
            AnalysisException(
                "[UNABLE_TO_INFER_SCHEMA] Unable to infer schema for Parquet. It must be "
                "specified manually. SQLSTATE: 42KD9"
            ),
            "PATH: no Parquet file is there, or it is empty: check PATH and --format, or give "
            "--schema",
        ),
    ],
)
def test_an_error_is_one_sentence_in_words_of_the_command(error: Exception, said: str) -> None:
    assert format_error(error) == said


@pytest.mark.parametrize(
    ("first", "causes", "expected"),
    [
        (
            "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows "
            "to file:/data/out. SQLSTATE: 58030",
            [
                "org.apache.parquet.util.AutoCloseables$CloseException: Unable to close",
                "org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device",
                "java.io.IOException: No space left on device",
            ],
            "Task failed while writing rows to file:/data/out: No space left on device",
        ),
        (
            "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 "
            "times, most recent failure: Lost task 0.3: java.io.IOException: Mkdirs failed to "
            "create file:/proc/a",
            ["java.io.IOException: Mkdirs failed to create file:/proc/a"],
            "Mkdirs failed to create file:/proc/a",
        ),
        (
            'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "foo"',
            [],
            'No FileSystem for scheme "foo"',
        ),
        (
            "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class a.S3 not found",
            ["java.lang.ClassNotFoundException: Class a.S3 not found"],
            "Class a.S3 not found",
        ),
        ("java.lang.NullPointerException", [], "java.lang.NullPointerException"),
    ],
)
def test_an_error_of_the_jvm_has_its_message_and_its_cause(
    first: str, causes: list[str], expected: str
) -> None:
    trace = "".join(f"\n\tat a.B.c(B.scala:1)\nCaused by: {each}" for each in causes)
    suppressed = "\n\tSuppressed: java.io.IOException: other\n\tCaused by: java.io.IOException: x"
    called = f"An error occurred while calling o42.save.\n: {first}{trace}{suppressed}\n"

    assert format_error(Py4JError(called)) == expected


def test_a_failed_stream_has_the_message_and_the_cause_of_its_error() -> None:
    error = StreamingQueryException(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [TASK_WRITE_FAILED] "
        "Task failed while writing rows to file:/data/out. SQLSTATE: 58030 SQLSTATE: XXKST\n"
        "=== Streaming Query ===\nIdentifier: 1"
    )
    error._stackTrace = "x\nCaused by: java.io.IOException: No space left on device\n\tat a.b(c)"  # type: ignore[attr-defined]

    assert format_error(error) == (
        "Task failed while writing rows to file:/data/out: No space left on device"
    )


def test_network_and_auth_errors_have_a_hint() -> None:
    assert format_error(AuthError(16, "no", "a:1")).endswith(
        "check --credentials-file, or ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY"
    )
    assert "--name-server" in format_error(NameServerUnavailableError({"a:1": OSError("refused")}))


def test_secrets_are_masked() -> None:
    text = format_error(RuntimeError("bad option secretKey=planted, accessKey: planted"))

    assert "planted" not in text
    assert "secretKey=***" in text
