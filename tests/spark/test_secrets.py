"""Secrets in options appear in no log, plan, checkpoint or error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rocketmq_aio.testing import Account, Cluster

SECRET: Final = "canary-5d1e88a0"
ADMIN: Final = Account(access_key="administrator", secret_key="admin-key", admin=True)
JOB_SECONDS: Final = 500.0


def topic_account(version: str) -> Account:
    """An account for one topic; 5.x brokers have a separate permission for offsets."""
    rights = "PUB|SUB" if version.startswith("4.") else "PUB|SUB|GET"
    return Account(
        access_key="shop-account",
        secret_key=SECRET,
        topics={"guarded": rights},
        groups={"rocketmq-spark": "SUB"},
    )


def holders(folder: Path, text: str) -> list[str]:
    """The files below *folder* that contain *text*."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in files if text.encode() in path.read_bytes()]


def test_a_secret_is_in_no_log_event_log_plan_checkpoint_or_error(
    fresh_cluster: Callable[..., Cluster], rocketmq_version: str, tmp_path: Path
) -> None:
    cluster = fresh_cluster(accounts=[ADMIN, topic_account(rocketmq_version)])
    for topic in ("guarded", "forbidden"):
        cluster.create_topic(topic, queues=2)
    arguments = [cluster.namesrv, "guarded", "forbidden", str(tmp_path), "shop-account", SECRET]

    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.secret_job", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=JOB_SECONDS,
    )

    (tmp_path / "output").write_text(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:]
    for line in ("read 20 messages", "then 40 messages", "== Physical Plan ==", "refused write"):
        assert line in done.stdout
    for refused in ("read", "account", "option"):
        assert f"\nrefused {refused}: " in done.stdout
    places = {Path(path).relative_to(tmp_path).parts[0] for path in holders(tmp_path, "guarded")}
    assert {"output", "events", "checkpoint-files", "checkpoint-topic"} <= places
    assert holders(tmp_path, SECRET) == []
