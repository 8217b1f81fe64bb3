"""Logging: silent by default, one event per line, no forged lines."""

import logging
import subprocess
import sys

import pytest

from rocketmq_aio import log
from rocketmq_aio.log import get_logger

logger = get_logger("rocketmq_aio.tests.log")

SILENT = """
from rocketmq_aio.log import get_logger
logger = get_logger("rocketmq_aio.somewhere")
for say in (logger.debug, logger.info, logger.warning, logger.error):
    say("an_event", value=5)
"""
FAILING = """
import logging
from rocketmq_aio.log import get_logger
logging.basicConfig()
try:
    raise LookupError("gone")
except LookupError:
    get_logger("rocketmq_aio.somewhere").exception("an_event", value=5)
"""
LISTENING = "import logging\nlogging.basicConfig(level=logging.INFO)\n" + SILENT


def run(program: str) -> str:
    """Return the output of a new process on both streams."""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    return ended.stdout + ended.stderr


def test_nothing_is_logged_by_default() -> None:
    assert run(SILENT) == ""


def test_events_are_logged_from_the_configured_level() -> None:
    lines = run(LISTENING).splitlines()

    assert lines == [
        f"{level}:rocketmq_aio.somewhere:event='an_event' value=5"
        for level in ("INFO", "WARNING", "ERROR")
    ]


def test_the_event_name_precedes_its_values(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="rocketmq_aio"):
        logger.info("route_changed", topic="orders", queues=8)

    (record,) = caplog.records
    assert (record.name, record.levelname) == ("rocketmq_aio.tests.log", "INFO")
    assert record.getMessage() == "event='route_changed' topic='orders' queues=8"


def test_a_disabled_event_is_not_rendered(caplog: pytest.LogCaptureFixture) -> None:
    class Costly:
        def __repr__(self) -> str:
            raise AssertionError("a value was rendered that nobody sees")

    with caplog.at_level(logging.WARNING, logger="rocketmq_aio"):
        logger.info("costly", value=Costly())

    assert caplog.records == []


@pytest.mark.parametrize(
    "forged", ["a\nERROR all is lost", "a\r\n", "\x1b[31m", "\u2028", "\ud800"]
)
def test_values_cannot_inject_log_lines(forged: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="rocketmq_aio"):
        logger.warning("pull_failed", reason=forged)

    (record,) = caplog.records
    assert record.getMessage().isprintable()


@pytest.mark.parametrize("how", ["current", "instance"])
def test_the_record_carries_the_exception(caplog: pytest.LogCaptureFixture, how: str) -> None:
    with caplog.at_level(logging.INFO, logger="rocketmq_aio"):
        try:
            raise LookupError("gone")
        except LookupError as error:
            logger.warning("hook_failed", hook="audit", exc_info=how == "current" or error)

    (record,) = caplog.records
    assert record.getMessage() == "event='hook_failed' hook='audit'"
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


def test_standard_logging_prints_the_traceback_on_separate_lines() -> None:
    lines = run(FAILING).splitlines()

    assert lines[:2] == [
        "ERROR:rocketmq_aio.somewhere:event='an_event' value=5",
        "Traceback (most recent call last):",
    ]
    assert lines[-1] == "LookupError: gone"


def test_the_package_logger_configures_all_events() -> None:
    package = logging.getLogger("rocketmq_aio")

    assert [type(handler) for handler in package.handlers] == [logging.NullHandler]
    assert package.level == logging.NOTSET
    assert package.propagate


@pytest.mark.parametrize("failure", [OSError(24, "Too many open files"), ImportError("gone")])
def test_an_event_is_logged_while_structlog_cannot_be_imported(
    failure: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound(name: str) -> None:
        raise failure

    monkeypatch.setattr(log, "_bound", bound)
    try:
        raise LookupError("cause")
    except LookupError as error:
        get_logger("rocketmq_aio.test").warning("lost", reason="a\nforged line", exc_info=error)

    (record,) = caplog.records
    assert record.getMessage() == "event='lost' reason='a\\nforged line'"
    assert record.levelno == logging.WARNING
    assert "LookupError: cause" in caplog.text
