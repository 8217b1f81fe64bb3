"""Plan of a run: topology, clients and faults, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

CONSUMERS: Final = (
    *("push", "orderly", "broadcast", "reply", "lite", "pull", "pop", "broker_rebalance"),
)
PRODUCERS: Final = (
    *("plain", "keyed", "auto_batch", "batch", "transaction", "delayed", "oneway", "compressed"),
    *("recall", "request"),
)
NEED_5: Final = ("pop", "broker_rebalance", "recall")
TOPICS: Final = ("alpha", "beta")

REQUESTS: Final = (
    *("send", "send_back", "end_transaction", "pull", "pop", "ack", "change_invisible", "commit"),
    *("query_offset", "heartbeat", "lock", "unlock", "members", "route"),
)
SPOILS: Final = (
    *("drop", "lose", "close", "reset", "refuse", "delay", "truncate", "duplicate", "garbage"),
    "wrong_opaque",
)


@dataclass(frozen=True)
class Client:
    """A process with one client.

    :ivar options: settings that differ from the defaults of the workload
    """

    name: str
    kind: str
    group: str
    topic: str
    at: float
    options: tuple[tuple[str, float], ...] = ()

    def option(self, name: str, default: float) -> float:
        return dict(self.options).get(name, default)

    @property
    def consumes(self) -> bool:
        return self.kind in CONSUMERS

    @property
    def subscribes(self) -> bool:
        return self.consumes and self.kind != "pull"

    @property
    def scope(self) -> str:
        """Whose progress the client shares: that of its group, or its own."""
        return f"{self.group}@{self.name}" if self.kind == "broadcast" else self.group


@dataclass(frozen=True)
class Fault:
    """Something that happens *at* a time, and ends after *seconds*.

    :ivar target: a client, a broker or a name server
    """

    at: float
    seconds: float
    kind: str
    target: str = ""
    detail: tuple[str, ...] = ()
    number: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Everything that a run does; times are seconds after its start."""

    seed: int
    version: str
    brokers: int
    namesrvs: int
    replicas: int
    queues: int
    seconds: float
    clients: tuple[Client, ...]
    faults: tuple[Fault, ...] = field(default=())

    def without_client(self, client: Client) -> Plan:
        """Return the plan without *client* and the faults that hit it."""
        kept = tuple(f for f in self.faults if f.target != client.name)
        clients = tuple(each for each in self.clients if each != client)
        return replace(self, clients=clients, faults=kept)

    def lines(self) -> list[str]:
        """Return a description."""
        head = (
            f"seed {self.seed}: {self.version}, {self.brokers} broker(s), {self.namesrvs} "
            f"name server(s), {self.replicas} replica(s), {self.queues} queue(s) per topic, "
            f"{self.seconds:.1f} s"
        )
        clients = [
            f"  {c.at:6.2f}  {c.name}: {c.kind} {c.group} {c.topic} {dict(c.options) or ''}"
            for c in self.clients
        ]
        faults = [
            f"  {f.at:6.2f}  {f.kind} {f.target} {' '.join(f.detail)} for {f.seconds:.2f} s"
            + (f" ({f.number:.3g})" if f.number else "")
            for f in self.faults
        ]
        return [head, *clients, *faults]


def draw_plan(seed: int) -> Plan:
    """Return the plan of *seed*."""
    draw = random.Random(f"plan {seed}")
    version = draw.choice(("4.9.7", "5.5.0"))
    brokers = draw.choice((1, 1, 2, 3))
    namesrvs = draw.choice((1, 1, 2, 3))
    replicas = draw.choice((0, 0, 0, 1))
    queues = draw.randint(1, 4)
    seconds = draw.uniform(*draw.choices(((2, 8), (5, 20), (20, 60)), (12, 6, 1))[0])
    kinds = [k for k in (*CONSUMERS, *PRODUCERS) if version != "4.9.7" or k not in NEED_5]
    clients = draw_clients(draw, kinds, seconds)
    plan = Plan(seed, version, brokers, namesrvs, replicas, queues, seconds, tuple(clients))
    count = draw.choice((0, 1, 1, 2, 2, 3, 4, 5, 6, 8, 10))
    faults = sorted((_draw_fault(draw, plan) for _ in range(count)), key=lambda f: f.at)
    return replace(plan, faults=tuple(faults))


def draw_clients(
    draw: random.Random, kinds: Sequence[str], seconds: float, most_groups: int = 2
) -> list[Client]:
    """Return clients of these kinds that run for *seconds*."""
    clients = []
    topics = TOPICS[: draw.randint(1, 2)]
    consumers = [kind for kind in kinds if kind in CONSUMERS]
    producers = [kind for kind in kinds if kind in PRODUCERS]
    for number in range(draw.randint(1, most_groups)):
        kind, group, topic = draw.choice(consumers), f"group-{number}", draw.choice(topics)
        options = _draw_options(draw, kind)
        for member in range(draw.choice((1, 1, 2, 2, 3))):
            at = 0.0 if member == 0 or draw.random() < 0.5 else draw.uniform(0, seconds)
            clients.append(Client(f"{kind}-{number}-{member}", kind, group, topic, at, options))
    for number in range(draw.randint(1, 3)):
        kind, topic = draw.choice(producers), draw.choice(topics)
        tasks = draw.randint(1, 3)  # that send some dozen messages until the end of the faults
        pause = seconds * tasks / draw.choice((5, 15, 40))
        options = (("pause", round(pause, 3)), ("tasks", float(tasks)))
        at = draw.uniform(0, 2)
        clients.append(Client(f"{kind}-{number}", kind, f"producers-{number}", topic, at, options))
    return clients


def _draw_options(draw: random.Random, kind: str) -> tuple[tuple[str, float], ...]:
    options = {
        "fails": draw.choice((0.0, 0.0, 0.05, 0.2)),
        "work": draw.choice((0.0, 0.001, 0.02, 0.2)),
        "commit_interval": draw.choice((0.2, 1.0, 5.0)),
        "rebalance_interval": draw.choice((2.0, 20.0)),
        "batch": float(draw.choice((1, 4, 32))),
    }
    if kind == "lite":
        options["manual"] = draw.choice((0.0, 1.0))
        options["jumps"] = draw.choice((0.0, 0.1, 0.5))
    if kind == "broker_rebalance":
        options["pops"] = draw.choice((0.0, 1.0))
    return tuple(options.items())


def _draw_fault(draw: random.Random, plan: Plan) -> Fault:
    kind = draw.choice(list(_FAULTS))
    at = draw.uniform(0.5, plan.seconds)
    seconds = min(draw.choice((0.05, 0.5, 2, 5, 15, 30)) * draw.random(), plan.seconds - at)
    return _FAULTS[kind](draw, plan, Fault(at, seconds, kind))


def _of_broker(draw: random.Random, plan: Plan, fault: Fault) -> Fault:
    return replace(fault, target=f"broker-{'abc'[draw.randrange(plan.brokers)]}")


def _of_server(draw: random.Random, plan: Plan, fault: Fault) -> Fault:
    if draw.random() < 0.25:
        return _of_namesrv(draw, plan, fault)
    return _of_broker(draw, plan, fault)


def _of_client(draw: random.Random, plan: Plan, fault: Fault) -> Fault:
    return replace(fault, target=draw.choice(plan.clients).name)


def _of_namesrv(draw: random.Random, plan: Plan, fault: Fault) -> Fault:
    return replace(fault, target=f"namesrv-{draw.randrange(plan.namesrvs)}")


def _of_link(draw: random.Random, plan: Plan, fault: Fault) -> Fault:
    fault = _of_client(draw, plan, fault)
    server = _of_server(draw, plan, fault).target
    return replace(fault, detail=(server, draw.choice(("both", "out", "in"))))


def _of_requests(draw: random.Random, plan: Plan, fault: Fault) -> Fault:
    spoil = draw.choice(SPOILS)
    times = draw.choice((1, 1, 1, 2, 5, 0))  # 0: all
    target = _of_broker(draw, plan, fault).target if draw.random() < 0.5 else ""
    seconds = draw.choice((0.1, 1.0, 2.9, 3.5, 10.0))
    return replace(
        fault, target=target, detail=(spoil, draw.choice(REQUESTS), str(times)), number=seconds
    )


def _of_clock(draw: random.Random, plan: Plan, fault: Fault) -> Fault:
    ahead = draw.choice((-3600.0, -5.0, -0.5, 0.5, 5.0, 3600.0))
    return replace(_of_client(draw, plan, fault), number=ahead)


_FAULTS: Final[dict[str, Callable[[random.Random, Plan, Fault], Fault]]] = {
    "kill_server": _of_server,
    "freeze_server": _of_server,
    "forget_brokers": _of_namesrv,
    "crash": _of_client,
    "freeze": _of_client,
    "restart": _of_client,
    "partition": _of_link,
    "slow": _of_link,
    "reset": _of_link,
    "half_open": _of_link,
    "requests": _of_requests,
    "disk_full": _of_broker,
    "clock": _of_clock,
}
