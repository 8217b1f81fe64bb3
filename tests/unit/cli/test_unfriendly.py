"""`rmq` with broken input, closed streams, signals and servers that do not respond."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rocketmq_aio.cli import app as cli_app
from rocketmq_aio.cli.app import run
from rocketmq_aio.cli.output import NESTED_WIDTH, format_table
from rocketmq_aio.cli.parameters import parse_time
from rocketmq_aio.cli.top import _chosen
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from tests.unit.cli.test_rmq import Rmq, Started, cluster, rmq

__all__ = ["cluster", "rmq"]
ALL = ("consume", "orders", "--from", "beginning", "--exit-at-end", "-o", "json")
SHELL = f"exec {sys.executable} -c 'from rocketmq_aio.cli import main; main()'"


def bodies(rmq: Rmq) -> list[str]:
    return sorted(json.loads(line)["body"] for line in rmq(*ALL).splitlines())


# --- input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"body":3', "Input data was truncated"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"key":"a"}', "it has neither body nor body_base64"),
        (b'{"body_base64":"@@"}', "body_base64: Only base64 data is allowed"),
        (b'{"body":"\xff"}', "the line is not UTF-8"),
        (b'{"body":"x","delay_level":-1}', "delay_level=-1"),
        (b'{"body":"x","key":"a b"}', "a key holds no space"),
    ],
)
def test_a_bad_line_is_named_and_the_lines_before_it_are_sent(
    rmq: Rmq, tmp_path: Path, line: bytes, reason: str
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b'{"body":"1"}\n\n{"body":"2"}\n' + line + b'\n{"body":"5"}\n')

    error = rmq("produce", "orders", "--json", str(file), code=3, stderr=True).splitlines()

    assert error[0] == "2 messages sent to orders"
    assert error[1].startswith(f"rmq: {file}: line 4: ")
    assert reason in error[1]
    assert bodies(rmq) == ["1", "2"]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("produce a.b", "TOPIC 'a.b': only letters, digits"),
        ("produce SCHEDULE_TOPIC_XXXX", "TOPIC 'SCHEDULE_TOPIC_XXXX': this topic is reserved"),
        ("produce %LMQ%a", "TOPIC '%LMQ%a': what is sent to a light message queue itself"),
        ("dlq resend g --to-topic %LMQ%a --yes", "--to-topic '%LMQ%a': what is sent to a light"),
        ("produce orders --tag a||b", "--tag 'a||b': tags='a||b': a message has one tag"),
        ("produce orders --property price", "--property 'price': expected NAME=VALUE"),
        ("produce orders --delay 1 --delay-level 2", "--delay '1.0': give either it or --delay"),
        ("consume orders --filter a --sql b>1", "--sql 'b>1': give either it or --filter"),
        ("consume orders --sql b>", "--sql 'b>': ParseException"),
        ("consume orders --filter \udcff", r"Invalid value for '--filter' / '-f': '\udcff' is not"),
        ("context set \udcff", r"Invalid value for 'NAME': '\udcff' is not UTF-8"),
        ("topic list --tls-key-file k.pem", "--tls-key-file 'k.pem': needs --tls-cert-file"),
        ("consume orders --filter ||", "--filter '||': "),
        ("consume orders --queue 7", "--queue '7': the queues of topic orders are 0 to 1"),
        ("consume orders --from begin", "--from 'begin': expected beginning, end, a time with"),
        ("group create a.b", "GROUP 'a.b': only letters"),
        ("topic create a.b", "TOPIC 'a.b': only letters"),
        ("topic create a --queues 0", "--queues '0': expected a whole number from 1"),
        ("topic create a --brokers x", "--brokers 'x': the name server knows"),
        ("topic create a --attributes b", "--attributes 'b': expected NAME=VALUE"),
        ("topic set-order orders broker-a=b --yes", "QUEUES 'b': expected a number for broker-a"),
        ("topic set-order orders broker-a= --yes", "QUEUES: expected a number for broker-a"),
        ("broker update-config =04 --yes", "SETTINGS '=04': expected NAME=VALUE"),
        ("message by-offset orders/broker-a 0", "QUEUE 'orders/broker-a': expected TOPIC/BROKER/"),
        ("message by-offset orders/broker-a/x 0", "QUEUE 'orders/broker-a/x': expected TOPIC/"),
        ("message by-offset orders//0 0", "QUEUE 'orders//0': expected TOPIC/BROKER/ID"),
        ("message by-offset /broker-a/0 0", "QUEUE '/broker-a/0': expected TOPIC/BROKER/ID"),
        (
            "message by-offset-id 7F00000179C4563F18866DD9A34B0000",
            "'7F00000179C4563F18866DD9A34B0000': not the id of a broker; rmq message by-id finds",
        ),
        (f"message by-offset-id 7F000001{'0' * 24}", "not the id of a broker; rmq message by-id"),
        (f"message by-offset-id 7F00000100002A9F{'F' * 16}", "not the id of a broker; rmq messa"),
        ("message by-offset orders/broker-z/0 0", "QUEUE 'orders/broker-z/0': topic orders has no"),
        ("message by-key orders 1 --begin now", "--begin 'now': expected a time with zone"),
        (
            "message by-key orders 1 --begin 2026-03-01T00:00:00",
            "--begin '2026-03-01T00:00:00': expected a time with zone",
        ),
        (
            "message by-key orders 1 --end 1772323200",
            "--end '1772323200': expected a time with zone, or milli",
        ),
        (
            "consume orders --from 20260301",
            "--from '20260301': expected beginning, end, a time with zone, or",
        ),
        (
            "offset reset g orders 20260301 --yes",
            "TO '20260301': expected earliest, latest, a time with zone, or",
        ),
        ("offset reset g orders begin --yes", "TO 'begin': expected earliest, latest, a time wi"),
        ("broker switch-timer-engine POP --yes", "ENGINE 'POP': expected one of"),
        ("broker switch-timer-engine POP --dry-run", "ENGINE 'POP': expected one of"),
        ("group status g nobody", "CLIENT_ID 'nobody': the members are []"),
        ("dlq show g --from begin", "--from 'begin': expected beginning, end, a time with"),
        ("topic update orders --yes", "settings: nothing to change"),
        ("group update billing --brokers broker-a --dry-run", "settings: nothing to change"),
        ("produce orders --property", "Option '--property' requires an argument."),
        ("topic config orders --brokers", "Option '--brokers' requires an argument."),
        ("topic update orders --queues 0 --dry-run", "--queues '0': expected a whole number"),
        ("acl delete-policy app --dry-run", "SUBJECT 'app': expected User:NAME"),
        ("group delete TOOLS_CONSUMER --dry-run", "GROUP 'TOOLS_CONSUMER': brokers and tools"),
        ("topic update orders --perm XX", "--perm 'XX': expected one of"),
        ("controller clean a:1 c b --broker-ids x", "--broker-ids 'x': expected a whole number"),
        ("metadata restore {} --brokers a --yes", "--brokers 'a': expected NAME=VALUE"),
        ("metadata restore {} --brokers a= --yes", "--brokers 'a=': expected OLD=NEW"),
        ("broker consume-queue nope/broker-a/0 0", "QUEUE 'nope': there is no such topic"),
        ("lite parent nope", "TOPIC 'nope': there is no such topic"),
        ("lite topic nope one", "PARENT 'nope': there is no such topic"),
        ("lite group orders g --count 0", "--count '0': expected"),
        ("lite client orders g c --count 0", "--count '0': expected"),
        ("user copy nope --targets broker-b --yes", "SOURCE 'nope': the name server knows"),
        ("acl copy-policies nope --targets broker-b --yes", "SOURCE 'nope': the name server knows"),
        ("broker remove localhost:99999 c b 0 --yes", "the port must be a number"),
        ("broker update-config deleteWhen=04 deleteWhen=05 --yes", "deleteWhen is given twice"),
        ("broker update-config deletWhen=04 --yes", "did you mean deleteWhen? (the command config"),
        ("broker update-config deletWhen=04 --dry-run", "did you mean deleteWhen? (the command"),
        ("broker config --brokers=", "expected a list of non-empty strings\n"),
        ("broker config --namesrv=", "--namesrv '': is empty"),
        ("broker config --access-key=", "--access-key '': is empty"),
        ("produce orders --property KEYS=1", "--property 'KEYS': belongs to the system"),
        ("cluster list --cluster x", "--cluster 'x': the name server knows ["),
        ("topic list --cluster x", "--cluster 'x': the name server knows ["),
        ("namesrv wipe-write-permission x --yes", "BROKER 'x': the name server knows ["),
    ],
)
def test_a_wrong_option_is_named_as_the_command_names_it(
    rmq: Rmq, tmp_path: Path, command: str, error: str
) -> None:
    file = tmp_path / "metadata.json"
    file.write_text("{}")

    said = rmq(*command.format(file).split(), code=2, stderr=True)

    assert said.startswith("rmq: ")
    assert error in said
    assert said.count("\n") == 1


def test_optional_arguments_are_in_brackets_in_the_help(rmq: Rmq) -> None:
    assert "Usage: rmq produce [OPTIONS] TOPIC [FILES]..." in rmq("produce", "--help")
    assert "Usage: rmq group progress [OPTIONS] GROUP [TOPIC]" in rmq("group", "progress", "-h")
    assert "[OPTIONS] TOPIC CLIENT_IDS..." in rmq("topic", "allocate", "-h")


@pytest.mark.parametrize(
    "when", ["9" * 26, "9" * 5000, "2026-13-01T00:00:00Z", "10000-01-01T00:00:00Z"]
)
@pytest.mark.parametrize(
    "command", ["offset reset billing orders {} --yes", "message by-key orders 1 --begin {}"]
)
def test_a_time_that_does_not_exist_is_a_wrong_option(rmq: Rmq, command: str, when: str) -> None:
    error = rmq(*command.format(when).split(), code=2, stderr=True)

    assert "a time with zone" in error


def test_a_number_of_13_digits_is_a_time() -> None:
    assert parse_time("1772323200000") == datetime(2026, 3, 1, tzinfo=UTC)


def test_times_at_the_ends_of_the_calendar_are_accepted(rmq: Rmq) -> None:
    rmq("produce", "orders", "--key", "1", given="x\n")
    begin, end = "0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00"

    found = rmq(*f"message by-key orders 1 --begin {begin} --end {end} -o json".split())

    assert len(json.loads(found)) == 1


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "command",
    ["top --count 1 --interval", "lag --watch", "produce orders --rate", "topic list --timeout"],
)
def test_numbers_that_are_not_finite_are_wrong_options(rmq: Rmq, command: str, number: str) -> None:
    error = rmq(*command.split(), number, code=2, stderr=True)

    assert f"'--{command.rpartition('--')[2]}'" in error


def test_a_failed_send_ends_the_command_and_is_named(rmq: Rmq) -> None:
    given = f"1\n{'x' * 5_000_000}\n2\n"

    error = rmq("produce", "orders", given=given, code=3, stderr=True)

    assert "/given: line 2\n" in error
    assert "max_message_bytes" in error


def test_sends_that_run_are_finished_before_the_command_fails(
    rmq: Rmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    send = Producer.send

    async def recorded(self: Producer, message: Message) -> object:
        result = await send(self, message)
        ended.append("sent")
        return result

    monkeypatch.setattr(Producer, "send", recorded)
    file = tmp_path / "in.jsonl"
    file.write_text('{"body":"1"}\n' * 100 + "bad\n")

    error = rmq("produce", "orders", "--json", str(file), code=3, stderr=True)

    assert error.startswith("100 messages sent to orders\n")
    assert len(ended) == 100


@pytest.mark.parametrize("name", ["no-such-file", "."])
def test_an_unreadable_file_ends_with_2_before_anything_is_sent(
    rmq: Rmq, tmp_path: Path, name: str
) -> None:
    good = tmp_path / "good"
    good.write_text("1\n")

    error = rmq("produce", "orders", str(good), str(tmp_path / name), code=2, stderr=True)

    assert "(bodies come from files or standard input)" in error
    assert bodies(rmq) == []


def test_a_file_that_is_one_body_keeps_every_byte(rmq: Rmq, tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"a\r\nb\n\n")

    rmq("produce", "orders", "--whole", str(file))

    assert bodies(rmq) == ["a\r\nb\n\n"]


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["--help", "topic --help", "completion bash", "topic list"])
def test_a_reader_that_has_enough_ends_the_command_with_0(
    cluster: EmbeddedCluster, command: str
) -> None:
    with Started(*command.split()) as process:
        process.stdout.close()
        error = process.communicate(timeout=60)[1]

    assert (process.returncode, error) == (0, b"")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("topic stats nope", 2),
        ("topic --foo", 2),
        ("topic", 2),
        ("dev --port -5", 2),
        ("topic list --namesrv 127.0.0.1:1", 3),
        ("topic list", 0),
    ],
)
def test_the_exit_code_is_the_same_when_nobody_reads_the_errors(
    cluster: EmbeddedCluster, command: str, code: int
) -> None:
    with Started(*command.split()) as process:
        process.stderr.close()
        process.stdout.read()

    assert process.returncode == code


def test_produce_sends_all_lines_when_nobody_reads_its_output(rmq: Rmq) -> None:
    with Started("produce", "orders", "--verbose", "--timeout", "60") as process:
        process.stdout.close()
        error = process.communicate(b"1\n" * 1000, timeout=60)[1]

    assert (process.returncode, error) == (0, b"1000 messages sent to orders\n")
    assert len(bodies(rmq)) == 1000


@pytest.mark.parametrize("command", ["produce orders", "bench orders --count 1 --yes"])
def test_the_timeout_is_also_that_of_sends(
    rmq: Rmq, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    seconds = []

    class Recorded(Producer):
        def __init__(self, group: str, **given: Any) -> None:  # noqa: ANN401 - those of Producer
            seconds.append(given["config"].send_timeout_seconds)
            super().__init__(group, **given)

    name = command.partition(" ")[0]
    monkeypatch.setattr(f"rocketmq_aio.cli.{name}.Producer", Recorded)
    lines = "one\n" if name == "produce" else None
    rmq(*command.split(), "--timeout", "40", given=lines)

    assert seconds == [40]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_produce_fails_if_its_results_cannot_be_written(
    rmq: Rmq, tmp_path: Path, unbuffered: str
) -> None:
    file = tmp_path / "in"
    file.write_text("one\n")
    ended = subprocess.run(
        ["sh", "-c", f"{SHELL} produce orders --verbose {file} > /dev/full"],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )

    assert ended.returncode == 3
    assert ended.stderr.startswith(b"1 message sent to orders\nrmq: ")
    assert b"No space left" in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert bodies(rmq) == ["one"]


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the streams")
@pytest.mark.parametrize(
    ("arguments", "closed", "code"),
    [("topic list", ">&-", 0), ("topic no-such-verb", "2>&-", 2), ("produce orders", "<&-", 0)],
)
def test_closed_standard_streams_are_the_null_device(
    cluster: EmbeddedCluster, arguments: str, closed: str, code: int
) -> None:
    ended = subprocess.run(
        ["sh", "-c", f"{SHELL} {arguments} {closed}"], capture_output=True, check=False
    )

    assert ended.returncode == code
    assert b"NoneType" not in ended.stderr


@pytest.mark.skipif(os.name != "posix", reason="starts a shell")
@pytest.mark.parametrize(("verb", "code"), [("list", 0), ("delete orders", 2)])
def test_without_docstrings_commands_that_change_something_ask_and_others_do_not(
    cluster: EmbeddedCluster, verb: str, code: int
) -> None:
    shell = f"{SHELL} topic {verb} -o json <&-".replace(" -c ", " -OO -c ", 1)
    ended = subprocess.run(["sh", "-c", shell], capture_output=True, check=False)

    assert ended.returncode == code, ended.stderr
    assert (b"--yes: is needed" in ended.stderr) is (code == 2)
    assert b"orders" in ended.stdout


@pytest.mark.skipif(os.name != "posix", reason="starts a shell")
def test_pipes_get_utf8_whatever_the_locale_is(rmq: Rmq) -> None:
    rmq("produce", "orders", given="\u4f60\u597d\n")
    ended = subprocess.run(
        ["sh", "-c", f"{SHELL} consume orders --from beginning --exit-at-end -o json"],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )

    assert json.loads(ended.stdout)["body"] == "\u4f60\u597d"


def test_an_interrupt_during_imports_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from rocketmq_aio.cli import main

    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_app, "run", interrupted)
    with pytest.raises(SystemExit, match="130"):
        main()

    assert capfd.readouterr().err == "rmq: stopped\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_produce_while_it_waits_for_input(
    cluster: EmbeddedCluster, number: int
) -> None:
    with Started("produce", "orders", "--verbose") as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["status"] == "SEND_OK"
        process.send_signal(number)
        error = process.communicate(timeout=60)[1]  # closes standard input

    assert (process.returncode, error) == (130, b"1 message sent to orders\nrmq: stopped\n")


# --- terminals ------------------------------------------------------------------------------------


def act(child: int, terminal: int, typed: bytes | None) -> None:
    if typed is None:
        os.kill(child, signal.SIGTERM)
    else:
        os.write(terminal, typed)


def in_terminal(*arguments: str, typed: bytes | None, until: bytes) -> tuple[int, bytes]:
    """Run a command in a terminal of 20 columns; type when *until* appears; None: send SIGTERM.

    A signal between the output of a prompt and its read is handled after the read only, so what was
    typed is typed again if nothing happens.
    """
    child, terminal = pty.fork()
    if child == 0:
        code = "from rocketmq_aio.cli import main; main()"
        os.environ.update(COLUMNS="20", TERM="xterm")
        os.execv(sys.executable, [sys.executable, "-c", code, *arguments])
    seen, is_typed = b"", False
    try:
        while True:
            while is_typed and not select.select([terminal], [], [], 5)[0]:
                act(child, terminal, typed)
            if not (chunk := os.read(terminal, 4096)):
                break
            seen += chunk
            if until in seen and not is_typed:
                act(child, terminal, typed)
                is_typed = True
    except OSError:  # the end of the terminal
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seen


@pytest.mark.parametrize(("typed", "code"), [(b"n\n", 130), (b"\x03", 130), (b"y\n", 0)])
def test_a_terminal_is_asked_before_a_topic_is_deleted(
    rmq: Rmq, cluster: EmbeddedCluster, typed: bytes, code: int
) -> None:
    ended, _ = in_terminal("topic", "delete", "orders", typed=typed, until=b"[y/N]")

    assert ended == code
    assert ("orders" in rmq("topic", "list")) == (code != 0)


@pytest.mark.parametrize("typed", [b"\x03", None])
@pytest.mark.parametrize(
    ("command", "prompt"),
    [("topic list --access-key app", b"Secret key of app"), ("user create app", b"New password")],
)
def test_a_signal_ends_a_prompt_for_a_secret(
    cluster: EmbeddedCluster, command: str, prompt: bytes, typed: bytes | None
) -> None:
    ended, seen = in_terminal(*command.split(), typed=typed, until=prompt)

    assert ended == 130
    assert b"Traceback" not in seen


def test_an_interrupt_of_top_restores_a_narrow_terminal(cluster: EmbeddedCluster) -> None:
    ended, seen = in_terminal("top", "--interval", "0.2", typed=b"\x03", until=b"TOPIC")

    assert ended == 0
    assert b"\x1b[?1049l" in seen  # leaves the alternate screen
    assert b"Traceback" not in seen


# --- servers that do not respond ------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["broker config", "broker stats", "broker consume-stats"])
def test_results_of_the_brokers_that_answered_have_their_usual_form(
    rmq: Rmq, cluster: EmbeddedCluster, verb: str
) -> None:
    whole = json.loads(rmq(*verb.split(), "--brokers", "broker-a", "-o", "json"))
    cluster.brokers[1].freeze()

    part = json.loads(rmq(*verb.split(), "--timeout", "2", "-o", "json", code=1))

    assert [row.keys() for row in part] == [row.keys() for row in whole]


def test_a_broker_without_an_answer_in_a_list_ends_with_1(
    rmq: Rmq, cluster: EmbeddedCluster
) -> None:
    cluster.brokers[1].freeze()

    rows = json.loads(rmq("cluster", "list", "--timeout", "2", "-o", "json", code=1))

    assert [bool(row["problem"]) for row in rows] == [False, True]


def test_an_error_of_a_task_group_is_its_cause(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("more", [OSError("no space")])])

    monkeypatch.setattr(cli_app, "app", fail)

    assert run(["bench"]) == 3
    assert capfd.readouterr().err == "rmq: no space\n"


# --- output ---------------------------------------------------------------------------------------


def test_rows_of_all_servers_are_in_csv(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    cluster.create_group("billing")
    for broker in cluster.brokers:
        broker.state.committed["billing", "orders", 0] = 0

    rows = list(csv.DictReader(io.StringIO(rmq("broker", "consume-stats", "-o", "csv"))))

    assert {(row["server"], row["queue.broker_name"]) for row in rows} == {
        ("broker-a", "broker-a"),
        ("broker-b", "broker-b"),
    }
    assert {row["group"] for row in rows} == {"billing"}


def test_lists_of_settings_have_the_same_columns_without_rows(rmq: Rmq) -> None:
    empty = rmq("broker", "config", "--match", "no-such-name", "-o", "csv")

    assert empty == "server,name,value\n"


def test_nested_values_and_the_last_column_do_not_widen_tables() -> None:
    nested = {"name": "x" * 1000}
    lines = format_table(["a", "b"], [[nested, "y" * 1000], [1, "z"]]).splitlines()

    assert len(lines[1]) == NESTED_WIDTH + len("...  ") + 1000
    assert len(lines[2]) < NESTED_WIDTH + 10


def test_top_says_how_many_names_it_leaves_out() -> None:
    assert _chosen(["a1", "a2", "a3", "b"], "a*", 2) == (["a1", "a2"], "2 of 3 (--most, --match)")
    assert _chosen(["a1", "b"], "a*", 2) == (["a1"], "1")


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
@pytest.mark.parametrize(("mode", "is_noted"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_credentials_file_that_others_may_read_is_noted(
    rmq: Rmq, tmp_path: Path, mode: int, is_noted: bool
) -> None:
    file = tmp_path / "account"
    file.write_text("accessKey=a\nsecretKey=TOPSECRET\n")
    file.chmod(mode)

    error = rmq("topic", "list", "--credentials-file", str(file), stderr=True)

    assert error == (f"other users may read {file}: chmod 600 it\n" if is_noted else "")


def test_an_error_of_the_file_of_contexts_has_a_place_and_no_content(
    rmq: Rmq, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text('current = "x"\nTOPSECRET')

    error = rmq("topic", "list", "--context", "x", code=2, stderr=True)

    assert "TOMLDecodeError (at " in error
    assert "TOPSECRET" not in error


# --- progress bars --------------------------------------------------------------------------------


def with_bars(*arguments: str) -> tuple[int, bytes, bytes]:
    """Run a command whose standard error is a terminal; return its code, output and errors."""
    terminal, error = pty.openpty()
    code = "from rocketmq_aio.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=error,
    ) as process:
        os.close(error)
        assert process.stdout is not None
        out, seen = process.stdout.read(), b""
        with suppress(OSError):  # the end of the terminal
            while chunk := os.read(terminal, 4096):
                seen += chunk
    os.close(terminal)
    return process.returncode, out, seen


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_long_commands_draw_bars_on_a_terminal_only(
    rmq: Rmq, cluster: EmbeddedCluster, tmp_path: Path, quiet: tuple[str, ...]
) -> None:
    file = tmp_path / "in"
    file.write_text("one\ntwo\n")
    cluster.create_group("billing")
    cluster.create_topic("%DLQ%billing", 1)
    commands = [
        ("produce", "orders", str(file)),
        ("dlq", "export", "billing", "--file", str(tmp_path / "letters")),
        ("dlq", "resend", "billing", "--to-topic", "orders", "--yes"),
        ("bench", "orders", "--count", "10", "--yes"),
    ]

    for command in commands:
        code, _, seen = with_bars(*command, *quiet)

        assert code == 0, seen
        assert (b"\x1b[" in seen) == (not quiet), command


def test_output_has_no_bars(rmq: Rmq, cluster: EmbeddedCluster) -> None:
    code, out, _ = with_bars("bench", "orders", "--count", "10", "--yes", "-o", "json")

    assert code == 0
    assert json.loads(out)["received"] == 10
