"""Workloads by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

KIB: Final = 1024
Kind = Literal["send", "drain", "latency", "first", "idle", "import"]
PULL_BATCH: Final = 32  # the default of the Python client, and the default maximum of brokers
TUNED_PULL_BATCH: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One row group of the table; *task* is its name in the arguments of subjects.

    *pull_batch* is how many messages a pull may bring, at the client and at the broker;
    *handler_batch* how many a push handler is given at once; *rate* how many a second are sent
    where that is fixed.  *own_topics*: each sample gets a topic of its own, which *number* names.
    """

    name: str
    title: str
    kind: Kind
    task: str
    in_flight: int = 1
    batch: int = 1
    body_bytes: int = KIB
    pull_batch: int = PULL_BATCH
    handler_batch: int = 1
    rate: int = 0
    java: bool = True
    bare: bool = False
    own_topics: bool = False
    number: int = 0

    @property
    def topic(self) -> str:
        """One topic per kind of load, so that backlogs are filled once."""
        if self.kind == "drain":
            return f"bench-backlog-{self.body_bytes}"
        return f"bench-{self.task}-{self.number}" if self.own_topics else f"bench-{self.kind}"


# Transactions are last: a 5.5.0 broker keeps a core busy after the first one.
ALL: Final = (
    Workload(
        name="consume-1k",
        title="consume a 1 KiB backlog with poll()",
        kind="drain",
        task="drain",
        bare=True,
    ),
    Workload(name="iterate-1k", title="the same with async for", kind="drain", task="iterate"),
    Workload(
        name="consume-100b",
        title="consume a 100 B backlog with poll()",
        kind="drain",
        task="drain",
        body_bytes=100,
        bare=True,
    ),
    Workload(
        name="push-1k",
        title="a 1 KiB backlog through a push handler",
        kind="drain",
        task="push",
        bare=True,
    ),
    Workload(
        name="push-read-1k",
        title="the same, the handler reads tags and properties",
        kind="drain",
        task="push-read",
        bare=True,
    ),
    Workload(
        name="push-tuned-1k",
        title="push, broker and clients set to pulls of 1 024",
        kind="drain",
        task="push",
        pull_batch=TUNED_PULL_BATCH,
        bare=True,
    ),
    Workload(
        name="push-lists-1k",
        title="push, pulls of 1 024 and handlers given lists of up to 1 024",
        kind="drain",
        task="push-lists",
        pull_batch=TUNED_PULL_BATCH,
        handler_batch=TUNED_PULL_BATCH,
    ),
    Workload(
        name="latency-1000",
        title="send to push handler at 1 000 messages a second",
        kind="latency",
        task="latency",
        rate=1000,
    ),
    Workload(name="produce-1", title="send, 1 in flight", kind="send", task="send", bare=True),
    Workload(
        name="produce-64",
        title="send, 64 in flight",
        kind="send",
        task="send",
        in_flight=64,
        bare=True,
    ),
    Workload(
        name="produce-1024",
        title="send, 1 024 in flight",
        kind="send",
        task="send",
        in_flight=1024,
        bare=True,
    ),
    Workload(
        name="produce-64-batched",
        title="send, 64 in flight, batched by the client",
        kind="send",
        task="send-gathered",
        in_flight=64,
        java=False,
    ),
    Workload(
        name="produce-1024-100b",
        title="send of 100 B, 1 024 in flight",
        kind="send",
        task="send",
        in_flight=1024,
        body_bytes=100,
        bare=True,
    ),
    Workload(
        name="produce-1024-100b-batched",
        title="the same, batched by the client",
        kind="send",
        task="send-gathered",
        in_flight=1024,
        body_bytes=100,
        java=False,
    ),
    Workload(
        name="batch-32x8",
        title="batches of 32, 8 in flight",
        kind="send",
        task="send",
        in_flight=8,
        batch=32,
        bare=True,
    ),
    Workload(
        name="ordered-64",
        title="send in order, 64 keys with one message in flight each",
        kind="send",
        task="send-ordered",
        in_flight=64,
    ),
    Workload(
        name="ordered-64-together",
        title="the same, batched by the client",
        kind="send",
        task="send-ordered-together",
        in_flight=64,
    ),
    Workload(
        name="text-64",
        title="send of 16 KiB of words, compressed by default, 64 in flight",
        kind="send",
        task="send-text",
        in_flight=64,
        body_bytes=16 * KIB,
    ),
    Workload(
        name="request-64",
        title="request and reply, both in this process, 64 in flight",
        kind="send",
        task="request",
        in_flight=64,
        own_topics=True,
    ),
    Workload(
        name="first-send",
        title="process start to first message sent",
        kind="first",
        task="first-send",
    ),
    Workload(
        name="first-receive",
        title="process start to first message received",
        kind="first",
        task="first-receive",
    ),
    Workload(name="idle", title="idle consumer of 16 queues", kind="idle", task="idle"),
    Workload(
        name="import", title="import the usual classes", kind="import", task="import", java=False
    ),
    Workload(
        name="transaction-64",
        title="transactions, 64 in flight",
        kind="send",
        task="transaction",
        in_flight=64,
    ),
)


def select(names: str) -> list[Workload]:
    """Return the workloads of a comma-separated list, all of them for "all".

    :raises ValueError: a name is unknown; the message lists the known ones
    """
    if names == "all":
        return list(ALL)
    known = {workload.name: workload for workload in ALL}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"unknown workload {', '.join(unknown)}; known: {', '.join(known)}")
    return [known[name] for name in wanted]
