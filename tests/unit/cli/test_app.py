"""The command ``rmq``: options, exit codes, signals."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from rocketmq_aio.cli import pipelines
from rocketmq_aio.cli.app import run
from rocketmq_aio.cli.failures import ExitCode
from rocketmq_aio.cli.session import CONFIGURED
from rocketmq_aio.cli.stop_flag import stop_flag
from rocketmq_aio.spark import pipelines as spark_pipelines
from rocketmq_aio.spark.pipelines.dead_letter import DeadLetterSummary
from rocketmq_aio.spark.pipelines.exporting import ExportSummary
from rocketmq_aio.spark.pipelines.ingesting import IngestSummary
from rocketmq_aio.spark.pipelines.loading import LoadSummary
from rocketmq_aio.spark.pipelines.summary import Summary

PIPELINES = ("export", "ingest", "replay", "load", "dlq", "lag")
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.split(".")[0])
sys.meta_path.insert(0, Missing())
from rocketmq_aio.cli import main
sys.argv = ["rmq", *{arguments!r}]
main()
"""


def without(missing: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command without the packages *missing*."""
    code = WITHOUT.format(missing=missing, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", PIPELINES)
def test_help_of_every_pipeline_lists_common_options(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", name, "--help"]) == 0

    out = capfd.readouterr().out
    for option in ("--name-server", "--credentials-file", "--json", "--dry-run"):
        assert option in out
    assert "secret-key" not in out  # other users of the machine see options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("export T", "--name-server"),
        ("export T -n a", "--name-server"),
        ("export -n a:1 --path p", "TOPICS"),
        ("export T -n a:1", "--path"),
        ("export T -n a:1 --path p --from soon", "--from 'soon'"),
        ("export T -n a:1 --path p --to soon", "--to 'soon'"),
        ("replay T -n a:1 --to-topic U --from 1767225600", "--from '1767225600': expected"),
        ("replay T -n a:1 --to-topic U --from 20260131", "--from '20260131': expected"),
        ("export T -n a:1 --path p --mode x", "--mode 'x'"),
        ("export T -n a:1 --path p --from @nowhere", "@nowhere"),
        ("export T -n a:1 --path p --source-option x", "--source-option"),
        ("export T --pathh p", "--path"),
        ("-n a:1 export T --path p", "'-n': give it behind the command: rmq COMMAND -n"),
        ("export T -n a:1 --path p -f foo", "--format 'foo': unknown"),
        ("load T p -n a:1 -f foo", "--format 'foo': unknown"),
        ("dlq G -n a:1 --path p -f foo", "--format 'foo': unknown"),
        ("ingest T -n a:1 --path p --checkpoint c -f foo", "--format 'foo': unknown"),
        ("ingest T -n a:1 --path p", "--checkpoint"),
        ("ingest T -n a:1 --path p --checkpoint c --to 1", "--to"),
        ("ingest T -n a:1 --path p --checkpoint c --body-format xml", "--body"),
        ("replay T -n a:1 --rate 0", "--rate '0'"),
        ("replay --pattern 'T.*' -n a:1", "--to-topic"),
        ("load T p -n a:1 --column bodi=x", "--column 'bodi'"),
        ("dlq 'no group' -n a:1", "GROUP"),
        ("lag -n a:1", "TOPICS"),
        ("export T -n a:1 --path p --column bodi", "--column 'bodi'"),
        ("export T -n a:1 --path p --timeout 5", "--timeout"),
        ("export T -n a:1 --path p --partition-by tgs", "--partition-by 'tgs': no such column"),
        ("export T -n a:1 --path p --partition-by flag --column keys", "--partition-by 'flag'"),
        ("export T -n a:1 --path p --source-option pullWindo=1", "pullWindow?"),
        ("ingest T -n a:1 --path p --checkpoint c --source-option pullWindo=1", "pullWindow?"),
        ("ingest T -n a:1 --path p --checkpoint ''", "--checkpoint '': is empty"),
        ("ingest T -n a:1 --path p --checkpoint c --partition-by value", "--partition-by 'value'"),
        ("ingest T -n a:1 --path p --checkpoint c --body-message Order", "--body-format"),
        ("dlq G -n a:1 --path p --partition-by origin", "--partition-by 'origin'"),
        ("dlq G -n a:1 --mode append", "--mode 'append': needs a target: give --path or --table"),
        ("dlq G -n a:1 --partition-by ''", "--partition-by '': needs a target"),
        ("dlq G -n a:1 --from soon", "--from 'soon'"),
        ("replay T -n a:1 --sink-option sendWindo=1", "sendWindow?"),
        ("load T p -n a:1 --sink-option sendWindow=0", "sendWindow '0'"),
        (
            "export T -n a:1 --path p --source-option accesskey=planted",
            "--source-option 'accesskey': is visible to other users: use --credentials-file",
        ),
        (
            "load T p -n a:1 --sink-option secretKey=planted",
            "--sink-option 'secretKey': is visible",
        ),
    ],
)
def test_an_invalid_option_is_one_line_before_spark_starts(
    arguments: str, message: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROCKETMQ_NAMESRV", "NAMESRV_ADDR", *CONFIGURED):
        monkeypatch.delenv(name, raising=False)

    assert run(["pipeline", *shlex.split(arguments)]) == 2

    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("rmq: ")
    assert message in captured.err
    assert "planted" not in captured.err


def test_a_missing_cli_extra_is_reported() -> None:
    ended = without(("click", "rich"), "pipeline", "lag", "T")

    assert ended.returncode == 2
    assert ended.stderr == "rmq needs click: install rocketmq-aio with its extra [cli]\n"


def test_without_spark_only_lag_works() -> None:
    lag = without(("pyspark", "pyarrow"), "pipeline", "lag", "T", "-n", "127.0.0.1:1")
    export = without(("pyspark", "pyarrow"), "pipeline", "export", "T", "-n", "a:1", "--path", "p")

    assert lag.returncode == 3
    assert "no name server responded" in lag.stderr
    assert export.returncode == 2
    assert "rocketmq-aio with its extra [spark]" in export.stderr


def test_the_first_signal_sets_the_flag_and_the_second_interrupts(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_flag() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGTERM)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert signal.getsignal(signal.SIGTERM) is before
    assert "second signal" in capfd.readouterr().err


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions without Spark."""
    monkeypatch.setattr(pipelines, "session", lambda *_: nullcontext())


@pytest.mark.parametrize(
    ("arguments", "function", "summary"),
    [
        (["export", "T", "--path", "p"], "export", ExportSummary),
        (["load", "T", "p"], "load", LoadSummary),
        (["dlq", "G"], "dead_letters", DeadLetterSummary),
    ],
)
def test_a_signal_stops_a_pipeline_and_shows_its_summary(
    sessions: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    function: str,
    summary: Callable[..., Summary],
) -> None:
    def work(*_: object, stop: Callable[[], bool], **__: object) -> Summary:
        signal.raise_signal(signal.SIGTERM)
        return summary(interrupted=stop(), problems=("stopped while writing",))

    monkeypatch.setattr(spark_pipelines, function, work)

    assert run(["pipeline", *arguments, "-n", "a:1", "--json"]) == ExitCode.STOPPED

    captured = capfd.readouterr()
    assert json.loads(captured.out)["interrupted"]
    assert captured.err.splitlines()[-1] == "rmq: stopped while writing"


@pytest.mark.parametrize(("option", "code"), [((), 0), (("--once",), ExitCode.STOPPED)])
def test_a_stopped_ingest_is_done_unless_it_had_an_end(
    sessions: None, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], code: int
) -> None:
    def work(*_: object, stop: Callable[[], bool], **__: object) -> Summary:
        signal.raise_signal(signal.SIGTERM)
        return IngestSummary(interrupted=stop())

    monkeypatch.setattr(spark_pipelines, "ingest", work)
    places = ("--path", "p", "--checkpoint", "c")

    assert run(["pipeline", "ingest", "T", "-n", "a:1", *places, *option]) == code


def test_a_jvm_ended_by_the_signal_is_reported_as_stopped(
    sessions: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def work(*_: object, **__: object) -> Summary:
        signal.raise_signal(signal.SIGTERM)
        raise Py4JNetworkError("An error occurred while trying to connect to the Java server")

    monkeypatch.setattr(spark_pipelines, "replay", work)

    assert run(["pipeline", "replay", "T", "-n", "a:1"]) == ExitCode.STOPPED

    assert capfd.readouterr().err.splitlines()[-1] == "rmq: stopped"


def test_a_jvm_that_ends_without_a_signal_is_a_failure(
    sessions: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def work(*_: object, **__: object) -> Summary:
        raise Py4JNetworkError("the Java server is gone")

    monkeypatch.setattr(spark_pipelines, "replay", work)

    assert run(["pipeline", "replay", "T", "-n", "a:1"]) == ExitCode.FAILED
    assert "the Java server is gone" in capfd.readouterr().err
