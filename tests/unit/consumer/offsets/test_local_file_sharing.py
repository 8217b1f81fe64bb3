"""Local offset file: concurrent consumers, and cancelled calls."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest
from anyio import to_thread

from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.consumer.offsets.local_file import (
    Disk,
    LocalFileOffsetStore,
    OffsetFile,
    decode_offsets,
)
from rocketmq_aio.errors import CommitError, ConfigError
from tests.unit.consumer.failing_disks import HangingDisk
from tests.unit.consumer.offset_files import CLIENT, file_in, opened
from tests.unit.consumer.parts import commit, queue


def lowest_free_descriptor() -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


async def test_a_second_consumer_of_the_same_names_is_refused_until_the_first_is_closed(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        with pytest.raises(ConfigError, match="instance_name") as caught:
            async with opened(tmp_path):
                pass
        assert (caught.value.setting, caught.value.value) == ("client_id", CLIENT)
        await commit(store, {queue(0): 5})

    async with opened(tmp_path) as store:
        assert await store.read(queue(0)) == 5


async def test_a_copy_of_a_store_is_a_new_one_in_its_folder(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await commit(store, {queue(0): 5})
        given = LitePullConfig(offset_store=store)
        copies = [copy.deepcopy(given), pickle.loads(pickle.dumps(given))]

    for each in copies:
        twin = each.offset_store
        assert isinstance(twin, LocalFileOffsetStore)
        assert twin.path is None
        twin.bind(CLIENT, "billing")
        await twin.load()
        assert await twin.read(queue(0)) == 5
        await twin.close()


def test_a_refused_second_consumer_leaves_no_descriptor(tmp_path: Path) -> None:
    first, second = (OffsetFile(tmp_path, CLIENT, "billing", Disk()) for _ in range(2))
    first.open()
    before = lowest_free_descriptor()

    with pytest.raises(ConfigError):
        second.open()

    assert lowest_free_descriptor() == before
    first.close()


def test_a_forked_child_does_not_keep_the_file_locked(tmp_path: Path) -> None:
    first, second = (OffsetFile(tmp_path, CLIENT, "billing", Disk()) for _ in range(2))
    first.open()
    child_reads, may_end = os.pipe()
    parent_reads, started = os.pipe()
    child = os.fork()
    if not child:
        os.close(may_end)
        os.write(started, b"1")
        os.read(child_reads, 1)
        os._exit(0)
    try:
        os.read(parent_reads, 1)  # what runs in the child after a fork has run
        with pytest.raises(ConfigError):
            second.open()  # the child has not unlocked it either
        first.close()
        second.open()
    finally:
        for each in (may_end, child_reads, parent_reads, started):
            os.close(each)
        os.waitpid(child, 0)
        first.close()
        second.close()


async def test_another_group_or_client_has_its_own_file(tmp_path: Path) -> None:
    async with (
        opened(tmp_path) as one,
        opened(tmp_path, group="stock") as two,
        opened(tmp_path, client_id="10.0.0.2@DEFAULT") as three,
    ):
        await commit(one, {queue(0): 1})
        await commit(two, {queue(0): 2})
        await commit(three, {queue(0): 3})

    async with opened(tmp_path, group="stock") as two:
        assert await two.read(queue(0)) == 2


async def test_one_store_serves_one_consumer_at_a_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with pytest.raises(ConfigError, match="offset_store="):
            store.bind(CLIENT, "stock")
        await commit(store, {queue(0): 5})

    store.bind(CLIENT, "stock")
    await store.load()
    assert await store.read(queue(0)) is None
    await store.close()


async def test_loading_again_keeps_the_lock(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await commit(store, {queue(0): 5})
        await store.load()

        assert await store.read(queue(0)) == 5


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_save_cannot_undo_a_later_one(tmp_path: Path) -> None:
    disk = HangingDisk()
    async with opened(tmp_path, disk=disk) as store:
        disk.hang()
        first = asyncio.create_task(commit(store, {queue(0): 1}))
        await to_thread.run_sync(disk.reached.wait)
        await cancelled(first)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit, store, {queue(0): 2})
            await anyio.wait_all_tasks_blocked()
            disk.released.set()

    assert decode_offsets(file_in(tmp_path).read_bytes()) == {queue(0): 2}


@pytest.mark.parametrize("call", ["load", "persist", "close"])
async def test_a_scope_ends_a_call_while_the_disk_hangs(tmp_path: Path, call: str) -> None:
    disk = HangingDisk()
    store = LocalFileOffsetStore(tmp_path, disk=disk)
    store.bind(CLIENT, "billing")
    if call != "load":
        await store.load()
        await store.update(queue(0), 1)
    disk.hang()
    async with anyio.create_task_group() as tasks:
        if call == "close":
            tasks.start_soon(store.persist, [queue(0)])
            await to_thread.run_sync(disk.reached.wait)
        begin: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "load": store.load,
            "persist": partial(store.persist, [queue(0)]),
            "close": store.close,
        }
        tasks.start_soon(begin[call])
        await to_thread.run_sync(disk.reached.wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert not disk.released.is_set()
    disk.released.set()
    await store.close()
    async with opened(tmp_path):
        pass  # the lock was let go


async def test_without_a_new_thread_a_save_is_tried_again_and_the_file_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    store = LocalFileOffsetStore(tmp_path)
    store.bind(CLIENT, "billing")
    await store.load()
    with monkeypatch.context() as patched:
        patched.setattr(to_thread, "run_sync", no_thread)
        with pytest.raises(CommitError, match="new thread") as caught:
            await commit(store, {queue(0): 5})
    assert list(caught.value.lost) == [queue(0)]
    await store.persist([queue(0)])
    with monkeypatch.context() as patched:
        patched.setattr(to_thread, "run_sync", no_thread)
        await store.close()

    async with opened(tmp_path) as store:
        assert await store.read(queue(0)) == 5


async def test_close_waits_for_a_cancelled_save_before_it_unlocks(tmp_path: Path) -> None:
    disk = HangingDisk()
    async with opened(tmp_path, disk=disk) as store:
        disk.hang()
        saving = asyncio.create_task(commit(store, {queue(0): 1}))
        await to_thread.run_sync(disk.reached.wait)
        await cancelled(saving)
        closing = asyncio.create_task(store.close())
        await anyio.wait_all_tasks_blocked()
        assert not closing.done()
        with pytest.raises(ConfigError, match="instance_name"):
            async with opened(tmp_path):
                pass
        disk.released.set()
        await closing

    async with opened(tmp_path) as store:
        assert await store.read(queue(0)) == 1


async def test_closing_after_a_cancelled_load_unlocks_the_file(tmp_path: Path) -> None:
    disk = HangingDisk()
    disk.hang()
    store = LocalFileOffsetStore(tmp_path, disk=disk)
    store.bind(CLIENT, "billing")
    loading = asyncio.create_task(store.load())
    await to_thread.run_sync(disk.reached.wait)
    await cancelled(loading)
    closing = asyncio.create_task(store.close())
    await anyio.wait_all_tasks_blocked()
    disk.released.set()
    await closing

    async with opened(tmp_path):
        pass


async def test_a_load_whose_thread_starts_after_close_does_not_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Callable[[], object]] = []

    async def cancelled_before_it_began(
        work: Callable[..., object], *args: object, **_: object
    ) -> None:
        late.append(partial(work, *args))
        raise asyncio.CancelledError

    store = LocalFileOffsetStore(tmp_path)
    store.bind(CLIENT, "billing")
    with monkeypatch.context() as patched:
        patched.setattr(to_thread, "run_sync", cancelled_before_it_began)
        with pytest.raises(asyncio.CancelledError):
            await store.load()
    await store.close()

    await to_thread.run_sync(late[0])

    async with opened(tmp_path):
        pass
