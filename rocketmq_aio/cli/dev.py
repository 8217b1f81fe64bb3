"""``rmq dev``: the embedded broker as a process, for development with clients of any language.

It needs no extra, so it parses its options itself.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import re
import signal
import sys
import time
from codecs import getincrementaldecoder
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final, NoReturn

from rocketmq_aio.cli.streams import drop_output, write_error
from rocketmq_aio.embedded.broker.events import Event, MessageStored, OffsetCommitted
from rocketmq_aio.embedded.broker.store import StoredMessage
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.embedded.server import VERSIONS
from rocketmq_aio.embedded.snapshot import (
    SnapshotError,
    check_writable,
    load_snapshot,
    save_snapshot,
)
from rocketmq_aio.model.properties import KEYS, TAGS
from rocketmq_aio.signals import stop_signals

USAGE: Final = 2  # exit codes as in `cli.failures`, which needs an extra
FAILED: Final = 3
# The terminal was closed; a program that nohup started ignores it.
HANGUP: Final = tuple(
    number
    for number in ([signal.SIGHUP] if sys.platform != "win32" else [])
    if signal.getsignal(number) is not signal.SIG_IGN
)
DEFAULT_PORT: Final = 9876
DEFAULT_QUEUES: Final = 4
MAX_QUEUES: Final = 1024
MAX_BROKERS: Final = 26
LINES_PER_WINDOW: Final = 5  # of one topic; further messages are counted in one line
WINDOW_SECONDS: Final = 1.0
SYSTEM_PREFIXES: Final = ("RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_")
NAME: Final = re.compile(r"[%|0-9A-Za-z_-]{1,127}")
LABELS: Final = (("tag", TAGS), ("keys", KEYS))
SHOWN_BYTES: Final = 60
UTF8: Final = getincrementaldecoder("utf-8")
DESCRIPTION: Final = """\
Run a RocketMQ for development: a name server and brokers in this process, in memory.
Never use it in production: it has no replication, no disk and no limits for clients."""


class UsageError(Exception):
    """An option is wrong; nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevOptions:
    """Options of the command."""

    host: str
    port: int
    topics: dict[str, int]
    brokers: int
    version: str
    light_queues: bool
    keep: Path | None
    quiet: bool


def run(arguments: Sequence[str]) -> int:
    """Run the command until SIGINT, SIGTERM or SIGHUP; return its exit code."""
    try:
        options = parse(arguments)
    except UsageError as error:
        return _fail(str(error), USAGE)
    try:
        asyncio.run(serve(options, Output()))
    except OSError as error:
        return _fail(_reason(error, options), FAILED)
    except SnapshotError as error:
        return _fail(str(error), FAILED)
    return 0


def parse(arguments: Sequence[str]) -> DevOptions:
    """Return the options.

    :raises UsageError: one of them is wrong
    :raises SystemExit: ``--help``
    """
    given = _parser().parse_args(arguments)
    if not 0 <= given.port <= 65535:
        raise UsageError(f"--port {given.port}: expected 0 (any free port) to 65535")
    if not 1 <= given.brokers <= MAX_BROKERS:
        raise UsageError(f"--brokers {given.brokers}: expected 1 to {MAX_BROKERS}")
    given.host, given.topics = _host(given.host), dict(map(_topic, given.topics))
    return DevOptions(**vars(given))


async def serve(options: DevOptions, show: Callable[[str], object]) -> None:
    """Run the cluster until a signal arrives.

    :raises OSError: the port cannot be used
    :raises SnapshotError: the file of ``--keep`` cannot be read or written
    """
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    with stop_signals(lambda: loop.call_soon_threadsafe(stopped.set), *HANGUP):
        cluster = EmbeddedCluster(
            options.brokers,
            version=options.version,
            light_queues=options.light_queues,
            host=options.host,
            port=options.port,
        )
        loaded = options.keep is not None and load_snapshot(cluster.brokers, options.keep)
        if options.keep is not None:
            check_writable(options.keep)
        for name, queues in options.topics.items():
            cluster.create_topic(name, queues)
        async with cluster:
            for line in _greeting(cluster, options, loaded=loaded):
                show(line)
            await _watch(cluster, options, show, stopped)
        if options.keep is not None:
            save_snapshot(cluster.brokers, options.keep)
            show(f"saved to {options.keep}")


async def _watch(
    cluster: EmbeddedCluster,
    options: DevOptions,
    show: Callable[[str], object],
    stopped: asyncio.Event,
) -> None:
    """Show what happens until *stopped* is set."""
    if options.quiet:
        await stopped.wait()
        return
    activity = Activity(show)
    cluster.on_event(activity.record)
    waiting = asyncio.ensure_future(stopped.wait())
    try:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=WINDOW_SECONDS)
            activity.end_window()
    finally:
        waiting.cancel()


@dataclass(slots=True)
class _Counts:
    """Messages of one topic, or of one group and topic, in one window."""

    lines: int = 0
    more: int = 0
    more_bytes: int = 0


class Activity:
    """Shows messages as lines, and many messages of a topic as one line per window."""

    def __init__(
        self, show: Callable[[str], object], clock: Callable[[], float] = time.time
    ) -> None:
        self._show = show
        self._clock = clock
        self._windows: defaultdict[str, _Counts] = defaultdict(_Counts)

    def record(self, event: Event) -> None:
        """Show or count *event*."""
        if isinstance(event, OffsetCommitted):
            subject = f"committed {event.topic} by {event.group}"
            if self._is_shown(event.topic, subject):
                self._line(f"{subject}  queue {event.queue_id} offset {event.offset}")
        elif isinstance(event, MessageStored):
            stored = event.message
            subject = f"sent      {stored.topic}"
            if self._is_shown(stored.topic, subject, size=len(stored.body)):
                own = stored.properties
                labels = [f"{name}={own[key]}" for name, key in LABELS if key in own]
                self._line("  ".join([subject, _place(stored), *labels, _shown(stored.body)]))
        else:
            last, count = event.messages[-1], len(event.messages)
            subject = f"consumed  {last.topic} by {event.group}"
            if self._is_shown(last.topic, subject, count):
                several = f"{count} messages up to " if count > 1 else ""
                self._line(f"{subject}  {several}{_place(last)}")

    def _is_shown(self, topic: str, subject: str, count: int = 1, size: int = 0) -> bool:
        """Whether an event gets a line of its own; otherwise it is counted."""
        if topic.startswith(SYSTEM_PREFIXES):
            return False
        counts = self._windows[subject]
        if counts.lines < LINES_PER_WINDOW:
            counts.lines += 1
            return True
        counts.more += count
        counts.more_bytes += size
        return False

    def end_window(self) -> None:
        """Show what was only counted, and begin a new window."""
        windows, self._windows = self._windows, defaultdict(_Counts)
        for subject, counts in windows.items():
            if counts.more:
                size = f", {counts.more_bytes / 1e6:.1f} MB" if counts.more_bytes else ""
                what = "commits" if subject.startswith("committed") else "messages"
                self._line(f"{subject}  {counts.more:,} more {what}{size}")

    def _line(self, text: str) -> None:
        text = "".join(each if each.isprintable() else " " for each in text)
        self._show(f"{time.strftime('%H:%M:%S', time.localtime(self._clock()))}  {text}")


def _place(message: StoredMessage) -> str:
    return f"queue {message.queue_id} offset {message.offset}"


def _shown(body: bytes) -> str:
    """Return the first characters of a text, or the size of other bytes."""
    size, is_whole = f"{len(body):,} bytes", len(body) <= SHOWN_BYTES
    with suppress(UnicodeDecodeError):
        text = UTF8().decode(body[:SHOWN_BYTES], final=is_whole)  # without half a character
        if text.isprintable():
            return text if is_whole else f"{text}... ({size})"
    return size


def _greeting(cluster: EmbeddedCluster, options: DevOptions, *, loaded: bool) -> Iterable[str]:
    yield f"Embedded RocketMQ {options.version} for development, not for production."
    yield f"name server  {cluster.namesrv}      export ROCKETMQ_NAMESRV={cluster.namesrv}"
    for broker in cluster.brokers:
        yield f"{broker.name}     {broker.address}"
    for name, queues in options.topics.items():
        yield f"topic        {name}, {queues} queues per broker"
    if options.keep is None:
        yield "data         in memory only; keep it with --keep FILE"
    else:
        yield f"data         {'loaded from' if loaded else 'new, will be saved to'} {options.keep}"
    yield "Stop with Ctrl+C."


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rmq dev",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="of the name server (default: %(default)s)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="IP address to listen on and to give to clients (default: %(default)s); anyone who"
        " reaches another one can read and write",
    )
    parser.add_argument(
        "--topic",
        dest="topics",
        action="append",
        default=[],
        metavar="NAME[:QUEUES]",
        help=f"topic to create, by default with {DEFAULT_QUEUES} queues; repeatable. Other topics"
        " are created by the first message",
    )
    parser.add_argument("--brokers", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument(
        "--version", choices=VERSIONS, default="5.5.0", help="to behave like (default: %(default)s)"
    )
    parser.add_argument(
        "--light-queues",
        action="store_true",
        help="put messages into light message queues: enableLmq and enableMultiDispatch of brokers",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="load messages, offsets and groups from FILE at the start, save them at the end",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show messages")
    return parser


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _topic(text: str) -> tuple[str, int]:
    name, colon, number = text.partition(":")
    if not NAME.fullmatch(name):
        raise UsageError(f"--topic {text}: {name!r} is no topic name")
    if not colon:
        return name, DEFAULT_QUEUES
    if not number.isdecimal() or not 1 <= int(number) <= MAX_QUEUES:
        raise UsageError(f"--topic {text}: expected NAME:QUEUES with 1 to {MAX_QUEUES} queues")
    return name, int(number)


def _host(text: str) -> str:
    """Return an IPv4 address that clients can connect to."""
    try:
        address = IPv4Address(text)
    except ValueError:
        raise UsageError(f"--host {text}: expected an IPv4 address of this machine") from None
    if address.is_unspecified:
        raise UsageError(f"--host {text}: clients cannot connect to it, name one address")
    return text


def _reason(error: OSError, options: DevOptions) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {options.port} of {options.host} is in use: stop that server, or use --port"
    return f"cannot listen on {options.host}:{options.port}: {error.strerror or error}"


def _fail(text: str, code: int) -> int:
    write_error(f"rmq dev: {text}")
    return code


class Output:
    """Prints lines to standard output until that fails; the brokers do not depend on it."""

    def __init__(self) -> None:
        self._failed = False

    def __call__(self, line: str) -> None:
        if self._failed:
            return
        encoding = sys.stdout.encoding or "utf-8"
        try:
            sys.stdout.write(f"{line}\n".encode(encoding, "backslashreplace").decode(encoding))
            sys.stdout.flush()
        except OSError as error:  # the reader of a pipe has ended, or a disk is full
            self._failed = True
            with suppress(OSError):
                drop_output()
                _fail(f"nothing more is shown: {error.strerror}; the brokers still run", FAILED)
