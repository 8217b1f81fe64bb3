"""Simulation: one run of a plan, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from rocketmq_aio.embedded import EmbeddedBroker, EmbeddedCluster
from rocketmq_aio.embedded.faults import Fault as RequestFault
from rocketmq_aio.embedded.name_server import EmbeddedNameServer
from rocketmq_aio.embedded.server import EmbeddedServer
from rocketmq_aio.protocol.requests.groups import MessageRequestMode
from tests.chaos import virtual
from tests.chaos.loop import SimulatedLoop, StuckError, current_process
from tests.chaos.member import Member
from tests.chaos.network import Network
from tests.chaos.plan import Fault, Plan
from tests.chaos.record import Record
from tests.chaos.workload import stack
from tests.history import RULES, check, events
from tests.history.events import Drained, LogEntry
from tests.history.recording import stored_log

DRAIN_SECONDS: Final = 600.0
SETTLE_SECONDS: Final = 2.0  # between the end of the faults and that of the producers
STOP_SECONDS: Final = 90.0
CHECKS: Final = 5  # of transactions that are left


@dataclass(frozen=True)
class Result:
    """Result of a run.

    :ivar history: one line per event
    :ivar seconds: virtual ones
    """

    plan: Plan
    history: tuple[str, ...]
    violations: tuple[str, ...]
    seconds: float


def simulate(plan: Plan) -> Result:
    """Run *plan*; the process cannot do anything else afterwards."""
    loop = SimulatedLoop(plan.seed)
    Network(loop)
    record = Record(loop)
    virtual.begin(loop, plan.seed)
    gc.disable()  # so that finalizers do not run in between
    asyncio.set_event_loop(loop)
    logger = logging.getLogger("rocketmq_aio")
    logger.setLevel(logging.WARNING)
    logger.addHandler(record)
    simulation = Simulation(loop, record, plan)
    try:
        loop.run_until_complete(simulation.run())
    except StuckError as error:
        record.violation(str(error))
    except Exception as error:  # noqa: BLE001 - a violation, whatever it is
        record.failure("the simulation raised", error)
    else:
        simulation.check_leftovers()
        for found in check(record.history, *rules_for(plan)):
            record.violation(f"{found.rule}: {found.what}; {list(found.proof)}")
    for line in plan.lines():
        record.add(line)
    return Result(plan, tuple(record.lines), tuple(record.violations), record.now())


def rules_for(plan: Plan) -> list[str]:
    """Return the rules that a run has to keep."""
    if any(f.kind == "clock" and f.target.startswith("recall") for f in plan.faults):
        # The producer computes the time of the delivery.
        return [rule for rule in RULES if rule not in ("I36", "I37")]
    return [*RULES]


class Simulation:
    """The parts of a run."""

    def __init__(self, loop: SimulatedLoop, record: Record, plan: Plan) -> None:
        self._loop = loop
        self._record = record
        self._plan = plan
        topics = {client.topic: plan.queues for client in plan.clients}
        self._cluster = EmbeddedCluster(
            plan.brokers, version=plan.version, replicas=plan.replicas, topics=topics
        )
        self._cluster.name_server.name = "namesrv-0"
        more = [
            EmbeddedNameServer(
                version=plan.version,
                clock=self._cluster.clock,
                faults=self._cluster.faults,
                thread=self._cluster.thread,
            )
            for _ in range(plan.namesrvs - 1)
        ]
        for number, server in enumerate(more, 1):
            server.name = f"namesrv-{number}"
            for broker in self._cluster.brokers:
                server.register(broker)
        self._namesrvs = [self._cluster.name_server, *more]
        self._members: dict[str, Member] = {}
        self._groups = {c.group: c.topic for c in plan.clients if c.consumes}
        self._scopes = {c.scope: c.topic for c in plan.clients if c.consumes}

    @property
    def _network(self) -> Network:
        network: Network = self._loop.network
        return network

    async def run(self) -> None:
        plan, record, cluster = self._plan, self._record, self._cluster
        servers = self._loop.process("servers")
        current_process.set(servers)
        for group in self._groups:
            cluster.create_group(group)
        self._prepare_brokers()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(cluster)
            for server in self._namesrvs[1:]:
                await stack.enter_async_context(server)
            namesrv = ";".join(server.address for server in self._namesrvs)
            self._members = {
                client.name: Member(self._loop, record, client, plan.seed, namesrv)
                for client in plan.clients
            }
            started = self._loop.time()
            async with asyncio.TaskGroup() as tasks:
                for client in plan.clients:
                    tasks.create_task(self._start(client.at, self._members[client.name]))
                for fault in plan.faults:
                    tasks.create_task(self._do(fault))
                await asyncio.sleep(plan.seconds)
            record.add("healed after", self._loop.time() - started)
            await asyncio.sleep(SETTLE_SECONDS)
            for member in self._members.values():
                member.quiet = True
                if not member.runs:
                    member.start()
            await asyncio.sleep(4 * SETTLE_SECONDS)
            await self._end_transactions()
            await self._stop(lambda member: not member.plan.consumes)
            await self._drain()
            await self._stop(lambda member: member.plan.consumes)
            for entry in self._log():
                record.event(entry)
        await asyncio.sleep(1.0)

    def _prepare_brokers(self) -> None:
        for broker in self._cluster.brokers:
            broker.state.update_settings({"recallMessageEnable": "true"})
            for client in self._plan.clients:
                if client.option("pops", 0.0):
                    broker.assignments.modes[client.topic, client.group] = MessageRequestMode.POP

    # --- phases ---------------------------------------------------------------------------------

    async def _start(self, at: float, member: Member) -> None:
        await asyncio.sleep(at)
        if not member.runs and not member.process.dead:
            member.start()

    async def _stop(self, which: Callable[[Member], bool]) -> None:
        chosen = [member for member in self._members.values() if which(member)]
        async with asyncio.TaskGroup() as tasks:
            for member in chosen:
                tasks.create_task(member.stop(STOP_SECONDS))

    async def _end_transactions(self) -> None:
        """Let brokers check the transactions that they know no end of."""
        for _ in range(CHECKS):
            for broker in self._cluster.brokers:
                if broker.transactions.open:
                    await broker.check_transactions()
            if any(broker.transactions.open for broker in self._cluster.brokers):
                await asyncio.sleep(4 * SETTLE_SECONDS)

    async def _drain(self) -> None:
        """Wait until every group has got every message that was stored for certain."""
        record = self._record
        deadline = self._loop.time() + DRAIN_SECONDS
        while self._loop.time() < deadline:
            drained = all(record.is_drained(*each) for each in self._scopes.items())
            if drained and not self._has_unsettled():
                break
            await asyncio.sleep(1.0)
        await asyncio.sleep(SETTLE_SECONDS)
        record.event(Drained(at=self._loop.time()))  # the rules say what is missing

    def _has_unsettled(self) -> bool:
        """Whether a group has yet to consume a copy, such as one that waits for its retry."""
        for broker in self._cluster.brokers:
            if len(broker.delays.waiting) or len(broker.timers.waiting):
                return True
        history = self._record.history
        history.log, history.drained = self._log(), True
        try:
            return bool(check(history, "I9"))
        finally:
            history.log, history.drained = [], False

    def _log(self) -> list[LogEntry]:
        """Return what the brokers have stored."""
        brokers = self._cluster.brokers
        topics = sorted({name for broker in brokers for name in broker.topics})
        return [entry for topic in topics for entry in stored_log(topic, *brokers)]

    def _note_fault(self, kind: str, target: str, started: float) -> None:
        """Record a fault that rules ask for, after its end."""
        ended = self._loop.time()
        self._record.event(events.Fault(started=started, healed=ended, kind=kind, target=target))

    def check_leftovers(self) -> None:
        """Report tasks that are left and errors that nobody has read."""
        record, loop = self._record, self._loop
        alive = [process for process in loop.processes if not process.dead]
        for process in alive:
            for task in process.tasks:
                if not task.done():
                    record.violation(f"{process}: {task.get_name()} is left: {stack(task)}")
            process.tasks.clear()
        for end in loop.network.ends:
            if end.process in alive:
                record.violation(f"{end.process}: a connection is left")
        gc.collect()
        for report in loop.reports:
            record.violation(report)

    # --- faults ---------------------------------------------------------------------------------

    async def _do(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        self._record.add("fault", fault.kind, fault.target, *fault.detail, f"{fault.seconds:.3f}")
        await getattr(self, f"_{fault.kind}")(fault)
        self._record.add("end of", fault.kind, fault.target, *fault.detail)

    def _server(self, name: str) -> EmbeddedServer:
        servers = (*self._cluster.brokers, *self._namesrvs)
        return next(each for each in servers if each.name == name)

    def _broker(self, name: str) -> EmbeddedBroker:
        return next(each for each in self._cluster.brokers if each.name == name)

    async def _kill_server(self, fault: Fault) -> None:
        server, started = self._server(fault.target), self._loop.time()
        server.kill()
        await asyncio.sleep(fault.seconds)
        await server.start()
        if isinstance(server, EmbeddedBroker):
            for kind in ("locks", "routes"):  # locks are forgotten, routes are without the broker
                self._note_fault(kind, server.name, started)

    async def _freeze_server(self, fault: Fault) -> None:
        server = self._server(fault.target)
        server.freeze()
        await asyncio.sleep(fault.seconds)
        server.resume()

    async def _forget_brokers(self, fault: Fault) -> None:
        server, started = self._server(fault.target), self._loop.time()
        assert isinstance(server, EmbeddedNameServer)
        server.forget_brokers(fault.seconds)
        await asyncio.sleep(fault.seconds)
        self._note_fault("routes", server.name, started)

    async def _crash(self, fault: Fault) -> None:
        member = self._members[fault.target]
        if member.runs:
            self._note_fault("kill", member.name, self._loop.time())
            member.crash()
            await asyncio.sleep(fault.seconds)
            member.start()

    async def _freeze(self, fault: Fault) -> None:
        member = self._members[fault.target]
        process, name, started = member.process, member.name, self._loop.time()
        self._loop.freeze(process)
        await asyncio.sleep(fault.seconds)
        self._loop.unfreeze(process)
        self._note_fault("stall", name, started)

    async def _restart(self, fault: Fault) -> None:
        member = self._members[fault.target]
        if member.runs and not member.process.frozen:
            await member.stop(STOP_SECONDS)
            await asyncio.sleep(fault.seconds)
            if not member.runs:
                member.start()

    async def _partition(self, fault: Fault) -> None:
        server, directions = fault.detail
        port = self._server(server).port
        out, into = directions in ("both", "out"), directions in ("both", "in")
        self._network.block(fault.target, port, out=out, into=into)
        await asyncio.sleep(fault.seconds)
        self._network.heal(fault.target, port)

    async def _slow(self, fault: Fault) -> None:
        port = self._server(fault.detail[0]).port
        self._network.condition(fault.target, port).slow_seconds = fault.seconds / 4
        await asyncio.sleep(fault.seconds)
        self._network.heal(fault.target, port)

    async def _reset(self, fault: Fault) -> None:
        for end in self._network.between(fault.target, self._server(fault.detail[0]).port):
            self._network.reset(end)

    async def _half_open(self, fault: Fault) -> None:
        """The server loses its connections without the client's knowledge, or the other way."""
        for end in self._network.between(fault.target, self._server(fault.detail[0]).port):
            lost = end if fault.detail[1] == "in" else end.peer
            error = ConnectionResetError("lost by a fault")
            self._loop.call_soon(lost.fail, error, context=lost.context)

    async def _requests(self, fault: Fault) -> None:
        spoil, requests, times = fault.detail
        where: dict[str, Any] = {"times": int(times) or None}
        if fault.target:
            where["broker"] = "namesrv-0" if requests == "route" else fault.target
        made = self._spoil(spoil, requests, fault.number, where)
        await asyncio.sleep(fault.seconds)
        made.remove()

    def _spoil(
        self, spoil: str, requests: Any, seconds: float, where: dict[str, Any]
    ) -> RequestFault:
        faults = self._cluster.faults
        if spoil == "lose":
            return faults.drop(requests, executed=False, **where)
        if spoil == "delay":
            return faults.delay(requests, seconds, **where)
        made: RequestFault = getattr(faults, spoil)(requests, **where)
        return made

    async def _disk_full(self, fault: Fault) -> None:
        broker = self._broker(fault.target)
        broker.disk_full = True
        await asyncio.sleep(fault.seconds)
        broker.disk_full = False

    async def _clock(self, fault: Fault) -> None:
        process = self._members[fault.target].process
        process.wall_ahead_ns += int(fault.number * 1e9)
        await asyncio.sleep(fault.seconds)
        with suppress(KeyError):
            process.wall_ahead_ns = 0
