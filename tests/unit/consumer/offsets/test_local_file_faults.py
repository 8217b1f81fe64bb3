"""Local offset file: power cuts, kills and full disks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]  # it has no stubs
import pytest

from rocketmq_aio.consumer.offsets import local_file as offset_file
from rocketmq_aio.consumer.offsets.local_file import (
    Disk,
    LocalFileOffsetStore,
    OffsetFile,
    decode_offsets,
)
from rocketmq_aio.errors import CommitError, ConfigError
from rocketmq_aio.model.values import MessageQueue
from tests.unit.consumer.failing_disks import FullDisk, MemoryDisk, PowerLostError
from tests.unit.consumer.offset_files import CLIENT, file_in, opened, put_file, save
from tests.unit.consumer.parts import commit, queue

CHILD_SECONDS: Final = 30


def table(state: int) -> dict[MessageQueue, int]:
    return {queue(n): state for n in range(3)}


def run_until_power_is_lost(base: Path, disk: MemoryDisk) -> tuple[int, bool]:
    """Save state 1, 2 and 3; return the last one saved, and whether power was lost."""
    saved = 0
    file = OffsetFile(base, CLIENT, "billing", disk)
    file.open()
    try:
        for state in (1, 2, 3):
            file.replace(table(state))
            saved = state
    except PowerLostError:
        return saved, True
    finally:
        file.close()
    return saved, False


def found_after(base: Path, disk: MemoryDisk) -> dict[MessageQueue, int]:
    file = OffsetFile(base, CLIENT, "billing", disk)
    found, corrupt = file.open()
    file.close()
    assert corrupt == []
    return found


def test_reads_and_writes_leave_no_descriptor_open(tmp_path: Path) -> None:
    disk, path, process = Disk(), tmp_path / "offsets.json", psutil.Process()
    before = process.num_fds()
    disk.write(path, b"{}")
    disk.sync_folder(tmp_path)
    assert disk.read(path) == b"{}"
    with pytest.raises(OSError, match="not a plain file"):
        disk.read(tmp_path)

    assert process.num_fds() == before


def test_the_whole_content_is_written_before_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    Disk().write(tmp_path / "offsets.json", b"12345")

    assert sizes == [5]


def test_after_a_power_cut_at_any_step_the_old_or_the_new_state_is_found(tmp_path: Path) -> None:
    cuts = steps = 0
    while True:
        disk = MemoryDisk(steps=steps)
        saved, lost = run_until_power_is_lost(tmp_path, disk)
        if not lost:
            break
        whole = [table(saved) if saved else {}, table(saved + 1)]
        for left_over in disk.after_power_loss():
            assert found_after(tmp_path, left_over) in whole
            cuts += 1
        steps += 1

    assert steps == 3 * 8 - 1  # eight steps a state, but the first has nothing to back up
    assert cuts > 100


def test_the_content_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    file = OffsetFile(tmp_path, CLIENT, "billing", Disk())
    file.open()
    file.replace(table(1))

    def fsync(descriptor: int) -> None:
        synced = os.fstat(descriptor)
        paths = [file.folder, *file.folder.iterdir()]
        done.extend(f"sync {p.name}" for p in paths if os.path.samestat(p.stat(), synced))

    def replace(source: Path, target: Path) -> None:
        done.append(f"{source.name} -> {target.name}")
        source.rename(target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    file.replace(table(2))
    file.close()

    assert done == [
        "sync offsets.json.tmp",
        "offsets.json -> offsets.json.bak",
        "offsets.json.tmp -> offsets.json",
        "sync billing",
    ]


WRITER: Final = """
import os, signal, sys
from pathlib import Path
from rocketmq_aio.consumer.offsets.local_file import Disk, OffsetFile
from rocketmq_aio.model.values import MessageQueue

class Mortal(Disk):
    left = -1

    def step(self):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def write(self, path, content):
        self.step()
        path.unlink(missing_ok=True)
        path.write_bytes(content[:50])
        self.step()
        super().write(path, content)

    def rename(self, source, target):
        self.step()
        super().rename(source, target)

    def sync_folder(self, folder):
        self.step()
        super().sync_folder(folder)
        self.step()

base, left = Path(sys.argv[1]), int(sys.argv[2])
disk = Mortal()
file = OffsetFile(base, "10.0.0.1@DEFAULT", "billing", disk)
file.open()
for state in range(1, 100_000):
    if state == 3:
        disk.left = left
    file.replace({MessageQueue("orders", "broker-a", n): state for n in range(3)})
    print(state, flush=True)
"""


def writer(base: Path, left: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(base), str(left)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def state_in(base: Path) -> int:
    async with opened(base) as store:
        found = {await store.read(queue(n)) for n in range(3)}
    [state] = found
    assert state is not None
    return state


@pytest.mark.parametrize("step", range(6))
async def test_a_kill_at_any_step_leaves_the_old_or_the_new_state(
    tmp_path: Path, step: int
) -> None:
    with writer(tmp_path, step) as child:
        printed, _ = child.communicate(timeout=CHILD_SECONDS)

    assert child.returncode == -signal.SIGKILL
    assert printed.split() == ["1", "2"]
    assert await state_in(tmp_path) == (2 if step < 4 else 3)


@pytest.mark.parametrize("states", [1, 8, 40])
async def test_a_kill_at_any_moment_loses_no_saved_offset(tmp_path: Path, states: int) -> None:
    with writer(tmp_path, -1) as child:
        assert child.stdout is not None
        for _ in range(states):
            child.stdout.readline()
        child.kill()
        saved = [str(states), *child.stdout.read().split()][-1]

    assert int(saved) <= await state_in(tmp_path) <= int(saved) + 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("step", FullDisk.STEPS)
async def test_a_disk_that_fails_loses_nothing_and_is_tried_again(
    tmp_path: Path, step: str, code: int
) -> None:
    await save(tmp_path, {queue(0): 5, queue(1): 6})
    disk = FullDisk()
    async with opened(tmp_path, disk=disk) as store:
        disk.failing, disk.code = step, code
        with pytest.raises(CommitError, match=os.strerror(code)) as caught:
            await commit(store, {queue(0): 50, queue(1): 6})
        assert list(caught.value.lost) == [queue(0)]
        assert await store.read(queue(0)) == 50

        await store.persist([queue(0)])

    assert decode_offsets(file_in(tmp_path).read_bytes()) == {queue(0): 50, queue(1): 6}


@pytest.mark.parametrize("step", FullDisk.STEPS)
async def test_a_failure_that_is_not_repaired_leaves_a_whole_state(
    tmp_path: Path, step: str
) -> None:
    await save(tmp_path, {queue(0): 5, queue(1): 5})
    disk = FullDisk()
    async with opened(tmp_path, disk=disk) as store:
        disk.failing = step
        with pytest.raises(CommitError):
            await commit(store, {queue(0): 6, queue(1): 6})

    async with opened(tmp_path) as store:
        found = [await store.read(queue(0)), await store.read(queue(1))]
    assert found == ([6, 6] if step == "sync folder" else [5, 5])


async def test_a_folder_that_disappears_is_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        file_in(tmp_path).parent.rename(tmp_path / "gone")

        with pytest.raises(CommitError, match="No such file"):
            await commit(store, {queue(0): 5})


async def test_a_table_too_large_to_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_file, "MAX_FILE_BYTES", 200)
    async with opened(tmp_path) as store:
        await commit(store, {queue(0): 5})
        with pytest.raises(CommitError, match="too many"):
            await commit(store, {queue(n): 6 for n in range(9)})

    assert decode_offsets(file_in(tmp_path).read_bytes()) == {queue(0): 5}


@pytest.mark.parametrize("fault", ["lock", "read", "rename"])
async def test_a_disk_error_at_start_is_raised_and_unlocks_the_file(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    put_file(tmp_path, b"{")  # is to be set aside by a rename
    disk = Disk()
    monkeypatch.setattr(disk, fault, fail)

    store = LocalFileOffsetStore(tmp_path, disk=disk)
    store.bind(CLIENT, "billing")

    with pytest.raises(ConfigError, match="Read-only") as caught:
        await store.load()
    assert caught.value.setting == "offset_folder"
    async with opened(tmp_path):
        pass  # the lock was let go


async def test_a_second_process_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with writer(tmp_path, -1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(ConfigError, match="instance_name"):
            async with opened(tmp_path):
                pass
        child.kill()

    async with opened(tmp_path):
        pass
