# ruff: noqa: ANN401 - what is replaced takes and returns anything
"""Mutated clients: for each rule there is a defect of the client that the rule finds.

Each mutation replaces one function of the client during a run that violates no rule without it, as
`tests/unit/history` shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from rocketmq_aio.consumer.common.redelivery import SendBack
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.lite_pull.ready_queues import ReadyQueues
from rocketmq_aio.consumer.pull_loop import pull_request
from rocketmq_aio.consumer.push.concurrent import ConcurrentService
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue
from rocketmq_aio.consumer.push.locks import QueueLocks
from rocketmq_aio.consumer.push.orderly import OrderlyService
from rocketmq_aio.consumer.push.pop_mode import PoppedQueue
from rocketmq_aio.errors import RocketMQError, SendError
from rocketmq_aio.instance.broker_client import BrokerClient
from rocketmq_aio.instance.pending_replies import PendingReplies
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue, TransactionState
from rocketmq_aio.producer import retry, send_request
from rocketmq_aio.producer.batching import explicit_batch
from rocketmq_aio.producer.queue_selection import ANY_QUEUE, QueueSelection
from rocketmq_aio.producer.send_attempts import SendAttempts
from rocketmq_aio.producer.transaction import end_transaction, producer as transaction_producer
from rocketmq_aio.producer.transaction.transaction import HalfMessageSender
from rocketmq_aio.producer.transaction.transaction_log import TransactionLog
from rocketmq_aio.spark.read.task import ReadTask
from tests.fakes.cluster import FakeCluster
from tests.history import RULES, check
from tests.history.process import PROCESS
from tests.unit.history.runs import TAGS, Run

Patch = pytest.MonkeyPatch
Commit = Callable[[int], Awaitable[None]]
# I15 is about what the test asks at rest, the others about the process: no record of clients.
QUEUES = 2  # of the topic
NOT_OF_CLIENTS = {"I15", *PROCESS} - {"I33"}


# --- producers ------------------------------------------------------------------------------------


def wrong_offset_returned(patch: Patch) -> None:
    original = SendAttempts.run

    async def run(self: SendAttempts, *arguments: Any) -> Any:
        result = await original(self, *arguments)
        return replace(result, queue_offset=result.queue_offset + 100)

    patch.setattr(SendAttempts, "run", run)


def unknown_outcome_reported_as_failure(patch: Patch) -> None:
    patch.setattr(retry, "failure", SendError)


def retried_under_another_id(patch: Patch) -> None:
    original = SendAttempts._attempt

    async def attempt(self: SendAttempts, request: Any, *arguments: Any) -> Any:
        old, new = request.message_id, request.message_id[:-2] + "FF"
        request.properties = request.properties.replace(old.encode(), new.encode())
        request.message_id = new
        return await original(self, request, *arguments)

    patch.setattr(SendAttempts, "_attempt", attempt)


def batch_stored_in_reverse(patch: Patch) -> None:

    async def send_batch(sender: Any, messages: Any, *arguments: Any) -> Any:
        results = await explicit_batch.send_batch(sender, messages[::-1], *arguments)
        return results[::-1]

    patch.setattr("rocketmq_aio.producer.producer.send_batch", send_batch)


def batch_sent_in_two_requests(patch: Patch) -> None:

    async def send_batch(sender: Any, messages: Any, *arguments: Any) -> Any:
        halves = (messages[:2], messages[2:])
        results = [await explicit_batch.send_batch(sender, half, *arguments) for half in halves]
        return [result for half in results for result in half]

    patch.setattr("rocketmq_aio.producer.producer.send_batch", send_batch)


def keys_spread_over_queues(patch: Patch) -> None:
    patch.setattr(QueueSelection, "routing_by_key", lambda *_: ANY_QUEUE)


# --- pulling and delivery -------------------------------------------------------------------------


def selected(patch: Patch, change: Callable[[list[MessageExt]], list[MessageExt]]) -> None:
    """Change the messages of each pull."""

    def select(*arguments: Any) -> Any:
        messages, *others = pull_request.select_messages(*arguments)
        return change(messages), *others

    patch.setattr("rocketmq_aio.consumer.pull_loop.puller.select_messages", select)


def body_changed(patch: Patch) -> None:
    def change(messages: list[MessageExt]) -> list[MessageExt]:
        for message in messages:
            message.body = message.body.replace(b"5", b"S")
        return messages

    selected(patch, change)


def message_of_a_pull_dropped(patch: Patch) -> None:
    selected(patch, lambda messages: [each for each in messages if each.body != b"5"])


def tags_not_compared(patch: Patch) -> None:
    def select(*arguments: Any) -> Any:
        *others, subscription = arguments
        original: Any = pull_request.select_messages
        return original(*others, replace(subscription, tags=frozenset()))

    patch.setattr("rocketmq_aio.consumer.pull_loop.puller.select_messages", select)


def delivered_twice(patch: Patch) -> None:
    original = DispatchQueue.put

    def put(self: DispatchQueue, messages: list[MessageExt]) -> None:
        original(self, messages)
        self.waiting.extend(messages[:1])

    patch.setattr(DispatchQueue, "put", put)


def retries_counted_wrongly(patch: Patch) -> None:
    original: Any = MessageExt.reconsume_times
    counted = property(lambda self: original.__get__(self) + 1)
    patch.setattr(MessageExt, "reconsume_times", counted)


def message_of_a_poll_dropped(patch: Patch) -> None:
    original = ReadyQueues.take

    def take(self: ReadyQueues, limit: int) -> list[MessageExt]:
        return [each for each in original(self, limit) if each.queue_offset % 4 != 2]

    patch.setattr(ReadyQueues, "take", take)


# --- handlers -------------------------------------------------------------------------------------


def cancelled_handler_taken_for_success(patch: Patch) -> None:
    async def finish(
        _self: object, assigned: DispatchQueue, messages: list[MessageExt], *_: object
    ) -> tuple[int, int]:
        for message in messages:
            assigned.mark_done(message)
        assigned.finish(messages)
        return len(messages), 0

    patch.setattr(ConcurrentService, "finish", finish)


def send_back_forgotten(patch: Patch) -> None:
    async def send_back(*_: object) -> None:
        return

    patch.setattr(SendBack, "send_back", send_back)


def dead_letter_forgotten(patch: Patch) -> None:
    original = SendBack.send_back

    async def send_back(self: SendBack, message: MessageExt, level: int = 0) -> None:
        if message.reconsume_times < self._max_reconsume_times:
            await original(self, message, level)

    patch.setattr(SendBack, "send_back", send_back)


def failed_message_of_an_orderly_queue_skipped(patch: Patch) -> None:
    def count(
        _self: object,
        assigned: DispatchQueue,
        failed: list[MessageExt],
        *_: object,
        **_named: object,
    ) -> list[Any]:
        for message in failed:
            assigned.mark_done(message)
        return []

    patch.setattr(OrderlyService, "_count_retries", count)


def two_handlers_of_an_orderly_queue(patch: Patch) -> None:
    original = OrderlyService.next_queue

    def next_queue(self: OrderlyService) -> DispatchQueue | None:
        assigned = original(self)
        if assigned is not None and len(assigned.waiting) > 1:
            assigned.in_flight.busy = False
            self.add(assigned)
        return assigned

    patch.setattr(OrderlyService, "next_queue", next_queue)


def delivered_without_a_lock(patch: Patch) -> None:
    async def acquire(_self: object, queues: Any) -> Any:
        return frozenset(queues)

    patch.setattr(QueueLocks, "acquire", acquire)
    patch.setattr(QueueLocks, "holds", lambda *_: True)


def acknowledged_before_the_handler(patch: Patch) -> None:
    original = PoppedQueue.put

    def put(self: PoppedQueue, messages: list[Any]) -> None:
        original(self, messages)
        for message in messages:
            self._acks.add(message)

    patch.setattr(PoppedQueue, "put", put)


# --- commits --------------------------------------------------------------------------------------


def updated(patch: Patch, update: Callable[..., Awaitable[None]]) -> None:
    """Replace the sending of commits; *update* gets the original and its arguments."""
    original = BrokerClient.update_offset

    async def replaced(self: BrokerClient, group: str, queue: Any, offset: int) -> None:
        await update(partial(original, self, group, queue), offset)

    patch.setattr(BrokerClient, "update_offset", replaced)


def commit_too_far(patch: Patch) -> None:
    async def update(commit: Commit, offset: int) -> None:
        await commit(offset + 1)

    updated(patch, update)


def commit_set_back(patch: Patch) -> None:
    async def update(commit: Commit, offset: int) -> None:
        await commit(offset)
        await commit(max(0, offset - 1))

    updated(patch, update)


def queues_of_other_members_committed(patch: Patch) -> None:
    committing: dict[tuple[Any, ...], asyncio.Task[None]] = {}  # by client, group and topic

    async def commit_all(function: Callable[..., Awaitable[None]], queue: MessageQueue) -> None:
        with suppress(RocketMQError):
            for _ in range(500):  # until the client is closed
                for number in range(QUEUES):
                    await function(replace(queue, queue_id=number), 0)
                await asyncio.sleep(0.02)  # shorter would starve the clients

    async def update(commit: partial[Awaitable[None]], offset: int) -> None:
        await commit(offset)
        client, group, queue = commit.args
        if (key := (client, group, queue.topic)) not in committing:
            function = partial(commit.func, client, group)
            committing[key] = asyncio.create_task(commit_all(function, queue))

    updated(patch, update)


# --- transactions ---------------------------------------------------------------------------------


def decisions_confused(patch: Patch) -> None:
    commit, rollback = TransactionState.COMMIT, TransactionState.ROLLBACK
    flag = end_transaction._flag
    confused = {commit: flag(rollback)}
    patch.setattr(end_transaction, "_flag", lambda state: confused.get(state) or flag(state))


def committed_though_left_open(patch: Patch) -> None:
    tasks: set[asyncio.Task[Any]] = set()

    def leave(self: HalfMessageSender, half: Any) -> None:
        tasks.add(asyncio.create_task(self.end(half, TransactionState.COMMIT)))

    patch.setattr(HalfMessageSender, "leave", leave)


def local_part_run_twice(patch: Patch) -> None:
    original = transaction_producer._execute

    async def execute(*arguments: Any) -> object:
        await original(*arguments)
        return await original(*arguments)

    patch.setattr(transaction_producer, "_execute", execute)


def check_function_called_during_the_local_part(patch: Patch) -> None:
    patch.setattr(TransactionLog, "find", lambda *_: None)


# --- streams --------------------------------------------------------------------------------------


def rows_of_a_task_changed(patch: Patch, drop: Callable[[MessageExt], bool]) -> None:
    def check_gap(_self: object, _found: object, _end: int, messages: list[MessageExt]) -> None:
        messages[:] = [each for each in messages if not drop(each)]

    patch.setattr(ReadTask, "_check_gap", check_gap)


def row_dropped(patch: Patch) -> None:
    rows_of_a_task_changed(patch, lambda message: message.body == b"5")


def row_dropped_in_the_second_read(patch: Patch) -> None:
    seen: set[bytes] = set()

    def drop(message: MessageExt) -> bool:
        is_again = message.body in seen
        seen.add(message.body)
        return is_again and message.body == b"5"

    rows_of_a_task_changed(patch, drop)


# --- requests, delays, pulls ----------------------------------------------------------------------


def replies_swapped(patch: Patch) -> None:
    original = PendingReplies.take

    def take(self: PendingReplies, correlation_id: str) -> Any:
        unanswered = [each for each, (reply, _) in self._pending.items() if not reply.done()]
        others = [each for each in unanswered if each != correlation_id]
        return original(self, (others or [correlation_id])[0])

    patch.setattr(PendingReplies, "take", take)


def delay_forgotten(patch: Patch) -> None:
    def encode(*arguments: Any) -> bytes:
        encoded: bytes = original(*arguments)
        return encoded.replace(b"TIMER_DELAY_MS", b"TIMER_FORGOTTEN")

    original: Any = vars(send_request)["encode_with_id"]
    patch.setattr(send_request, "encode_with_id", encode)
    recall_forgotten(patch)  # there is nothing to recall


def recall_forgotten(patch: Patch) -> None:
    async def recall(*_: object) -> str:
        return ""

    patch.setattr("rocketmq_aio.producer.producer.recall", recall)


def message_of_a_pull_result_dropped(patch: Patch) -> None:
    def select(*arguments: Any) -> Any:
        messages, *others = pull_request.select_messages(*arguments)
        return [each for each in messages if each.body != b"5"], *others

    patch.setattr("rocketmq_aio.consumer.pull.result.select_messages", select)


def pause_ignored(patch: Patch) -> None:
    patch.setattr(LitePullConsumer, "pause", lambda *_: None)


Act = Callable[[Run], Awaitable[None]]
ORDERLY: Act = partial(Run.push, orderly=True)
FILTERED: Act = partial(Run.push, selector=TAGS[0])
MUTATIONS: list[tuple[Callable[[Patch], None], Act, set[str]]] = [
    (wrong_offset_returned, Run.send, {"I1"}),
    (unknown_outcome_reported_as_failure, Run.send_through_faults, {"I3"}),
    (retried_under_another_id, Run.send_through_faults, {"I4"}),
    (batch_stored_in_reverse, Run.send, {"I5"}),
    (keys_spread_over_queues, Run.send, {"I6"}),
    (batch_sent_in_two_requests, Run.send, {"I7"}),
    (body_changed, Run.push, {"I2", "I8"}),
    (message_of_a_pull_dropped, Run.push, {"I9", "I10"}),
    (tags_not_compared, FILTERED, {"I16"}),
    (delivered_twice, Run.push, {"I13"}),
    (retries_counted_wrongly, Run.push, {"I14"}),
    (message_of_a_poll_dropped, Run.poll, {"I9", "I10", "I19"}),
    (cancelled_handler_taken_for_success, Run.push_cancelled, {"I9", "I10"}),
    (send_back_forgotten, Run.push, {"I9", "I10"}),
    (dead_letter_forgotten, Run.push, {"I9"}),
    (failed_message_of_an_orderly_queue_skipped, ORDERLY, {"I10", "I17"}),
    (two_handlers_of_an_orderly_queue, ORDERLY, {"I17", "I18"}),
    (delivered_without_a_lock, ORDERLY, {"P7"}),
    (acknowledged_before_the_handler, Run.push_popped, {"P5"}),
    (commit_too_far, Run.push, {"I10"}),
    (commit_too_far, Run.poll, {"I10"}),
    (commit_set_back, Run.push, {"I11"}),
    (queues_of_other_members_committed, Run.push, {"I12"}),
    (decisions_confused, Run.transactions, {"I21", "I22"}),
    (committed_though_left_open, Run.transactions, {"I22"}),
    (local_part_run_twice, Run.transactions, {"I23"}),
    (check_function_called_during_the_local_part, Run.transaction_checked_early, {"I24"}),
    (row_dropped, Run.stream, {"I9", "I25"}),
    (row_dropped_in_the_second_read, Run.stream, {"I25", "I26"}),
    (commit_too_far, Run.stream, {"I27"}),
    (message_of_a_pull_dropped, Run.broadcast, {"I9"}),
    (replies_swapped, Run.request, {"I33"}),
    (delay_forgotten, Run.delay, {"I36"}),
    (recall_forgotten, Run.delay, {"I37"}),
    (message_of_a_pull_result_dropped, Run.pull, {"I9", "I38"}),
    (pause_ignored, Run.pause, {"I39"}),
]


@pytest.mark.parametrize(
    ("mutate", "act", "rules"), MUTATIONS, ids=[mutate.__name__ for mutate, *_ in MUTATIONS]
)
async def test_a_mutated_client_violates_the_rule(
    cluster: FakeCluster,
    monkeypatch: Patch,
    mutate: Callable[[Patch], None],
    act: Act,
    rules: set[str],
) -> None:
    mutate(monkeypatch)
    run = Run(cluster, mutated=True)
    await act(run)

    assert rules <= {violation.rule for violation in check(run.finished())}


def test_every_rule_about_clients_has_a_mutation() -> None:
    assert set().union(*(rules for *_, rules in MUTATIONS)) == RULES.keys() - NOT_OF_CLIENTS
