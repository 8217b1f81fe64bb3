"""Local offset file: content, locking and corrupt files."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

import anyio
import pytest
from anyio import to_thread
from hypothesis import given, settings, strategies as st

from rocketmq_aio.consumer.common.events import CorruptOffsetFile
from rocketmq_aio.consumer.offsets import local_file as offset_file
from rocketmq_aio.consumer.offsets.local_file import (
    Disk,
    LocalFileOffsetStore,
    decode_offsets,
    encode_offsets,
)
from rocketmq_aio.errors import CodecError, ConfigError, NotRunningError
from rocketmq_aio.model.values import MessageQueue
from tests.unit.consumer.offset_files import (
    CLIENT,
    JAVA_497,
    JAVA_550,
    file_in,
    names_in,
    opened,
    put_file,
    save,
)
from tests.unit.consumer.parts import commit, queue

tables = st.dictionaries(
    st.builds(MessageQueue, st.text(), st.text(), st.integers(0, 2**31 - 1)),
    st.integers(0, 2**63 - 1),
    max_size=6,
)


@settings(deadline=None)
@given(table=tables)
def test_encoded_offsets_are_decoded(table: dict[MessageQueue, int]) -> None:
    assert decode_offsets(encode_offsets(table)) == table


def test_the_file_is_readable_json() -> None:
    assert encode_offsets({queue(1): 7, queue(0): 5}).decode().splitlines() == [
        '{"offsetTable":[',
        '{"topic":"orders","brokerName":"broker-a","queueId":0,"offset":5},',
        '{"topic":"orders","brokerName":"broker-a","queueId":1,"offset":7}',
        "]}",
    ]


@pytest.mark.parametrize("content", [JAVA_497, JAVA_550], ids=["4.9.7", "5.5.0"])
def test_the_file_of_a_java_client_is_read(content: bytes) -> None:
    assert decode_offsets(content) == {queue(1): 1007, queue(2, "broker-b"): 2007}


@pytest.mark.parametrize("offset", ["-1", str(2**63), "1.5", '"x"', "null"])
def test_an_invalid_offset_makes_the_file_corrupt(offset: str) -> None:
    good = encode_offsets({queue(0): 12345})

    with pytest.raises(CodecError):
        decode_offsets(good.replace(b"12345", offset.encode()))


@settings(deadline=None, max_examples=200)
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.builds(
            lambda base, at, bit: (
                base[: at % len(base)]
                + bytes([base[at % len(base)] ^ bit])
                + base[at % len(base) + 1 :]
            ),
            st.sampled_from([JAVA_497, encode_offsets({queue(0): 5, queue(1): 7})]),
            st.integers(0, 400),
            st.integers(1, 255),
        ),
    )
)
def test_any_bytes_are_a_table_or_a_codec_error(content: bytes) -> None:
    try:
        table = decode_offsets(content)
    except CodecError:
        return
    assert all(offset >= 0 for offset in table.values())


async def test_an_unsaved_queue_has_no_offset(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        assert await store.read(queue(0)) is None


async def test_saved_offsets_survive_a_restart(tmp_path: Path) -> None:
    await save(tmp_path, {queue(0): 5, queue(1): 0})

    async with opened(tmp_path) as store:
        assert await store.read(queue(0)) == 5
        assert await store.read(queue(1)) == 0


async def test_an_update_wins_over_the_file_and_remove_forgets_only_the_update(
    tmp_path: Path,
) -> None:
    await save(tmp_path, {queue(0): 50})

    async with opened(tmp_path) as store:
        await store.update(queue(0), 40)
        assert await store.read(queue(0)) == 40
        await store.remove(queue(0))
        await store.persist([queue(0)])
        assert await store.read(queue(0)) == 50


async def test_queues_already_in_the_file_stay_there(tmp_path: Path) -> None:
    put_file(tmp_path, JAVA_497)

    await save(tmp_path, {queue(0): 5})

    assert decode_offsets(file_in(tmp_path).read_bytes()) == {
        queue(0): 5,
        queue(1): 1007,
        queue(2, "broker-b"): 2007,
    }


async def test_only_the_named_queues_are_saved(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.update(queue(0), 5)
        await store.update(queue(1), 6)
        await store.persist([queue(1), queue(2)])

    assert decode_offsets(file_in(tmp_path).read_bytes()) == {queue(1): 6}


class WatchedDisk(Disk):
    def __init__(self) -> None:
        self.threads: list[int] = []

    def write(self, path: Path, content: bytes) -> None:
        self.threads.append(threading.get_ident())
        super().write(path, content)

    def read(self, path: Path) -> bytes | None:
        self.threads.append(threading.get_ident())
        return super().read(path)


async def test_the_disk_is_touched_only_for_a_change(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(tmp_path, disk=disk) as store:
        await commit(store, {queue(0): 5})
        disk.threads.clear()
        await commit(store, {queue(0): 5})
        await store.persist([queue(0), queue(1)])

        assert disk.threads == []


async def test_the_event_loop_never_waits_for_the_disk(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(tmp_path, disk=disk) as store:
        await commit(store, {queue(0): 5})

    assert len(disk.threads) == 3  # file and backup read, file written
    assert threading.get_ident() not in disk.threads


async def test_the_file_does_not_wait_for_the_threads_of_the_application(tmp_path: Path) -> None:
    limiter = to_thread.current_default_thread_limiter()
    release = threading.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(int(limiter.total_tokens)):
            tasks.start_soon(to_thread.run_sync, release.wait, 20.0)
        await anyio.wait_all_tasks_blocked()
        try:
            with anyio.fail_after(10):
                await save(tmp_path, {queue(0): 5})
        finally:
            release.set()

    assert file_in(tmp_path).exists()


async def test_a_refused_offset_is_not_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with pytest.raises(ConfigError, match="offset=-1"):
            await store.update(queue(0), -1)

        assert await store.read(queue(0)) is None


async def test_before_load_and_after_close_reads_raise(tmp_path: Path) -> None:
    store = LocalFileOffsetStore(tmp_path)
    with pytest.raises(NotRunningError):
        await store.load()
    store.bind(CLIENT, "billing")
    with pytest.raises(NotRunningError):
        await store.read(queue(0))
    with pytest.raises(NotRunningError):
        await store.persist([queue(0)])
    await store.load()
    await store.close()
    await store.close()
    with pytest.raises(NotRunningError):
        await store.read(queue(0))


CORRUPT: Final = {
    "empty": b"",
    "cut": encode_offsets({queue(0): 5})[:-9],
    "zeros": bytes(64),
    "text": b"hello",
    "number": b"5",
    "deep": b"[" * 100_000,
    "another-object": b'{"subscriptionGroupTable":{}}',
}


@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT)
async def test_a_corrupt_file_is_renamed_and_the_backup_used(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await save(tmp_path, {queue(0): 5})
    await save(tmp_path, {queue(0): 6})
    put_file(tmp_path, content)
    store = LocalFileOffsetStore(tmp_path)
    store.bind(CLIENT, "billing")
    reports: list[CorruptOffsetFile] = []
    store.on_corrupt = reports.append

    with caplog.at_level(logging.WARNING, logger="rocketmq_aio"):
        await store.load()
        found = await store.read(queue(0))
        await store.close()

    assert found == 5
    [report] = reports
    assert report.path == file_in(tmp_path)
    assert report.recovered
    assert report.kept_as.name.startswith("offsets.json.corrupt-")
    assert report.kept_as.read_bytes() == content
    assert "offset_file_corrupt" in caplog.text
    assert not file_in(tmp_path).exists()


async def test_without_a_good_backup_the_queues_are_new_and_both_files_are_kept(
    tmp_path: Path,
) -> None:
    put_file(tmp_path, b"{")
    put_file(tmp_path, b"[", "offsets.json.bak")
    store = LocalFileOffsetStore(tmp_path)
    store.bind(CLIENT, "billing")
    reports: list[CorruptOffsetFile] = []
    store.on_corrupt = reports.append

    await store.load()
    found = await store.read(queue(0))
    await commit(store, {queue(0): 1})
    await store.close()

    assert found is None
    assert [(each.recovered, each.kept_as.read_bytes()) for each in reports] == [
        (False, b"{"),
        (False, b"["),
    ]
    assert decode_offsets(file_in(tmp_path).read_bytes()) == {queue(0): 1}


async def test_a_good_backup_survives_the_corrupt_file(tmp_path: Path) -> None:
    await save(tmp_path, {queue(0): 5})
    await save(tmp_path, {queue(0): 6})
    put_file(tmp_path, b"{")

    async with opened(tmp_path):
        pass  # leaves before it could save anything

    async with opened(tmp_path) as store:
        assert await store.read(queue(0)) == 5


async def test_a_file_above_the_size_limit_is_not_read_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_file(tmp_path, JAVA_497)
    monkeypatch.setattr(offset_file, "MAX_FILE_BYTES", len(JAVA_497) - 1)

    async with opened(tmp_path) as store:
        assert await store.read(queue(1)) is None
    assert any(name.startswith("offsets.json.corrupt-") for name in names_in(tmp_path))
