"""Shell completion of the names of topics, groups and brokers.

Names are asked for with a short deadline and cached in a file, so that a TAB never hangs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from rocketmq_aio.cli.connection import ClientArguments
from rocketmq_aio.errors import RocketMQError

DEADLINE_SECONDS: Final = 1.0
CACHE_SECONDS: Final = 30.0
SHELLS: Final = ("bash", "zsh", "fish")


def _complete(kind: str, ctx: click.Context, incomplete: str) -> list[str]:
    known = {each.name for each in fields(ClientArguments)}
    given = {n: value for n, value in ctx.params.items() if n in known and value is not None}
    try:
        config = ClientArguments(**given).config(may_prompt=False)
        file = _cache_file(kind, f"{config.namesrv} {config.namespace}")
        names = _cached(file)
        if names is None:
            names = asyncio.run(_ask(kind, config))
            _store(file, names)
    except (RocketMQError, OSError, TimeoutError):  # a TAB prints no errors
        return []
    return [name for name in names if name.startswith(incomplete)]


complete_topics: Final = partial(_complete, "topics")
complete_groups: Final = partial(_complete, "groups")
complete_brokers: Final = partial(_complete, "brokers")


async def _ask(kind: str, config: Any) -> list[str]:  # noqa: ANN401 - imported on use
    from rocketmq_aio.admin.client import AdminClient

    async with asyncio.timeout(DEADLINE_SECONDS), AdminClient(client=config) as admin:
        if kind == "topics":
            return await admin.topics.list()
        if kind == "groups":
            return await admin.groups.list()
        return [each.broker_name for each in (await admin.brokers.cluster()).brokers]


def _cache_file(kind: str, cluster: str) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rmq"
    return folder / f"{kind}-{hashlib.sha256(cluster.encode()).hexdigest()[:16]}.json"


def _cached(file: Path) -> list[str] | None:
    with suppress(OSError, ValueError):
        if 0 <= time.time() - file.stat().st_mtime < CACHE_SECONDS:
            names = json.loads(file.read_text(encoding="utf-8"))
            return [str(name) for name in names]
    return None


def _store(file: Path, names: list[str]) -> None:
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(names), encoding="utf-8")
        new.replace(file)


def script(shell: str) -> str:
    """Return the script that the shell has to load."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    return kind(click.Group(), {}, "rmq", "_RMQ_COMPLETE").source()
