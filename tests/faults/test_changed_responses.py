"""Whole clients against servers that change their responses; see ``python -m tests.fuzz``."""

from __future__ import annotations

import pytest

from rocketmq_aio.embedded.responses import Response
from tests.fuzz.clients import Mutation, fuzz_clients


@pytest.mark.parametrize("seed", range(3))
async def test_clients_survive_changed_responses(seed: int) -> None:
    changed = await fuzz_clients(seed, calls=60)

    assert sum(changed.values()) > 10
    assert len(changed) > 5  # request codes


def test_about_half_of_the_responses_are_changed() -> None:
    mutation, sent = Mutation(1), Response(0, {"offset": "7"}, b'{"a":1}')
    mutation.on = True

    changed = [mutation.response(30, sent) for _ in range(1000)]

    assert 300 < sum(each != sent for each in changed) < 700
    assert mutation.counts[30] > 300
