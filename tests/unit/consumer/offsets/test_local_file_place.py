"""Local offset file: location, permissions and symbolic links."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from rocketmq_aio.consumer.offsets.local_file import (
    LocalFileOffsetStore,
    encode_offsets,
    offset_folder,
    path_component,
)
from rocketmq_aio.errors import ConfigError
from tests.unit.consumer.offset_files import CLIENT, file_in, opened, put_file, save
from tests.unit.consumer.parts import commit, queue


async def test_the_file_is_where_the_java_client_has_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await commit(store, {queue(0): 5})

        assert store.path == file_in(tmp_path) == tmp_path / CLIENT / "billing" / "offsets.json"
    assert file_in(tmp_path).exists()


def test_the_folder_is_the_given_one_then_the_environments_then_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ROCKETMQ_OFFSET_FOLDER", raising=False)
    assert offset_folder(None) == tmp_path / ".rocketmq_offsets"
    assert offset_folder("~/mine") == tmp_path / "mine"

    monkeypatch.setenv("ROCKETMQ_OFFSET_FOLDER", str(tmp_path / "kept"))
    assert offset_folder(None) == tmp_path / "kept"
    assert offset_folder(str(tmp_path / "mine")) == tmp_path / "mine"


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("../../etc", "..%2F..%2Fetc"),
        ("/etc/passwd", "%2Fetc%2Fpasswd"),
        ("a\\b", "a%5Cb"),
        ("a\x00b", "a%00b"),
        ("fe80::1@x", "fe80%3A%3A1@x"),
        ("a%2Fb", "a%252Fb"),
        ("10.0.0.1@DEFAULT", "10.0.0.1@DEFAULT"),
        ("订单", "%E8%AE%A2%E5%8D%95"),
    ],
)
async def test_a_name_never_leads_out_of_the_folder(tmp_path: Path, name: str, folder: str) -> None:
    async with opened(tmp_path, client_id=name, group=name) as store:
        await commit(store, {queue(0): 5})

    assert list(tmp_path.rglob("offsets.json")) == [tmp_path / folder / folder / "offsets.json"]


@settings(deadline=None)
@given(one=st.text(min_size=1, max_size=20), other=st.text(min_size=1, max_size=20))
def test_two_names_never_share_a_folder(one: str, other: str) -> None:
    assert (path_component("group", one) == path_component("group", other)) == (one == other)


@pytest.mark.parametrize("name", ["", "g" * 256, "订" * 29])
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="group="):
        LocalFileOffsetStore(tmp_path).bind(CLIENT, name)


def test_a_name_of_the_longest_folder_is_accepted() -> None:
    assert path_component("group", "g" * 255) == "g" * 255


def test_a_folder_that_is_no_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="offset_folder="):
        offset_folder(5)  # type: ignore[arg-type]


async def test_a_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    await save(tmp_path / "state" / "app" / "base", {queue(0): 5})

    assert file_in(tmp_path / "state" / "app" / "base").exists()


async def test_topics_of_a_java_client_lose_their_namespace(tmp_path: Path) -> None:
    put_file(tmp_path, encode_offsets({queue(0, topic="test%orders"): 5}))
    store = LocalFileOffsetStore(tmp_path)
    store.bind(CLIENT, "billing", inner=lambda topic: topic.removeprefix("test%"))
    await store.load()

    assert await store.read(queue(0)) == 5
    await store.close()


async def test_files_and_folders_are_for_this_user_only(tmp_path: Path) -> None:
    await save(tmp_path / "base", {queue(0): 5})
    await save(tmp_path / "base", {queue(0): 6})

    found = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    inside = f"base/{CLIENT}/billing"
    assert found == {
        "base": 0o700,
        f"base/{CLIENT}": 0o700,
        inside: 0o700,
        f"{inside}/offsets.json": 0o600,
        f"{inside}/offsets.json.bak": 0o600,
        f"{inside}/offsets.lock": 0o600,
    }


@pytest.mark.parametrize("name", ["offsets.json", "offsets.json.bak", "offsets.lock"])
async def test_a_link_in_the_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.write_bytes(encode_offsets({queue(0): 99}))
    folder = tmp_path / "base"
    put_file(folder, b"", name).unlink()
    file_in(folder, name).symlink_to(target)

    with pytest.raises(ConfigError, match="offset_folder="):
        async with opened(folder):
            pass
    assert target.read_bytes() == encode_offsets({queue(0): 99})


async def test_a_link_laid_where_the_new_file_is_written_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    folder = tmp_path / "base"
    put_file(folder, b"", "offsets.json.tmp").unlink()
    file_in(folder, "offsets.json.tmp").symlink_to(target)

    await save(folder, {queue(0): 5})

    assert target.read_bytes() == b"precious"
    assert not file_in(folder).is_symlink()


async def test_a_link_in_the_place_of_a_folder_below_the_base_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / CLIENT).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match="symbolic link"):
        async with opened(tmp_path / "base"):
            pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_the_base_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "base").symlink_to(tmp_path / "disk")

    await save(tmp_path / "base", {queue(0): 5})

    assert file_in(tmp_path / "disk").exists()


async def test_a_pipe_or_a_folder_in_place_of_the_file_fails_the_start(tmp_path: Path) -> None:
    put_file(tmp_path / "one", b"").unlink()
    os.mkfifo(file_in(tmp_path / "one"))
    file_in(tmp_path / "two").mkdir(parents=True)

    for folder in ("one", "two"):
        with pytest.raises(ConfigError, match="not a plain file"):
            async with opened(tmp_path / folder):
                pass


async def test_a_base_that_is_not_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "base").write_text("a file")

    with pytest.raises(ConfigError) as caught:
        async with opened(tmp_path / "base"):
            pass
    assert (caught.value.setting, caught.value.value) == ("offset_folder", str(tmp_path / "base"))


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
async def test_a_folder_that_no_file_system_can_have_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        async with opened(tmp_path / name):
            pass

    assert caught.value.setting == "offset_folder"
