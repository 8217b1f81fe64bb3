"""PopScheduler: which loop is popped from next."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from rocketmq_aio.consumer.pop.buffer import PopBuffer
from rocketmq_aio.consumer.pop.intake import PopIntake
from rocketmq_aio.consumer.pop.loop import PopLoop
from rocketmq_aio.consumer.pop.pop_client import PopRequest
from rocketmq_aio.consumer.pop.scheduler import PopScheduler
from rocketmq_aio.model.values import MessageQueue


class SchedulerEnv:
    """Loops of several topics, whose requests are only noted."""

    def __init__(self, loops: int) -> None:
        self.buffer = PopBuffer(orderly=False)
        sources = [MessageQueue(f"topic-{number}", "broker-a", -1) for number in range(loops)]
        self.scheduler: PopScheduler
        self.loops = {source: self._loop(source) for source in sources}
        self.scheduler = PopScheduler(self.loops, self.buffer, slack_seconds=1.0)

    def _loop(self, source: MessageQueue) -> PopLoop:
        return PopLoop(
            cast(PopIntake, None),
            source,
            next_request=lambda loop: self.scheduler.next_request(loop),
            deliver=self.buffer.add,
        )

    def requested(self) -> str:
        """Return the topic that a new caller requests messages of."""
        self.scheduler._next_step(PopRequest(32, 60.0, 15.0), {}, 0.0)
        [topic] = [s.topic for s, loop in self.loops.items() if self.scheduler.next_request(loop)]
        return topic


def test_all_loops_are_popped_in_turn() -> None:
    env = SchedulerEnv(5)

    assert len({env.requested() for _ in range(10)}) == 5


def test_a_loop_that_had_messages_is_popped_every_other_time() -> None:
    env = SchedulerEnv(20)
    env.loops[MessageQueue("topic-7", "broker-a", -1)].had_messages = True
    requested = [env.requested() for _ in range(40)]

    assert requested[1::2] == ["topic-7"] * 20
    assert len(set(requested)) == 20


def test_loops_that_had_messages_are_popped_in_turn() -> None:
    env = SchedulerEnv(3)
    for loop in env.loops.values():
        loop.had_messages = True

    assert Counter(env.requested() for _ in range(6)) == {f"topic-{n}": 2 for n in range(3)}


def test_no_loop_is_popped_when_the_broker_would_not_wait() -> None:
    env = SchedulerEnv(1)
    [loop] = env.loops.values()
    request = PopRequest(32, 60.0, 15.0)
    seconds = [env.scheduler._next_step(request, {loop: None}, 14.0)]
    waits = [env.scheduler.next_request(loop)]
    seconds.append(env.scheduler._next_step(request, {loop: None}, 14.96))
    waits.append(env.scheduler.next_request(loop))

    assert seconds == pytest.approx([1.0, 0.04])
    assert waits == [request._replace(wait_seconds=1.0), None]
