"""``rmq produce``: sends lines."""

from __future__ import annotations

import asyncio
import base64
import binascii
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketmq_aio.cli.arguments import Group, argument, command, option, options
from rocketmq_aio.cli.completion import complete_topics
from rocketmq_aio.cli.connection import ClientArguments, send_settings
from rocketmq_aio.cli.input import InputError, Line, check_files, read_lines, read_whole
from rocketmq_aio.cli.names import check_target
from rocketmq_aio.cli.output import (
    Output,
    ProgressArguments,
    counted,
    json_line,
    print_note,
    progress,
)
from rocketmq_aio.cli.parameters import parse_pairs
from rocketmq_aio.errors import ConfigError, InvalidMessageError
from rocketmq_aio.model.message import MAX_DELAY_LEVEL, Message
from rocketmq_aio.model.properties import PRIORITY, RESERVED, SHARDING_KEY, read_priority
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.producer.producer import Producer

if TYPE_CHECKING:
    from rocketmq_aio.spark.pipelines.summary import Report

app = Group("produce")
AT_ONCE: Final = 256
SHOWN: Final = 5  # places of failures
GROUP: Final = "rmq-produce"
EXAMPLES: Final = """
echo hello | rmq produce orders --tag new --key 42
rmq produce orders events.txt --rate 100 --count 1000
rmq consume orders --from beginning --exit-at-end -o json | rmq produce copy --json
"""


class Fields(msgspec.Struct):
    """The object of a line of ``--json``; other fields of `rmq consume` are ignored."""

    body: Any = None
    body_base64: str | None = None
    key: str | None = None
    keys: list[str] = []
    tag: str | None = None
    tags: str | None = None
    properties: dict[str, str] = {}
    sharding_key: str | None = None
    delay_seconds: float | None = None
    delay_level: int = 0
    priority: int | None = None


@options
class ProduceArguments(ProgressArguments, ClientArguments):
    topic: str = argument("Topic to send to.", "TOPIC", complete=complete_topics)
    files: list[Path] | None = argument("Files; default: standard input.", "FILES", None)
    json: bool = option(
        "Lines are JSON objects: body or body_base64, key or keys, tag, properties, sharding_key, "
        "delay_seconds, delay_level, priority.",
        default=False,
    )
    whole: bool = option("Each file, or all of standard input, is one body.", default=False)
    tag: str | None = option("Tag of every message.")
    key: list[str] = option("Key of every message; repeatable.", "--key", "-k", default=())
    property: list[str] = option(
        "NAME=VALUE for every message; repeatable.", "--property", "-p", default=()
    )
    sharding_key: str | None = option("Send in order, to the queue of this key.")
    delay: float | None = option("Seconds until delivery; brokers from 5.0.", min=0)
    delay_level: int = option(
        "Of the delay table of brokers, by default 1 to 18.", default=0, min=0, max=MAX_DELAY_LEVEL
    )
    priority: int | None = option("From 0; brokers from 5.4 choose the queue by it.", min=0)
    rate: float | None = option("Messages per second at most.", min=0.001)
    count: int | None = option("Messages to send at most.", min=1)
    verbose: bool = option("Print each result as JSON.", "--verbose", "-v", default=False)
    group: str = option("Producer group.", "--group", "-g", default=GROUP)

    def check(self) -> None:
        """Raise `ConfigError` for a topic or an option that no message can have."""
        check_target("topic", self.topic)
        options: dict[str, dict[str, Any]] = {
            "tag": {"tags": self.tag},
            "key": {"keys": self.key},
            "property": {"properties": self.properties()},
            "sharding_key": {"sharding_key": self.sharding_key},
            "priority": {"priority": self.priority},
        }
        for name, given in options.items():
            try:
                Message(self.topic, b"-", **given)
            except InvalidMessageError as error:
                [value] = given.values()
                raise ConfigError(name, value, error.reason) from None
        if self.delay is not None and self.delay_level:
            raise ConfigError("delay", self.delay, "give either it or --delay-level")

    def message(self, line: Line) -> Message:
        """Return the message of a line; raise `InputError` if there is none."""
        try:
            return self._message(_parse(line.body) if self.json else Fields(), line.body)
        except ConfigError:
            raise  # of an option, not of the line
        except (InvalidMessageError, msgspec.DecodeError, ValueError) as error:
            raise InputError(f"{line.place}: {error}") from None

    def _message(self, given: Fields, body: bytes) -> Message:
        keys = [*given.keys, *([given.key] if given.key else [])] or list(self.key)
        own = {name: text for name, text in given.properties.items() if name not in RESERVED}
        # A line of `rmq consume` has key and priority among the properties.
        key = given.sharding_key or given.properties.get(SHARDING_KEY) or self.sharding_key
        priority = self.priority if given.priority is None else given.priority
        if priority is None:
            priority = read_priority(given.properties.get(PRIORITY))
        return Message(
            self.topic,
            _body(given) if self.json else body,
            tags=given.tag or given.tags or self.tag,
            keys=keys,
            properties={**self.properties(), **own},
            sharding_key=key,
            delay_seconds=self.delay if given.delay_seconds is None else given.delay_seconds,
            delay_level=given.delay_level or self.delay_level,
            priority=priority,
        )

    def properties(self) -> dict[str, str]:
        """Return those of every message; raise `ConfigError` for names of the system."""
        given = parse_pairs(self.property, "property") or {}
        pairs = {name: text or "" for name, text in given.items()}
        if taken := RESERVED & pairs.keys():
            reason = "belongs to the system: use --key, --tag, --delay or --sharding-key"
            raise ConfigError("--property", min(taken), reason)
        return pairs


def _parse(line: bytes) -> Fields:
    try:
        return msgspec.json.decode(line, type=Fields)
    except UnicodeDecodeError:
        raise ValueError("the line is not UTF-8") from None


def _body(given: Fields) -> bytes:
    if given.body_base64 is not None:
        try:
            return base64.b64decode(given.body_base64, validate=True)
        except binascii.Error as error:
            raise ValueError(f"body_base64: {error}") from None
    if given.body is None:
        raise ValueError("it has neither body nor body_base64")
    is_text = isinstance(given.body, str)
    return given.body.encode() if is_text else msgspec.json.encode(given.body)


@command(app, "produce", ProduceArguments, EXAMPLES)
async def _produce(arguments: ProduceArguments) -> int:
    """Send the lines of files or of standard input as messages; empty lines are skipped.

    Up to 256 sends run at once. The first failure, or a line that is no message, ends the command:
    later lines are not sent, and sends that run are finished first.
    """
    arguments.check()
    check_files(arguments.files or ())
    config = arguments.config()
    settings = send_settings(config)
    async with Producer(arguments.group, client=config, config=settings) as producer:
        is_quiet = arguments.quiet or arguments.verbose or not arguments.files
        sending = _Sending(arguments, producer)
        try:
            with progress(wanted=not is_quiet) as report:
                await sending.run(report)
        finally:
            print_note(sending.summary())
    return 0


class _Sending:
    """Reads lines and sends them; a failed send ends the reading."""

    def __init__(self, arguments: ProduceArguments, producer: Producer) -> None:
        self._arguments, self._producer = arguments, producer
        self._free = asyncio.Semaphore(AT_ONCE)
        self._sent = 0
        self._failures: dict[str, Exception] = {}  # by place
        self._unprinted: OSError | None = None  # of a result
        self._running: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._output = Output()

    async def run(self, report: Report) -> None:
        """Send all lines; raise the first failure when no send runs any more."""
        self._reading = asyncio.ensure_future(self._read(report))
        try:
            await self._reading
        except asyncio.CancelledError:
            if not self._failures and self._unprinted is None:  # a signal
                raise
        finally:
            self._reading.cancel()
            await asyncio.wait([self._reading, *self._running])
        for error in (*self._failures.values(), self._unprinted):
            if error is not None:
                raise error

    def summary(self) -> str:
        """Return how many messages were sent, and the lines that failed."""
        text = f"{counted(self._sent, 'message')} sent to {self._arguments.topic}"
        places = list(self._failures)
        more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        return f"{text}; failed: {', '.join(places[:SHOWN])}{more}" if places else text

    async def _read(self, report: Report) -> None:
        sizes, done = [each.stat().st_size for each in self._arguments.files or ()], 0
        total = sum(sizes) if all(sizes) else 0  # pipes have none
        arguments, loop = self._arguments, asyncio.get_running_loop()
        read = read_whole if arguments.whole else read_lines
        started, due = 0, loop.time()
        async with aclosing(read(arguments.files or ())) as lines:  # type: ignore[type-var]
            async for line in lines:
                done += len(line.body) + (not arguments.whole)
                report("bytes", min(done, total) or done, total)
                if not line.body and not arguments.whole:
                    continue
                message = arguments.message(line)
                if arguments.rate is not None:
                    await asyncio.sleep(max(0.0, due - loop.time()))
                    due = max(due, loop.time() - 1) + 1 / arguments.rate
                await self._free.acquire()
                task = asyncio.ensure_future(self._send(line.place, message))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                started += 1
                if started == arguments.count:
                    return

    async def _send(self, place: str, message: Message) -> None:
        try:
            result = await self._producer.send(message)
        except Exception as error:  # noqa: BLE001 - raised by run
            self._failures[place] = error
            self._stop_reading()
        else:
            self._sent += 1
            self._show(result)
        finally:
            self._free.release()

    def _show(self, result: SendResult) -> None:
        try:
            if self._arguments.verbose:
                self._output.line(json_line(msgspec.to_builtins(result)))
            elif not result.ok:
                self._output.line(f"{result.message_id}: {result.status.name}")
        except OSError as error:  # such as a full disk; raised by run
            self._unprinted = error
            self._stop_reading()

    def _stop_reading(self) -> None:
        assert self._reading is not None
        self._reading.cancel()
