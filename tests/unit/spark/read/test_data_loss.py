"""Data loss: one warning for each position, in bounded memory."""

from __future__ import annotations

import logging

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
