"""The connector through Spark Connect: the source runs on the server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.spark.environments import bare_environment, package_zip
from tests.spark.servers import connect_server
from tests.spark.support import write_messages

BODIES: Final = sorted(f"order {number}" for number in range(40))
CLIENT_SECONDS: Final = 500.0


EVERYTHING: Final = sorted([*BODIES, *map(str.upper, BODIES)])


def through_server(
    namesrv: str, topic: str, folder: Path, python: str, *package: str
) -> dict[str, list[str]]:
    """Read, write, stream and ingest through a server that runs *python*; return what was read."""
    write_messages(namesrv, topic, BODIES)

    with connect_server(python) as remote:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.spark.connect_client"),
                *(remote, namesrv, topic, str(folder), *package),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=CLIENT_SECONDS,
        )

    assert done.returncode == 0, done.stderr[-6000:]
    outcome: dict[str, list[str]] = json.loads(done.stdout)
    return outcome


def test_an_installed_server_package_needs_no_client_artifacts(
    namesrv: str, topic: str, tmp_path: Path
) -> None:
    outcome = through_server(namesrv, topic, tmp_path, sys.executable)

    assert outcome == {
        "before": BODIES,
        "after": EVERYTHING,
        "streamed": EVERYTHING,
        "ingested": EVERYTHING,
    }


def test_a_client_ships_the_package_and_registers_the_source(
    namesrv: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the server would find the package there
    python = bare_environment(tmp_path / "bare")
    package = package_zip(tmp_path / "package.zip")

    outcome = through_server(namesrv, topic, tmp_path, str(python), str(package))

    assert outcome == {"before": BODIES, "after": EVERYTHING}
