"""Class archives of several pyspark installations in one cache folder."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest

from tests import class_archive
from tests.spark import class_archive as spark


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder in which archives are made without a JVM."""
    monkeypatch.setattr(class_archive, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(spark, "_make", Path.touch)
    return tmp_path


def use(version: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Request the archive like an installation of pyspark *version*."""
    monkeypatch.setattr(pyspark, "__version__", version)
    return spark.spark_archive()


def set_times(archives: list[Path]) -> None:
    """Make each archive older than the next."""
    for number, archive in enumerate(archives):
        os.utime(archive, (number, number))


def test_another_pyspark_version_keeps_the_archive(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = [use("4.2.0", monkeypatch), use("4.3.0", monkeypatch)]

    assert sorted(folder.glob("*.jsa")) == archives


def test_only_the_most_recently_used_archives_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = [use(f"4.{number}", monkeypatch) for number in range(class_archive.KEPT)]
    set_times(archives)
    use("4.0", monkeypatch)
    added = use("5.0", monkeypatch)

    assert set(folder.glob("*.jsa")) == {*archives, added} - {archives[1]}
