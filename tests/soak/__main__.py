"""Soak test: ``python -m tests.soak --minutes 30 --backend jvm``.

Sends 2,000 messages per second through all kinds of clients while brokers are killed and started
again.  Exit code 1: messages are lost, memory or a table grows, or the clients leave something
behind.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from typing import Final

from tests.soak.flows import FLOWS, Flow, TransactionsToPull
from tests.soak.sampling import process_figures, table_sizes
from tests.soak.servers import BROKERS, ServerProcess, start_servers
from tests.soak.trend import CONFIDENCE, Trend

MAX_MIB_PER_HOUR: Final = 1.0
# If nothing more is held: allocators keep pages that peaks of the load have touched.
MAX_UNHELD_MIB_PER_HOUR: Final = 5.0
# Producers keep the decisions of transactions for half an hour.
WARM_UP_MINUTES: Final = 35.0
WARM_UP: Final = 0.5  # of the whole time, at most
JUDGED_SECONDS: Final = 600.0  # growth is not judged in shorter runs: bounded tables fill first
SAMPLE_SECONDS: Final = 1.0
TABLES_EVERY: Final = 5  # samples
DRAIN_SECONDS: Final = 90.0  # without a message that was missing
END_SECONDS: Final = 5.0  # for transports to close
MEMORY: Final = "RSS MiB"
# Judged by slope, or not at all.
HELD: Final = ("malloc MiB", "blocks")  # what the process holds: any leak is in one of them
INFORMATIVE: Final = (MEMORY, *HELD, "malloc free MiB")
PROCESS: Final = (*INFORMATIVE, "descriptors", "tasks", "threads")
SHOWN_LENGTH: Final = 100  # shorter tables are not reported


class Soak:
    """One run: samples, and what went wrong."""

    def __init__(self, flows: list[Flow], seconds: float) -> None:
        self.flows = flows
        self.seconds = seconds
        self._warm_up = min(WARM_UP_MINUTES * 60, seconds * WARM_UP)
        self.trends: dict[str, Trend] = {}
        self._samples = 0
        self.restarts = 0
        self.faults: list[str] = []

    async def run(self, servers: ServerProcess, restart_seconds: float) -> None:
        """Run the load; return when all messages were received or the time for it is over."""
        loop = asyncio.get_running_loop()
        before, started = process_figures(), loop.time()
        restarting = asyncio.create_task(self._restart(servers, restart_seconds))
        try:
            for flow in self.flows:
                await flow.start()
            self.started = loop.time()
            while (passed := loop.time() - self.started) < self.seconds:
                self._sample(passed)
                await asyncio.sleep(SAMPLE_SECONDS)
            self.sent_seconds = loop.time() - self.started
            restarting.cancel()
            await asyncio.wait([restarting])
            await self._drain()
        finally:
            restarting.cancel()
            for flow in self.flows:
                await flow.close()
        await self._check_left_behind(before)
        self.whole_seconds = loop.time() - started

    def judge(self) -> None:
        """Add what the samples show to the faults."""
        for flow in self.flows:
            self.faults += [f"{flow.name}: {fault}" for fault in flow.ledger.faults()]
        if self.seconds < JUDGED_SECONDS:
            return
        for name, trend in self.trends.items():
            if name not in INFORMATIVE and trend.grows():
                self.faults.append(f"{name} grows")
        fills = any(isinstance(flow, TransactionsToPull) for flow in self.flows)
        if fills and self._warm_up < WARM_UP_MINUTES * 60:
            return  # decisions are kept longer than the run
        memory = self.trends[MEMORY].slope()
        held = [self.trends[name].slope() for name in HELD]
        grows = any(each is not None and each.lower > 0 for each in held)
        limit = MAX_MIB_PER_HOUR if grows else MAX_UNHELD_MIB_PER_HOUR
        if memory is not None and memory.lower > limit:
            percent = f"{CONFIDENCE:.0%}"
            self.faults.append(f"memory grows by {memory.per_hour:.1f} MiB/h ({percent} sure)")

    def report(self) -> str:
        """Return the results as text."""
        lines = [
            f"{self.sent_seconds:.0f} s, {self.restarts} restarts of brokers; "
            f"{self.backlog} messages came, or not, in {self.drain_seconds:.0f} s afterwards"
        ]
        for flow in self.flows:
            book = flow.ledger
            lines.append(
                f"{flow.name:14}{book.sent:9} sent {book.sent / self.sent_seconds:7.0f}/s"
                f"{book.received:9} received{book.extra:6} extra"
                f"{book.failed:6} failed{book.missing:6} missing  {dict(book.errors) or ''}"
            )
        total = sum(flow.ledger.sent for flow in self.flows)
        lines.append(f"{'all':14}{total:9} sent {total / self.sent_seconds:7.0f}/s")
        for name, trend in sorted(self.trends.items()):
            if trend.most < SHOWN_LENGTH and name not in PROCESS:
                continue
            line = (
                f"{name:40}{trend.first:10.1f} first{trend.most:10.1f} max{trend.last:10.1f} last"
            )
            if name in INFORMATIVE and (slope := trend.slope()) is not None:
                bounds = f"{CONFIDENCE:.0%}: {slope.lower:.1f} to {slope.upper:.1f}"
                line += f"  {slope.per_hour:+.1f} per hour ({bounds})"
                line += f"  [{' '.join(f'{each:.0f}' for each in trend.minima)}]"
            lines.append(line)
        if self.seconds < JUDGED_SECONDS:
            lines.append(f"growth is judged from {JUDGED_SECONDS:.0f} s on")
        lines += [f"FAILED: {fault}" for fault in self.faults] or ["passed"]
        return "\n".join(lines)

    def _sample(self, passed: float) -> None:
        for flow in self.flows:
            flow.check_running()
        figures = process_figures()
        if self._samples % TABLES_EVERY == 0:
            clients = [client for flow in self.flows for client in flow.clients]
            figures |= table_sizes(clients)
        self._samples += 1
        for name, value in figures.items():
            if name not in self.trends:
                self.trends[name] = Trend(self._warm_up, self.seconds)
            self.trends[name].add(passed, value)

    async def _restart(self, servers: ServerProcess, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            broker = self.restarts % BROKERS
            self.restarts += (
                1  # counted at its begin: a thread ends also if its caller is cancelled
            )
            await asyncio.to_thread(servers.restart, broker)

    async def _drain(self) -> None:
        """Stop sending, and wait until all messages were received, or none comes any more."""
        for flow in self.flows:
            flow.sending = False
        loop = asyncio.get_running_loop()
        started = loop.time()
        self.backlog = least = sum(flow.ledger.missing for flow in self.flows)
        until = started + DRAIN_SECONDS
        while least and loop.time() < until:
            await asyncio.sleep(1.0)
            missing = sum(flow.ledger.missing for flow in self.flows)
            if missing < least:
                least, until = missing, loop.time() + DRAIN_SECONDS
        self.drain_seconds = loop.time() - started

    async def _check_left_behind(self, before: dict[str, float]) -> None:
        loop = asyncio.get_running_loop()
        until, left = loop.time() + END_SECONDS, ["not looked at"]
        while left and loop.time() < until:
            await asyncio.sleep(0.2)
            gc.collect()
            after = process_figures()
            left = [
                f"{after[name]:.0f} {name} after close, {before[name]:.0f} before"
                for name in ("descriptors", "tasks")
                if after[name] > before[name]
            ]
        self.faults += left


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--backend", choices=["embedded", "jvm"], default="embedded")
    parser.add_argument("--rate", type=float, default=2000.0, help="messages per second")
    parser.add_argument("--restart-seconds", type=float, default=60.0, help="between two restarts")
    parser.add_argument("--flow", action="append", choices=[each.name for each in FLOWS])
    options = parser.parse_args()
    names = [f"soak-{each.name}" for each in FLOWS]
    popped = {"soak-popmode": "soak-popmode-group"}
    with start_servers(options.backend, names, popped) as servers:
        chosen = [each for each in FLOWS if options.flow is None or each.name in options.flow]
        flows = [each(servers.namesrv, options.rate) for each in chosen]
        soak = Soak(flows, options.minutes * 60)
        asyncio.run(soak.run(servers, options.restart_seconds))
    soak.judge()
    sys.stdout.write(f"{soak.report()}\n")
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
