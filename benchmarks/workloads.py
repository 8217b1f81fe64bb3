"""The workloads by name: what each subject is told to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

KIB: Final = 1024
Kind = Literal["send", "drain", "first", "idle", "import"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One row group of the table; *task* is the name that subjects know it by."""

    name: str
    title: str
    kind: Kind
    task: str
    in_flight: int = 1
    batch: int = 1
    body_bytes: int = KIB
    java: bool = True

    @property
    def topic(self) -> str:
        """One topic per kind of load; those with a backlog are filled once and only read."""
        return f"bench-backlog-{self.body_bytes}" if self.kind == "drain" else f"bench-{self.kind}"


ALL: Final = (
    Workload(
        name="consume-1k", title="consume a 1 KiB backlog with poll()", kind="drain", task="drain"
    ),
    Workload(name="iterate-1k", title="the same with async for", kind="drain", task="iterate"),
    Workload(
        name="consume-100b",
        title="consume a 100 B backlog with poll()",
        kind="drain",
        task="drain",
        body_bytes=100,
    ),
    Workload(name="produce-1", title="send, 1 in flight", kind="send", task="send"),
    Workload(name="produce-64", title="send, 64 in flight", kind="send", task="send", in_flight=64),
    Workload(
        name="produce-1024", title="send, 1 024 in flight", kind="send", task="send", in_flight=1024
    ),
    Workload(
        name="batch-32x8",
        title="batches of 32, 8 in flight",
        kind="send",
        task="send",
        in_flight=8,
        batch=32,
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
    Workload(name="import", title="import rocketmq_aio", kind="import", task="import", java=False),
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
