"""Measures how soon clients follow a new master; see ``--help``.

Times begin when the name server names the new master, and end with the first acknowledged send,
and with the first delivery to each kind of consumer of a message that was sent after the kill; for
pops also with the first delivery of any message.
"""

from __future__ import annotations

import argparse
import asyncio
from statistics import median
from time import monotonic

from rocketmq_aio.testing import Cluster, ControlledBroker, probe
from tests.topologies.controlled import Load, create_topic, in_sync_broker, rejoin, start_controlled
from tests.unit.remoting.until import until

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.02


async def named_at(cluster: Cluster, topic: str, former: str) -> float:
    """Return the time at which the name server names another master than *former*."""
    namesrv = cluster.namesrvs[0].address
    end = monotonic() + WAIT_SECONDS
    while monotonic() < end:
        addresses = await asyncio.to_thread(probe.masters, namesrv, topic)
        if addresses and former not in addresses.values():
            return monotonic()
        await asyncio.sleep(POLL_SECONDS)
    raise TimeoutError(f"{former} is still the master")


async def measure_kill(cluster: Cluster, broker: ControlledBroker, load: Load) -> dict[str, float]:
    """Kill the master, wait for every kind of client, and start the replica again."""
    await load.progress()
    master = broker.find_master()
    before = load.sent
    received = load.received
    begin = {kind: len(each.at) for kind, each in received.items()}
    killed = monotonic()
    master.kill()
    named = await named_at(cluster, load.topic, master.address)
    await until(
        lambda: None not in [each.first_after(before, begin[k]) for k, each in received.items()],
        "a delivery to each kind of consumer",
        WAIT_SECONDS,
    )
    times = {"named after the kill": named - killed}
    times["acknowledged"] = min(at for at in load.acknowledged_at if at > named) - named
    for kind, each in received.items():
        first = each.first_after(before, begin[kind])
        assert first is not None
        times[kind] = each.at[first] - named
        if kind == "pop":  # brokers copy the offsets of pops late: the new master repeats messages
            repeated = [at for at in each.at[begin[kind] : first] if at > named]
            times["pop, repeated message"] = min([*repeated, each.at[first]]) - named
            print(f"{len(repeated)} messages were popped again")
    await asyncio.to_thread(rejoin, broker, broker.replicas.index(master))
    return times


async def measure(version: str, kills: int) -> None:
    with start_controlled(version, "jvm") as cluster:
        broker = in_sync_broker(cluster)
        load = Load(
            cluster.namesrv, create_topic(cluster, "sales"), create_topic(cluster, "ordered")
        )
        rows: list[dict[str, float]] = []
        async with load.running():
            for number in range(kills):
                rows.append(await measure_kill(cluster, broker, load))
                print(number + 1, " ".join(f"{k}: {v:.2f} s" for k, v in rows[-1].items()))
            await until(lambda: not load.missing(), "every confirmed message", WAIT_SECONDS)
    print(f"{len(load.acknowledged)} acknowledged, 0 lost, {len(load.failed)} failed sends")
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:22} median {median(values):5.2f} s, largest {max(values):5.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--version", default="5.5.0")
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.version, arguments.kills))


if __name__ == "__main__":
    main()
