"""Rebalance plan: the sorted difference of queues."""

from hypothesis import given, settings, strategies as st

from rocketmq_aio.consumer.rebalance.plan import Plan, plan
from rocketmq_aio.model.values import MessageQueue

queues = st.builds(
    MessageQueue, st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), st.integers(0, 3)
)


def queue(queue_id: int, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue("orders", broker, queue_id)


def test_unassigned_queues_are_released() -> None:
    assert plan([queue(0), queue(1)], [queue(1)]) == Plan(release=(queue(0),))


def test_newly_assigned_queues_are_acquired() -> None:
    assert plan([queue(0)], [queue(1), queue(0)]) == Plan(acquire=(queue(1),))


def test_plan_is_empty_without_changes() -> None:
    nothing = plan({queue(0), queue(1)}, [queue(1), queue(0)])

    assert nothing == Plan()
    assert not nothing


def test_plan_sorts_by_topic_broker_and_number() -> None:
    wanted = [queue(10), queue(2), queue(0, "broker-b"), queue(1)]

    assert plan([], wanted).acquire == (queue(1), queue(2), queue(10), queue(0, "broker-b"))


@settings(deadline=None)
@given(held=st.lists(queues), assigned=st.lists(queues))
def test_applying_the_plan_yields_the_assignment(
    held: list[MessageQueue], assigned: list[MessageQueue]
) -> None:
    todo = plan(held, assigned)

    assert (set(held) - set(todo.release)) | set(todo.acquire) == set(assigned)
    assert not set(todo.release) & set(assigned)
    assert not set(todo.acquire) & set(held)
    assert bool(todo) == (set(held) != set(assigned))
