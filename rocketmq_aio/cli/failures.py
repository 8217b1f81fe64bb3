"""Errors as one sentence that names the option to change, and exit codes."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

import click

from rocketmq_aio.cli.output import counted
from rocketmq_aio.errors import (
    AdminError,
    AuthError,
    ConfigError,
    NameServerUnavailableError,
    NotConnectedError,
    RocketMQError,
    RouteNotFoundError,
    missing_extra,
    shown,
)


class ExitCode(IntEnum):
    """Exit codes of ``rmq``."""

    DONE = 0
    INCOMPLETE = 1  # done, but not on every server, or the counts do not add up
    USAGE = 2  # an option is wrong or missing; nothing was done
    FAILED = 3  # an error of a broker, Spark or the file system
    STOPPED = 130  # by a signal, before the end


# Options of the command -> settings, and options of the source.
_SETTINGS: Final = {
    **{f"--{name}": name for name in "tls namespace group sql body mode format rate".split()},
    "--name-server": "nameServer name_server",
    "--namesrv": "namesrv",
    "--timeout": "request_timeout_seconds",
    "--context": "context",
    "--access-key": "access_key",
    "--credentials-file": "accessKey secretKey securityToken credentials",
    "--tls-ca-file": "tlsCaFile tls_ca_file",
    "--tls-cert-file": "tlsCertFile tlsKeyFile tls_cert_file",
    "--tls-key-file": "tls_key_file",
    "GROUP": "of_group",
    "--from": "startingOffsets startingTimestamp start",
    "--to": "endingOffsets endingTimestamp end",
    "TOPICS": "subscribe topics topic",
    "--pattern": "subscribePattern pattern",
    "--to-topic": "to",
    "--filter": "subExpression selector",
    "--column": "columns",
    "--path": "target",
    "--partition-by": "partition_by",
    "--checkpoint": "checkpoint",
    "--body-format": "kind",
    "--body-schema": "schema",
    "--body-message": "message",
    "--bad-rows": "bad_rows",
}
OPTIONS: Final = {
    **{name: option for option, names in _SETTINGS.items() for name in names.split()},
    "tls files": "--tls-ca-file, --tls-cert-file, --tls-key-file",
}
HINTS: Final[dict[type[RocketMQError], str]] = {
    AuthError: "check --credentials-file, or ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY",
    NameServerUnavailableError: "check --name-server and --tls",
    NotConnectedError: "check that the broker runs and can be reached from this host",
    RouteNotFoundError: "check the name and the permission of the topic",
}
# An exception of Python in the message of Spark: the last line of its traceback.
PYTHON_ERROR: Final = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
SOURCE_WAY_OUT: Final = re.compile(r"\bset failOnDataLoss=false\b")
# Errors that a pipeline raises in a job.
JOB_ERROR: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
# The message of an exception of Java, in an error of py4j or of a stream, and of its causes.
JVM_ERROR: Final = re.compile(
    r"\AAn error occurred while calling .*\n: (.+)"
    r"|\A\[STREAM_FAILED\] Query \[.*\] terminated with exception: (.+)"
)
JVM_CAUSE: Final = re.compile(r"^Caused by: (.+)", re.MULTILINE)
JVM_NOISE: Final = re.compile(  # names of classes and conditions, and the SQL state
    r"^(?:[\w$]+\.)+[\w$]+: (?=.)|^\[[A-Z_.]+\] | SQLSTATE: \w+|\.$"
)
JOB_ABORTED: Final = "Job aborted"  # a message that contains the one of the cause
# Common conditions of Spark -> pattern of the name in its message, and our message.
CONDITION: Final = re.compile(
    r"\[([A-Z_]+)(?:\.[A-Z_]+)?\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE
)
CONDITIONS: Final = {
    "PATH_ALREADY_EXISTS": (
        r"Path (\S+) already exists",
        "--path {}: it already exists: give --mode append or overwrite, or another --path",
    ),
    "TABLE_OR_VIEW_ALREADY_EXISTS": (
        r"table or view (\S+) because",
        "--table {}: it already exists: give --mode append or overwrite, or another --table",
    ),
    "PATH_NOT_FOUND": (
        r"Path does not exist: (\S+?)\.?$",
        "PATH {}: there is no such file or folder",
    ),
    "DATA_SOURCE_NOT_FOUND": (
        r"data source: (\S+?)\. ",
        "--format {}: Spark knows no such format: check the name, or add its jar with --packages",
    ),
    "UNABLE_TO_INFER_SCHEMA": (
        r"schema for (\S+?)\. ",
        "PATH: no {} file is there, or it is empty: check PATH and --format, or give --schema",
    ),
}
# Methods that errors of `AdminClient` advise -> their commands.
METHODS: Final = {
    "config() returns all": "the command config shows all",
    "topics.update()": "rmq topic update",
    "groups.update()": "rmq group update",
    "static_topics.create()": "rmq static-topic create",
    "static_topics.remap()": "rmq static-topic remap",
    "see static_topics": "see rmq static-topic",
    "messages.by_id()": "rmq message by-id",
    "batch_by_offset_id()": "rmq message batch-by-offset-id",
    "repeat `create` first": "repeat rmq static-topic create first",
}
SECRETS: Final = re.compile(r"(?i)((?:access|secret)_?key|token)(['\"]?\s*[=:]\s*)\S+")


def format_error(error: BaseException) -> str:
    """Return *error* as one line, with the options of the command."""
    text = SOURCE_WAY_OUT.sub("give --allow-loss", _describe(error))
    for method, command in METHODS.items():
        text = text.replace(method, command)
    return text.replace("(subscribe)", "(TOPICS)")


def _describe(error: BaseException) -> str:
    if isinstance(error, ConfigError):
        given = "" if error.value is None else f" {shown(str(error.value))!r}"
        reason = error.reason.partition("\n")[0]  # that of a broker may have several lines
        reason = reason.removesuffix(" or None")  # an option that is not given
        return f"{OPTIONS.get(error.setting, error.setting)}{given}: {reason}"
    if isinstance(error, click.exceptions.Exit | click.Abort):
        return "stopped"
    command = getattr(getattr(error, "ctx", None), "command", None)
    if isinstance(error, click.NoSuchOption) and isinstance(command, click.Group):
        option = error.option_name
        return shown(f"no such option {option!r}: give it behind the command: rmq COMMAND {option}")
    if (message := getattr(error, "format_message", None)) is not None:  # an error of click
        return shown(f"{message()} (see --help)")
    if isinstance(error, ModuleNotFoundError) and error.name in ("pyspark", "pyarrow"):
        return f"pipelines need {error.name}: {missing_extra('spark')}"
    hint = next((text for kind, text in HINTS.items() if isinstance(error, kind)), None)
    text = _first_line(error)
    if others := sum(each.startswith("likewise ") for each in getattr(error, "__notes__", ())):
        text += f" (likewise on {counted(others, 'other server')})"
    return f"{text}: {hint}" if hint is not None else text


def _first_line(error: BaseException) -> str:
    """Return the line with the cause; messages of Spark contain whole tracebacks."""
    text = str(error)
    if message := _spark_condition(text):
        return shown(message)
    if match := JOB_ERROR.search(text):
        return shown(match[1])
    raised = PYTHON_ERROR.findall(text)
    if raised and type(error).__module__.startswith(("pyspark", "py4j")):
        kind, text = raised[-1]
        text = text if kind.endswith("Error") else f"{kind}: {text}"
    elif message := _jvm_message(error):
        text = message
    line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return SECRETS.sub(r"\1\2***", shown(line))


def _jvm_message(error: BaseException) -> str | None:
    """Return the message and the first cause of an error of the JVM; None: it is another one."""
    if (found := JVM_ERROR.search(str(error))) is None:
        return None
    # Errors of streams have their trace in this attribute only.
    trace = f"{error}\n{getattr(error, '_stackTrace', '')}"
    message = _without_noise(found[1] or found[2])
    causes = [_without_noise(each) for each in JVM_CAUSE.findall(trace)]
    if causes and message.startswith(JOB_ABORTED):
        return causes[-1]
    return message if not causes or causes[-1] in message else f"{message}: {causes[-1]}"


def _without_noise(message: str) -> str:
    while (shorter := JVM_NOISE.sub("", message)) != message:
        message = shorter
    return message


def _spark_condition(text: str) -> str | None:
    """Return the message of `CONDITIONS` for an error of Spark."""
    for condition, message in CONDITION.findall(text):
        if condition in CONDITIONS:
            pattern, form = CONDITIONS[condition]
            name = re.search(pattern, message)
            return form.format(name[1] if name else "").replace("  ", " ")
    return None


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code of a command that failed with *error*."""
    if isinstance(error, ConfigError | ModuleNotFoundError) or hasattr(error, "format_message"):
        return ExitCode.USAGE
    if isinstance(error, AdminError) and error.done and not error.unchanged:
        return ExitCode.INCOMPLETE
    return ExitCode.STOPPED if isinstance(error, click.Abort) else ExitCode.FAILED
