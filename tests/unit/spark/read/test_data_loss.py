"""Data loss: one warning for each position, in bounded memory."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from rocketmq_aio.spark.read.data_loss import Extent, LossPolicy, find_out_of_range

QUEUE = ("orders", "broker-a", 0)


def test_the_memory_of_warnings_is_bounded_by_the_queues(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    policy = LossPolicy(fail=False)
    for wanted in range(100):
        lost = find_out_of_range({QUEUE: wanted}, {QUEUE: Extent(wanted + 1, wanted + 9)})
        for _ in range(3):
            assert policy.resume_offsets(lost) == {QUEUE: wanted + 1}

    assert sum("data_loss" in each.getMessage() for each in caplog.records) == 100
    assert len(policy._warn_once._warned["data_loss"]) == 1


def test_a_topic_that_is_deleted_again_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    policy = LossPolicy(fail=False)
    for gone in ({"orders"}, {"orders"}, set[str](), {"orders"}):
        policy.check_gone(gone)

    assert sum("topic_gone" in each.getMessage() for each in caplog.records) == 2


def test_warnings_go_to_stderr_if_no_log_handler_is_configured() -> None:
    program = "from rocketmq_aio.spark.read.data_loss import warn; warn('topic_gone', topic='T')"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)

    assert b"topic_gone" in done.stderr
