"""StallRecovery: after a stall nothing outdated is delivered or committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

import pytest
import pytest_asyncio

from rocketmq_aio.consumer.offsets import commit_fence as recovery_module
from rocketmq_aio.consumer.offsets.commit_fence import (
    SHORT_STALL_SECONDS,
    STALL_SECONDS,
    StallRecovery,
)
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue
from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from tests.unit.remoting.until import until

AHEAD, LEVEL, BEHIND, NONE, AWAY = (MessageQueue("t", "broker-a", n) for n in range(5))
HERE = 10


class Store:
    """Offsets that other members committed."""

    def __init__(self) -> None:
        self.offsets = {AHEAD: HERE - 1, LEVEL: HERE, BEHIND: HERE + 1, NONE: None}
        self.forgotten: set[MessageQueue] = set()

    async def load(self) -> None: ...

    async def update(self, queue: MessageQueue, offset: int) -> None: ...

    async def persist(self, queues: Collection[MessageQueue]) -> None: ...

    async def remove(self, queue: MessageQueue) -> None:
        self.forgotten.add(queue)

    async def read(self, queue: MessageQueue) -> int | None:
        assert queue in self.forgotten, "its memory may be outdated"
        if queue == AWAY:
            raise NotConnectedError("broker-a", "it is away")
        return self.offsets[queue]


class RecoveryEnv:
    """A member with five queues, and a clock that a test moves."""

    def __init__(self, host: BackgroundTasks) -> None:
        self.now = 0.0
        self.table = {queue: DispatchQueue(queue) for queue in (AHEAD, LEVEL, BEHIND, NONE, AWAY)}
        self.left: dict[MessageQueue, bool] = {}
        for assigned in self.table.values():
            assigned.begin(HERE)
        self.store = Store()
        self.recovery = StallRecovery(
            self.store, self.table, host, revoke=self._revoke, clock=lambda: self.now
        )

    def committable(self) -> dict[MessageQueue, bool]:
        return {queue: self.recovery.may_commit(each) for queue, each in self.table.items()}

    async def _revoke(self, held: Collection[DispatchQueue]) -> None:
        assert list(held) == [each for each in self.table.values() if each.dropped]
        self.left = self.committable()


@pytest_asyncio.fixture
async def env() -> AsyncIterator[RecoveryEnv]:
    failures: list[BaseException] = []
    host = BackgroundTasks("stalls", on_failure=failures.append)
    await host.start()
    yield RecoveryEnv(host)
    await host.close()
    assert failures == []


async def test_looks_in_time_change_nothing(env: RecoveryEnv) -> None:
    for _ in range(3):
        env.now += SHORT_STALL_SECONDS
        env.recovery.check_stall()

    assert all(env.committable().values())
    assert not any(each.dropped for each in env.table.values())


async def test_a_short_stall_delays_commits_and_revokes_nothing(env: RecoveryEnv) -> None:
    env.now += STALL_SECONDS
    env.recovery.check_stall()

    assert not any(env.committable().values())
    assert not any(each.dropped for each in env.table.values())


async def test_after_a_stall_nothing_is_delivered_or_committed(env: RecoveryEnv) -> None:
    env.now += STALL_SECONDS + 1
    env.recovery.check_stall()

    assert all(each.dropped for each in env.table.values())
    assert not any(env.committable().values())


async def test_only_queues_above_the_commits_of_others_are_committed_on_revocation(
    env: RecoveryEnv,
) -> None:
    env.now += STALL_SECONDS + 1
    env.recovery.check_stall()
    await until(lambda: env.left, "the queues to be revoked")

    assert env.left == {AHEAD: True, LEVEL: True, BEHIND: False, NONE: True, AWAY: False}
    assert env.recovery.may_commit(DispatchQueue(BEHIND)), "a later assignment"


@pytest.mark.parametrize("moved", ["before", "after"])
async def test_offsets_reset_after_a_stall_are_committed(env: RecoveryEnv, moved: str) -> None:
    """An administrator may set a queue back that is still being revoked."""
    assigned = env.table[LEVEL]
    env.now += STALL_SECONDS + 1
    env.recovery.check_stall()
    if moved == "before":  # the committed offsets are read
        assigned.move(HERE - 5)
    await until(lambda: env.left, "the queues to be revoked")
    if moved == "after":
        assigned.move(HERE - 5)

    assert assigned.committable == HERE - 5
    assert env.recovery.may_commit(assigned)


async def test_a_store_that_hangs_after_a_stall_does_not_keep_the_queues(
    env: RecoveryEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped queues that stayed assigned would never be read again."""
    monkeypatch.setattr(recovery_module, "COMPARE_SECONDS", 0.01)
    monkeypatch.setattr(env.store, "read", lambda queue: asyncio.Event().wait())
    env.now += STALL_SECONDS + 1
    env.recovery.check_stall()
    await until(lambda: env.left, "the queues to be revoked")

    assert not any(env.left.values())


async def test_after_a_long_outage_the_queues_of_the_broker_are_revoked(env: RecoveryEnv) -> None:
    elsewhere = DispatchQueue(MessageQueue("t", "broker-b", 0))
    elsewhere.begin(HERE)
    env.table[elsewhere.queue] = elsewhere
    env.recovery.on_recovered(env.table[LEVEL])
    assert not env.table[LEVEL].dropped, "a short outage"
    env.table[LEVEL].pull_expired = True
    for _ in range(2):
        env.recovery.on_recovered(env.table[LEVEL])
    await until(lambda: env.left, "the queues to be revoked")

    assert [each.queue for each in env.table.values() if not each.dropped] == [elsewhere.queue]
    expected = {AHEAD: True, LEVEL: True, BEHIND: False, NONE: True, AWAY: False}
    assert env.left == expected | {elsewhere.queue: True}


async def test_a_stall_without_queues_changes_nothing(env: RecoveryEnv) -> None:
    env.table.clear()
    env.now += STALL_SECONDS + 1
    env.recovery.check_stall()

    assert env.left == {}


async def test_the_timer_looks_before_waiting_tasks_go_on(
    env: RecoveryEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_module, "CHECK_SECONDS", 0.001)
    env.now = 1.0
    env.recovery.start()
    env.now += STALL_SECONDS + 1
    await until(lambda: env.left, "the stall to be noticed")
    env.recovery.stop()

    assert all(each.dropped for each in env.table.values())
