"""Topologies of real brokers, and plans of runs on them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rocketmq_aio.testing import Cluster
from tests.chaos.plan import CONSUMERS, NEED_5, PRODUCERS, Client, Fault, Plan, draw_clients

FAULT_SECONDS: Final = 40.0  # of a run, before its faults are healed
PAUSES: Final = (0.05, 0.2, 1.0)  # seconds between two sends of a client
MOST_FAULTS: Final = 5
MOST_GROUPS: Final = 3
PROPERTIES: Final = {
    # Undecided transactions are checked soon and often, and retries come soon.
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "2000",
    "transactionCheckMax": "1000",
    "recallMessageEnable": "true",
    "messageDelayLevel": " ".join(["1s"] * 18),
}


@dataclass(frozen=True)
class Topology:
    """Servers, and what clients can do with them.

    :ivar options: of `Cluster.start`
    :ivar versions: of RocketMQ that have it
    :ivar replicated: a fault of a server may make another one the master, which knows less commits
    """

    options: dict[str, Any] = field(default_factory=dict)
    versions: tuple[str, ...] = ("4.9.7", "5.5.0")
    kinds: tuple[str, ...] = (*CONSUMERS, *PRODUCERS)
    replicated: bool = False

    def start(self, version: str, backend: str) -> Cluster:
        properties = {**PROPERTIES, **self.options.get("broker_properties", {})}
        options = {**self.options, "broker_properties": properties}
        return Cluster.start(version, backend=backend, **options)


TOPOLOGIES: Final = {
    "one": Topology(),
    "two": Topology({"brokers": 2, "namesrvs": 2}),
    "slaves": Topology({"slaves": 1}, replicated=True),
    "controller": Topology(
        {
            "slaves": 2,
            "controller": True,
            "sync_replication": True,
            "broker_properties": {"haMaxTimeSlaveNotCatchup": "120000"},
        },
        versions=("5.5.0",),
        replicated=True,
    ),
    # Proxies serve no pops, and topics of the type NORMAL take no keys, delays or transactions.
    "proxies": Topology(
        {"proxies": 2},
        versions=("5.5.0",),
        kinds=("push", "orderly", "lite", "plain", "auto_batch", "batch", "oneway"),
    ),
}


def draw_cluster_plan(
    seed: int,
    topology: Topology,
    version: str,
    servers: Sequence[str],
    seconds: float = FAULT_SECONDS,
) -> Plan:
    """Return the plan of *seed*, with faults for *seconds*; topics and groups are named by it."""
    draw = random.Random(f"cluster {seed}")
    kinds = [k for k in topology.kinds if version.startswith("5.") or k not in NEED_5]
    clients = [
        replace(
            client,
            group=f"{client.group}-{seed}",
            topic=f"{client.topic}-{seed}",
            options=_options(draw, client),
        )
        for client in draw_clients(draw, kinds, seconds, MOST_GROUPS)
    ]
    brokers, slaves = topology.options.get("brokers", 1), topology.options.get("slaves", 0)
    queues = draw.randint(1, 4)
    namesrvs = topology.options.get("namesrvs", 1)
    plan = Plan(seed, version, brokers, namesrvs, slaves, queues, seconds, tuple(clients))
    count = draw.randint(1, MOST_FAULTS)
    faults = [_draw_fault(draw, plan, servers) for _ in range(count)]
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _options(draw: random.Random, client: Client) -> tuple[tuple[str, float], ...]:
    """Return settings with which the slowest consumer reads faster than the producers send."""
    if client.consumes:
        slower = {"work": client.option("work", 0.0) / 20}
        if client.kind == "orderly":  # a failed message holds up its queue for half a second
            slower["fails"] = client.option("fails", 0.0) / 10
        return (*client.options, *slower.items())
    tasks = client.option("tasks", 1)
    return (("pause", draw.choice(PAUSES) * tasks), ("tasks", tasks))


def _draw_fault(draw: random.Random, plan: Plan, servers: Sequence[str]) -> Fault:
    kind = draw.choice(list(_FAULTS))
    at = draw.uniform(2.0, plan.seconds - 5)
    seconds = min(draw.choice((0.5, 2, 5, 15, 35)) * draw.random(), plan.seconds - at)
    return _FAULTS[kind](draw, plan, servers, Fault(at, seconds, kind))


Draw = Callable[[random.Random, Plan, Sequence[str], Fault], Fault]


def _of_server(draw: random.Random, _plan: Plan, servers: Sequence[str], fault: Fault) -> Fault:
    return replace(fault, target=draw.choice(servers))


def _of_client(draw: random.Random, plan: Plan, _servers: Sequence[str], fault: Fault) -> Fault:
    return replace(fault, target=draw.choice(plan.clients).name)


def _of_link(*details: tuple[str, ...]) -> Draw:
    def draw_link(draw: random.Random, plan: Plan, servers: Sequence[str], fault: Fault) -> Fault:
        fault = _of_client(draw, plan, servers, fault)
        chosen = [draw.choice(detail) for detail in details]
        return replace(fault, detail=(draw.choice(servers), *chosen), number=draw.uniform(0, 1))

    return draw_link


_FAULTS: Final[dict[str, Draw]] = {
    "kill_server": _of_server,
    "restart_server": _of_server,
    "freeze_server": _of_server,
    "crash": _of_client,
    "freeze": _of_client,
    "restart": _of_client,
    "storm": _of_client,
    "partition": _of_link(("both", "up", "down"), ("flow", "cut", "reset")),
    "slow": _of_link(),
    "wire": _of_link(("drop", "lose", "duplicate", "garbage", "cut", "reset")),
}
