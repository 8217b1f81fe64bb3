"""The package shipped with the job to interpreters without it."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.spark.class_archive import SPARK_HOME
from tests.spark.environments import bare_environment, environment_archive, package_zip
from tests.spark.servers import SparkCluster, environment
from tests.spark.support import settings_in, write_messages

JOB: Final = Path(__file__).parent / "shipped_job.py"
BODIES: Final = [f"order {number}" for number in range(40)]
SUBMIT_SECONDS: Final = 500.0


@pytest.fixture(scope="module", autouse=True)
def no_python_path() -> Iterator[None]:
    """Unset PYTHONPATH, which would provide the package to cluster and jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module")
def spark_cluster(no_python_path: None) -> Iterator[SparkCluster]:
    """A standalone master and a worker."""
    with SparkCluster.start() as cluster:
        yield cluster


def submit(
    cluster: SparkCluster, folder: Path, python: str, more: list[str], arguments: list[str]
) -> dict[str, Any]:
    """Run the job to its end from *folder*; return its output."""
    settings = {**settings_in(folder), "spark.executor.memory": "512m"}
    pairs = [f"--conf={name}={value}" for name, value in settings.items()]
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master, *pairs]
    done = subprocess.run(
        [*command, *more, str(JOB), *arguments],
        env={**environment(), "PYSPARK_PYTHON": python, "HOME": os.environ["HOME"]},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=SUBMIT_SECONDS,
    )
    outcomes = [line for line in done.stdout.splitlines() if line.startswith("outcome ")]
    assert done.returncode == 0, done.stderr[-6000:]
    outcome: dict[str, Any] = json.loads(outcomes[0].removeprefix("outcome "))
    return outcome


def test_a_zip_of_pure_python_is_enough_with_compiled_packages_installed(
    spark_cluster: SparkCluster, namesrv: str, topic: str, tmp_path: Path
) -> None:
    write_messages(namesrv, topic, BODIES)
    python = bare_environment(tmp_path / "bare")
    alone = subprocess.run([python, "-c", "import rocketmq_aio"], cwd=tmp_path, check=False)
    assert alone.returncode != 0
    package = package_zip(tmp_path / "package.zip")

    outcome = submit(
        spark_cluster, tmp_path, str(python), ["--py-files", str(package)], [namesrv, topic]
    )

    assert outcome["bodies"] == sorted(BODIES)
    assert {"package.zip" in place for place in outcome["places"]} == {True}


def test_an_environment_is_shipped_as_an_archive(
    spark_cluster: SparkCluster, namesrv: str, topic: str, tmp_path: Path
) -> None:
    write_messages(namesrv, topic, BODIES)
    archive = environment_archive(tmp_path)
    home = tmp_path / "submitted-from"
    with tarfile.open(archive) as packed:
        packed.extractall(home / "environment", filter="fully_trusted")

    outcome = submit(
        spark_cluster,
        home,
        "./environment/bin/python",
        ["--archives", f"{archive}#environment"],
        [namesrv, topic],
    )

    assert outcome["bodies"] == sorted(BODIES)
    assert {"/environment/lib/" in place for place in outcome["places"]} == {True}
