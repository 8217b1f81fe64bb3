"""``python -m benchmarks.subject KIND WORKLOAD``: one measured run; the runner starts these."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import importlib
import pstats
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import fields
from typing import Final

from benchmarks.subject.measure import Options

PROFILED_LINES: Final = 45
ENTRIES: Final = {
    ("bare", "send"): "benchmarks.bare.send:send_messages",
    ("bare", "fill"): "benchmarks.bare.send:fill",
    ("bare", "pull"): "benchmarks.bare.pull:pull_messages",
    ("bare", "drain"): "benchmarks.bare.pull:pull_messages",
    ("bare", "push"): "benchmarks.bare.pull:pull_messages",
    ("bare", "push-read"): "benchmarks.bare.pull:read_messages",
    ("client", "send"): "benchmarks.subject.produce:send_messages",
    ("client", "send-gathered"): "benchmarks.subject.produce:send_gathered",
    ("client", "send-nowait"): "benchmarks.subject.produce:send_nowait",
    ("client", "send-ordered"): "benchmarks.subject.kinds:send_in_order",
    ("client", "send-ordered-together"): "benchmarks.subject.kinds:send_in_order_together",
    ("client", "send-text"): "benchmarks.subject.kinds:send_text",
    ("client", "request"): "benchmarks.subject.kinds:request_and_reply",
    ("client", "transaction"): "benchmarks.subject.kinds:send_in_transactions",
    ("client", "pull"): "benchmarks.subject.consume:poll_endless",
    ("client", "drain"): "benchmarks.subject.consume:drain_backlog",
    ("client", "iterate"): "benchmarks.subject.consume:iterate_backlog",
    ("client", "idle"): "benchmarks.subject.consume:stay_idle",
    ("client", "push"): "benchmarks.subject.push:look_at_bodies",
    ("client", "push-read"): "benchmarks.subject.push:read_properties",
    ("client", "push-lists"): "benchmarks.subject.push:take_lists",
    ("client", "latency"): "benchmarks.subject.latency:send_to_handler",
}


def _parse() -> tuple[argparse.Namespace, Options]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.subject")
    parser.add_argument("kind", choices=sorted({kind for kind, _ in ENTRIES}))
    parser.add_argument("workload", choices=sorted({workload for _, workload in ENTRIES}))
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--profile", action="store_true", help="cProfile table on stderr")
    parser.add_argument("--rich", action="store_true")
    for option in fields(Options):
        if option.name != "rich":
            parser.add_argument("--" + option.name.replace("_", "-"), default=option.default)
    parsed = parser.parse_args()
    kinds = {"str": str, "int": int, "float": float, "bool": bool}
    values = {
        option.name: kinds[str(option.type)](getattr(parsed, option.name))
        for option in fields(Options)
    }
    return parsed, Options(**values)


def _entry(kind: str, workload: str) -> Callable[[Options], Awaitable[None]]:
    module, _, name = ENTRIES[kind, workload].partition(":")
    entry: Callable[[Options], Awaitable[None]] = getattr(importlib.import_module(module), name)
    return entry


def _runner(loop: str) -> asyncio.Runner:
    if loop == "asyncio":
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def main() -> None:
    parsed, options = _parse()
    entry = _entry(parsed.kind, parsed.workload)

    async def run() -> None:
        await entry(options)

    profile = cProfile.Profile() if parsed.profile else None
    with _runner(parsed.loop) as runner, profile or nullcontext():
        runner.run(run())
    if profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(PROFILED_LINES)


if __name__ == "__main__":
    main()
