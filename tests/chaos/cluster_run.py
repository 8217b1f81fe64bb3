"""Run of a plan on real brokers: each client is a process, the faults are real."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec

from rocketmq_aio.model.names import DLQ_PREFIX, RETRY_PREFIX
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import Cluster, probe
from rocketmq_aio.testing.errors import ClusterError, StartError
from rocketmq_aio.testing.nodes import Node
from tests.chaos.plan import Client, Fault, Plan
from tests.chaos.topology import TOPOLOGIES, Topology, draw_cluster_plan
from tests.chaos.worker import VIOLATION, Orders
from tests.fakes.frame_rules import Rule, corrupt, drop, duplicate
from tests.fakes.log_reader import read_queue
from tests.fakes.proxy import FaultProxy
from tests.history import RULES, History, Recorder, Violation, check, duplicates
from tests.history.events import LogEntry, Outcome

ROOT: Final = Path(__file__).parents[2]
START_SECONDS: Final = 180.0
STOP_SECONDS: Final = 90.0
RETRY_SECONDS: Final = 60.0  # for starts of a server that ends at once
SETTLE_SECONDS: Final = 5.0  # between the end of the faults and that of the sends
DRAIN_SECONDS: Final = 240.0
LOOK_SECONDS: Final = 2.0
AWAITED: Final = ("I1", "I9", "I21")  # rules of messages that come later: delayed, checked, read
STORM_SECONDS: Final = 1.0
GARBLED_BYTES: Final = 9  # of a frame: its lengths, and the first byte of its header
MOST_SHOWN: Final = 8  # violations of a run
MOST_CHARACTERS: Final = 2000  # of a violation
REGISTER_SECONDS: Final = 10.0  # between two registrations of a broker


class Worker:
    """A client of the plan: one process after the other."""

    def __init__(self, orders: Orders) -> None:
        self.client: Client = orders.client
        self._orders = orders
        self._count = 0
        self._process: asyncio.subprocess.Process | None = None
        self.ready = False  # runs, and handles signals

    @property
    def name(self) -> str:
        """Name of the current process."""
        return f"{self.client.name}.{self._count}"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start a process; return when it handles signals."""
        self.ready = False
        self._count += 1
        orders = msgspec.structs.replace(self._orders, name=self.name)
        output = Path(orders.folder) / f"{self.name}.log"
        with output.open("wb") as file:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.chaos.worker", msgspec.json.encode(orders).decode()),
                cwd=ROOT,
                stdin=subprocess.PIPE,  # it ends with this process
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        async with asyncio.timeout(START_SECONDS):
            while self.runs and not output.stat().st_size:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
        self.ready = True

    def send_signal(self, number: signal.Signals) -> None:
        if self.runs:
            assert self._process is not None
            self._process.send_signal(number)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        """End the process; return what is wrong with its end."""
        if not self.runs:
            return ""
        assert self._process is not None
        self.ready = False
        self.send_signal(number)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                code = await self._process.wait()
        except TimeoutError:
            self.send_signal(signal.SIGKILL)
            return f"{self.name} did not end within {STOP_SECONDS:g} s"
        return f"{self.name} ended with {code}" if code and number is signal.SIGTERM else ""


class ClusterRun:
    """One run; its files are in *folder*."""

    def __init__(self, cluster: Cluster, topology: Topology, plan: Plan, folder: Path) -> None:
        self._cluster = cluster
        self._topology = topology
        self._plan = plan
        self._folder = folder
        self._topics = sorted({client.topic for client in plan.clients})
        self._groups = sorted({client.group for client in plan.clients if client.consumes})
        self._servers: dict[str, Node] = {node.name: node for node in servers_of(cluster)}
        self._links: dict[tuple[str, str], FaultProxy] = {}
        self._workers: dict[str, Worker] = {}
        self._recorder = Recorder(folder, "judge")
        self._busy: set[str] = set()  # targets of faults
        self.violations: list[str] = []
        self.summary = ""

    async def run(self) -> None:
        """Run the plan, and judge it."""
        for topic in self._topics:
            await asyncio.to_thread(self._cluster.create_topic, topic, queues=self._plan.queues)
        for group in self._groups:
            await asyncio.to_thread(self._cluster.create_group, group)
        await asyncio.to_thread(self._prescribe_pops)
        async with AsyncExitStack() as stack:
            await self._open_links(stack)
            namesrvs = self._cluster.proxies or self._cluster.namesrvs
            namesrv = ";".join(each.address for each in namesrvs)
            for client in self._plan.clients:
                addresses = {
                    proxy.target: proxy.address
                    for (name, _), proxy in self._links.items()
                    if name == client.name
                }
                self._workers[client.name] = Worker(
                    Orders(client, "", self._plan.seed, namesrv, addresses, str(self._folder))
                )
            watching = asyncio.create_task(self._watch_masters())
            try:
                await self._break()
                unread = await self._drain()
                await self._stop()
            finally:
                watching.cancel()
                for worker in self._workers.values():
                    worker.send_signal(signal.SIGKILL)
        self._recorder.close()
        await self._judge(unread)

    def _prescribe_pops(self) -> None:
        popped = {(c.topic, c.group) for c in self._plan.clients if c.option("pops", 0.0)}
        for topic, group in popped:
            wish = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
            for broker in self._cluster.brokers:
                address, body = broker.find_master().address, json.dumps(wish).encode()
                probe.ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)

    async def _open_links(self, stack: AsyncExitStack) -> None:
        """Start a proxy for each client and server between which there is a fault."""
        for fault in self._plan.faults:
            if fault.detail:
                link = fault.target, fault.detail[0]
                if link not in self._links:
                    proxy = FaultProxy(self._servers[fault.detail[0]].address)
                    proxy.frames = deque(maxlen=0)  # type: ignore[assignment]  # none is kept
                    self._links[link] = await stack.enter_async_context(proxy)

    # --- phases ---------------------------------------------------------------------------------

    async def _break(self) -> None:
        """Run clients and faults; return when all servers and clients run again."""
        async with asyncio.TaskGroup() as tasks:
            for worker in self._workers.values():
                tasks.create_task(self._start(worker))
            for fault in self._plan.faults:
                tasks.create_task(self._do(fault))
            await asyncio.sleep(self._plan.seconds)
        await asyncio.to_thread(self._cluster.wait_ready)
        await asyncio.sleep(SETTLE_SECONDS)
        for worker in self._workers.values():
            if not worker.runs:
                self.violations.append(f"{worker.name} ended by itself")
                await worker.start()

    async def _start(self, worker: Worker) -> None:
        await asyncio.sleep(worker.client.at)
        if not worker.runs:
            await worker.start()

    async def _drain(self) -> list[Violation]:
        """Wait until all groups have consumed everything; return what is missing."""
        for worker in self._workers.values():
            if not worker.client.consumes:
                worker.send_signal(signal.SIGUSR1)
        deadline = monotonic() + DRAIN_SECONDS
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            history = History.load(self._folder)
            history.drained = True
            missing = check(history, "I9")
            if not missing:
                history.log = await self._log()
                missing = check(history, *AWAITED)
            if not missing or monotonic() > deadline:
                return missing

    async def _stop(self) -> None:
        ends = await asyncio.gather(*(worker.stop() for worker in self._workers.values()))
        self.violations += filter(None, ends)

    async def _judge(self, unread: list[Violation]) -> None:
        history = History.load(self._folder)
        history.log, history.drained = await self._log(), True
        found = unread + check(history, *(set(RULES) - set(AWAITED)))
        self.violations += [f"{each.rule}: {each.what}; {list(each.proof)}" for each in found]
        for path in sorted(self._folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()
            self.violations += [
                f"{path.stem} {each}" for each in lines if VIOLATION in each or "Error" in each[:40]
            ]
        outcomes = Counter(sent.outcome for sent in history.sends)
        reasons = Counter(each.reason for each in duplicates(history))
        self.summary = (
            f"  {outcomes[Outcome.OK]} sent, {outcomes[Outcome.UNKNOWN]} unknown, "
            f"{outcomes[Outcome.FAIL]} failed, {len(history.log)} stored, "
            f"{len(history.handled) + len(history.deliveries)} received, "
            f"{len(history.epochs)} assignments; redelivered: {dict(reasons) or 'none'}"
        )

    async def _log(self) -> list[LogEntry]:
        """Return what the brokers have stored in the topics of this run."""
        names = list(self._topics)
        for group in self._groups:
            names += [RETRY_PREFIX + group, DLQ_PREFIX + group]
            names += [f"{RETRY_PREFIX}{group}{joint}{t}" for t in self._topics for joint in "_+"]
        entries: list[LogEntry] = []
        for broker in self._cluster.brokers:
            master = await asyncio.to_thread(broker.find_master)
            for name in names:
                try:
                    count = await asyncio.to_thread(probe.queues, master.address, name)
                except probe.ProbeError:
                    continue  # nothing was retried
                for number in range(count):
                    queue = MessageQueue(name, broker.name, number)
                    entries += await read_queue(master.address, queue)
        return entries

    # --- faults ---------------------------------------------------------------------------------

    async def _do(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        target = f"{fault.target} {fault.detail[0]}" if fault.detail else fault.target
        if target in self._busy:
            return
        self._busy.add(target)
        try:
            await getattr(self, f"_{fault.kind}")(fault)
        finally:
            self._busy.discard(target)

    async def _kill_server(self, fault: Fault) -> None:
        server, started = self._servers[fault.target], monotonic()
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(fault.seconds)
        await _start_server(server)
        self._note_outage(server, started)

    async def _restart_server(self, fault: Fault) -> None:
        server, started = self._servers[fault.target], monotonic()
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(fault.seconds)
        await _start_server(server)
        self._note_outage(server, started)

    async def _freeze_server(self, fault: Fault) -> None:
        server, started = self._servers[fault.target], monotonic()
        server.pause()
        await asyncio.sleep(fault.seconds)
        server.resume()
        if self._topology.replicated:
            self._note_outage(server, started)

    def _note_outage(self, server: Node, started: float) -> None:
        """Record what clients cannot know after *server* was away, or another became the master.

        A broker has lost the commits of its last seconds and all locks, which it gives to the first
        member that asks.  Routes are without it, or empty in a name server that starts, until
        brokers have registered.
        """
        for broker in self._cluster.brokers:
            if server in broker.replicas:
                self._note_loss(broker.name, started)
        self._recorder.fault("routes", server.name, started, monotonic() + REGISTER_SECONDS)

    def _note_loss(self, broker: str, started: float) -> None:
        self._recorder.fault("broker", broker, started)
        self._recorder.fault("locks", broker, started)

    async def _watch_masters(self) -> None:
        """Record elections that no fault of a broker explains.

        A controller that was frozen, or gets the heartbeats of brokers late on a busy machine,
        elects another master.
        """
        known: dict[str, tuple[Node, float]] = {}  # by broker: its master, and when it was seen
        while True:
            for broker in self._cluster.brokers:
                asked = monotonic()
                try:
                    master = await asyncio.to_thread(broker.find_master)
                except ClusterError:
                    continue  # there is none now
                before = known.get(broker.name)
                if before is not None and before[0] is not master:
                    self._note_loss(broker.name, before[1])
                known[broker.name] = master, asked
            await asyncio.sleep(LOOK_SECONDS)

    async def _crash(self, fault: Fault) -> None:
        worker = self._workers[fault.target]
        if worker.ready:
            await worker.stop(signal.SIGKILL)
            self._recorder.fault("kill", worker.name, monotonic())
            await asyncio.sleep(fault.seconds)
            await worker.start()

    async def _freeze(self, fault: Fault) -> None:
        worker, started = self._workers[fault.target], monotonic()
        worker.send_signal(signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        worker.send_signal(signal.SIGCONT)
        self._recorder.fault("stall", worker.name, started)

    async def _restart(self, fault: Fault) -> None:
        worker = self._workers[fault.target]
        if worker.ready:
            self.violations += filter(None, [await worker.stop()])
            await asyncio.sleep(fault.seconds)
            await worker.start()

    async def _storm(self, fault: Fault) -> None:
        """A member leaves and joins again and again."""
        until = monotonic() + fault.seconds
        while monotonic() < until:
            await self._restart(Fault(0.0, STORM_SECONDS, "restart", fault.target))
            await asyncio.sleep(STORM_SECONDS)

    async def _partition(self, fault: Fault) -> None:
        server, direction, end = fault.detail
        proxy = self._links[fault.target, server]
        for name in ("up", "down"):
            if direction in (name, "both"):
                getattr(proxy, name).stall()
        await asyncio.sleep(fault.seconds)
        if end != "flow":
            proxy.cut(reset=end == "reset")
        proxy.flow()

    async def _slow(self, fault: Fault) -> None:
        proxy = self._links[fault.target, fault.detail[0]]
        proxy.up.delay_seconds = proxy.down.delay_seconds = fault.number
        await asyncio.sleep(fault.seconds)
        proxy.up.delay_seconds = proxy.down.delay_seconds = 0.0

    async def _wire(self, fault: Fault) -> None:
        """Spoil a frame, or cut a connection within one, again and again."""
        server, spoil = fault.detail
        proxy = self._links[fault.target, server]
        until = monotonic() + fault.seconds
        while monotonic() < until:
            if spoil in ("cut", "reset"):
                proxy.down.cut(byte=int(fault.number * 300), reset=spoil == "reset")
                await asyncio.sleep(STORM_SECONDS)
                proxy.cut()  # connections that have passed this byte
            else:
                direction = proxy.up if spoil == "drop" else proxy.down
                direction.on(self._rule(spoil, fault.number))
                await asyncio.sleep(STORM_SECONDS)
        proxy.up.off()
        proxy.down.off()

    def _rule(self, spoil: str, number: float) -> Rule:
        if spoil == "garbage":
            return corrupt(int(number * GARBLED_BYTES))
        return duplicate if spoil == "duplicate" else drop


async def _start_server(server: Node) -> None:
    """Start *server*; again if it ends while it starts, as a proxy does that finds no broker."""
    deadline = monotonic() + RETRY_SECONDS
    while True:
        try:
            return await asyncio.to_thread(server.start)
        except StartError:
            if monotonic() > deadline:
                raise


def servers_of(cluster: Cluster) -> list[Node]:
    """Return the servers that faults hit."""
    slaves = [slave for broker in cluster.brokers for slave in broker.slaves]
    return [*cluster.namesrvs, *cluster.brokers, *slaves, *cluster.proxies]


def run_topology(
    name: str, version: str | None, backend: str, seeds: Iterable[int], minutes: float
) -> list[int]:
    """Run seeds on one cluster, until the time is over; return those that violate a rule."""
    topology, failed, began = TOPOLOGIES[name], [], monotonic()
    chosen = version or topology.versions[-1]
    with topology.start(chosen, backend) as cluster:
        servers = [node.name for node in servers_of(cluster)]
        for seed in seeds:
            folder = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-{seed}-"))
            plan = draw_cluster_plan(seed, topology, chosen, servers)
            print("\n".join(plan.lines()), flush=True)
            run = ClusterRun(cluster, topology, plan, folder)
            asyncio.run(run.run())
            print(run.summary, flush=True)
            if run.violations:
                failed.append(seed)
                print(f"  history: {folder}")
                for violation in run.violations[:MOST_SHOWN]:
                    print("  VIOLATION", violation[:MOST_CHARACTERS], flush=True)
            else:
                shutil.rmtree(folder)
            if monotonic() - began > minutes * 60:
                break
    return failed
