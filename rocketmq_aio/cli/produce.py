"""``rmq produce``: sends lines."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec
import typer

from rocketmq_aio.cli.arguments import argument, command, option, options
from rocketmq_aio.cli.completion import complete_topics
from rocketmq_aio.cli.connection import ClientArguments
from rocketmq_aio.cli.input import read_lines
from rocketmq_aio.cli.output import print_line, print_note, show_json
from rocketmq_aio.cli.parameters import parse_pairs
from rocketmq_aio.cli.running import run_async
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import RESERVED
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.producer.producer import Producer

app = typer.Typer(add_completion=False)
AT_ONCE: Final = 256
GROUP: Final = "rmq-produce"
EXAMPLES: Final = """
echo hello | rmq produce orders --tag new --key 42
rmq produce orders events.txt --rate 100 --count 1000
rmq consume orders --from beginning --exit-at-end -o json | rmq produce copy --json
"""


class Line(msgspec.Struct):
    """A line of ``--json``; further fields, such as those of `rmq consume`, are ignored."""

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


@options
class ProduceArguments(ClientArguments):
    """Options of `produce`."""

    topic: str = argument("Topic to send to.", "TOPIC", autocompletion=complete_topics)
    files: list[Path] | None = argument("Files; default: standard input.", "FILES...", None)
    json: bool = option(
        "Lines are JSON objects: body or body_base64, key or keys, tag, properties, sharding_key, "
        "delay_seconds, delay_level.",
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
    delay_level: int = option("1 to 18 of the delay table of brokers.", default=0, min=0, max=18)
    rate: float | None = option("Messages per second at most.", min=0.001)
    count: int | None = option("Messages to send at most.", min=1)
    verbose: bool = option("Print each result as JSON.", "--verbose", "-v", default=False)
    group: str = option("Producer group.", "--group", "-g", default=GROUP)

    def message(self, line: bytes, number: int) -> Message:
        """Return the message of a line; raise `ConfigError` if it is no JSON object."""
        given = _parse(line, number) if self.json else Line()
        pairs = parse_pairs(self.property) or {}
        named = {**{k: v or "" for k, v in pairs.items()}, **given.properties}
        keys = [*given.keys, *([given.key] if given.key else [])] or list(self.key)
        return Message(
            self.topic,
            _body(given, number) if self.json else line,
            tags=given.tag or given.tags or self.tag,
            keys=keys or None,
            properties={k: v for k, v in named.items() if k not in RESERVED},
            sharding_key=given.sharding_key or self.sharding_key,
            delay_seconds=self.delay if given.delay_seconds is None else given.delay_seconds,
            delay_level=given.delay_level or self.delay_level,
        )


def _parse(line: bytes, number: int) -> Line:
    try:
        return msgspec.json.decode(line, type=Line)
    except msgspec.DecodeError as error:
        raise ConfigError("--json", None, f"line {number}: {error}") from None


def _body(given: Line, number: int) -> bytes:
    if given.body_base64 is not None:
        try:
            return base64.b64decode(given.body_base64, validate=True)
        except binascii.Error as error:
            raise ConfigError("--json", None, f"line {number}: body_base64: {error}") from None
    if given.body is None:
        raise ConfigError("--json", None, f"line {number} has neither body nor body_base64")
    is_text = isinstance(given.body, str)
    return given.body.encode() if is_text else msgspec.json.encode(given.body)


@command(app, "produce", ProduceArguments, EXAMPLES)
def _produce(arguments: ProduceArguments) -> int:
    """Send the lines of files or of standard input as messages; empty lines are skipped.

    Up to 256 sends run at once. The first failure ends the command; its message and those after
    it may be missing.
    """
    return run_async(_send_all(arguments))


async def _send_all(arguments: ProduceArguments) -> int:
    sent = started = 0

    async def send(message: Message) -> None:
        nonlocal sent
        try:
            _print(arguments, await producer.send(message))
            sent += 1
        finally:
            free.release()

    free = asyncio.Semaphore(AT_ONCE)
    loop = asyncio.get_running_loop()
    due = loop.time()
    try:
        async with (
            Producer(arguments.group, client=arguments.config()) as producer,
            asyncio.TaskGroup() as tasks,
            aclosing(_inputs(arguments)) as lines,
        ):
            async for line in lines:
                started += 1
                message = arguments.message(line, started)
                if arguments.rate is not None:
                    await asyncio.sleep(max(0.0, due - loop.time()))
                    due = max(due, loop.time() - 1) + 1 / arguments.rate
                await free.acquire()
                tasks.create_task(send(message))
                if started == arguments.count:
                    break
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        print_note(f"{sent} messages sent to {arguments.topic}")
    return 0


async def _inputs(arguments: ProduceArguments) -> AsyncGenerator[bytes, None]:
    if not arguments.whole:
        async for line in read_lines(arguments.files or ()):
            if line:
                yield line
        return
    for each in [[file] for file in arguments.files or ()] or [[]]:
        yield b"\n".join([line async for line in read_lines(each)])


def _print(arguments: ProduceArguments, result: SendResult) -> None:
    if arguments.verbose:
        show_json(msgspec.to_builtins(result))
    elif not result.ok:
        print_line(f"{result.message_id}: {result.status.name}")
