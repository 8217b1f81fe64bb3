"""Log comparison: when the log of a queue is compared with what was pulled, and what follows.

The log may be another one if there is a new master, or a new connection to it, and if the topic was
deleted and created again while a pull was held or the queue was not pulled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import Final, Generic, TypeVar

from rocketmq_aio.consumer.pull_loop.log_check import LogCheck, stored_by
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN, QueueState
from rocketmq_aio.errors import BrokerError, NotConnectedError, OffsetIllegalError, RocketMQError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.protocol.codes import MASTER_ID, ResponseCode
from rocketmq_aio.protocol.requests.pull import PullMessageResponse
from rocketmq_aio.protocol.static_topics import is_logical

Q = TypeVar("Q", bound=QueueState)

# A pull that takes longer was held at the end of the queue.
HELD_SECONDS: Final = 1.0
SHORT_HOLD_SECONDS: Final = 0.01  # in which a topic is not deleted and created again
# After this time without a pull, since the queue was paused or full, its log may be another one.
# After short holds it is compared as often: they can end many times a second.
UNCHECKED_SECONDS: Final = 5.0
# How much is pulled again if the log of a master may have other messages at offsets that were
# filtered out: more than a replica lacks, but not all messages since the last one that matched.
RESCANNED_OFFSETS: Final = 16_384
LOG_DIFFERS: Final = "the log of the master differs from this offset on"


class LogComparison(Generic[Q]):
    """Compares the logs of queues with what was pulled; moves the position where they differ.

    :param correct: moves a position to an offset as the settings say, after an error; returns False
        if the position changed meanwhile
    :param on_recovered: called when a queue has a master again, with the same log or another one
    """

    def __init__(
        self,
        instance: MQClientInstance,
        check: LogCheck,
        *,
        correct: Callable[[Q, BrokerError, int, int], Awaitable[bool]],
        on_recovered: Callable[[Q], None],
    ) -> None:
        self._instance = instance
        self._check = check
        self._correct = correct
        self._on_recovered = on_recovered

    async def before_pull(self, assigned: Q, master: str | None, now: float) -> None:
        """Compare what has to be compared before a queue of *master* is pulled.

        :raises RocketMQError: the master did not respond, or is not the master
        """
        if master is not None and not self._is_followed(assigned, master):
            await self._follow(assigned, master)
        if assigned.before_hold is None and now - assigned.last_pull >= UNCHECKED_SECONDS:
            assigned.before_hold = assigned.last_message
        if assigned.before_hold is not None and now - assigned.log_checked_at >= UNCHECKED_SECONDS:
            await self._check_hold(assigned)
        if assigned.last_message is None and assigned.needs_last_message and assigned.master:
            await self._note_last(assigned, assigned.master)

    def after_pull(self, assigned: Q, address: str, seconds: float) -> None:
        """Note that a pull from *address* took so many seconds."""
        if seconds >= SHORT_HOLD_SECONDS and assigned.before_hold is None:
            assigned.before_hold = assigned.last_message
        if seconds >= HELD_SECONDS:
            assigned.log_checked_at = -inf
            assigned.needs_last_message |= address == assigned.master

    async def verify(self, assigned: Q, response: PullMessageResponse, address: str) -> None:
        """Move the position if *response* shows that the log is another one.

        :raises NotConnectedError: it may be from a new master that no route names yet
        """
        if address == assigned.master:
            least, most = assigned.bounds
            is_shorter = response.min_offset < least or response.max_offset < most
            # No log does that: the topic was deleted and created again between two pulls.
            if is_shorter and not await self._follow_difference(assigned, address):
                return  # the next response is checked again
            assigned.bounds = response.min_offset, response.max_offset
        elif self._may_be_new_master(assigned, address):
            differs_at = await self.first_difference(assigned, address)
            differs = differs_at is not None and not assigned.was_filtered(differs_at)
            if differs or assigned.replica_ended:
                raise NotConnectedError(address, LOG_DIFFERS)

    async def first_difference(self, assigned: Q, address: str) -> int | None:
        """Return the first offset that may differ at *address* from what was pulled, or None.

        The messages after the last one that was pulled are unknown: they were filtered out.

        :raises RocketMQError: the broker at *address* did not respond
        """
        last = stored_by(assigned.queue, assigned.last_message)
        if last is None or is_logical(assigned.queue):
            return None
        differs_at = await self._check.first_difference(assigned.queue, address, last)
        if differs_at is None or differs_at <= last.offset:
            return differs_at
        if assigned.filtered_from == UNKNOWN:
            return None
        return max(assigned.filtered_from, assigned.next_offset - RESCANNED_OFFSETS)

    def _is_followed(self, assigned: Q, master: str) -> bool:
        """Whether the log of *master* is compared with what was pulled, or need not be now.

        Over another connection it is compared again: a machine that restarts may have lost its
        last messages, and stored others since.
        """
        if master != assigned.master:
            return False
        number = self._instance.current_connection(master)
        return assigned.broker_id != MASTER_ID or 0 != number == assigned.connection

    async def _follow(self, assigned: Q, master: str) -> None:
        """Compare the log of *master* with what was pulled, and commit again."""
        if assigned.master is not None:
            if not await self._follow_difference(assigned, master):
                return
            self._on_recovered(assigned)
        assigned.master, assigned.connection = master, self._instance.current_connection(master)
        assigned.replica_ended = False

    def _may_be_new_master(self, assigned: Q, address: str) -> bool:
        """Whether a replica may have become the master, with another log, and no route says so."""
        master = self._instance.routes.named_master(assigned.queue)
        return master != address and (
            master is None or not self._instance.current_connection(master)
        )

    async def _follow_difference(self, assigned: Q, master: str) -> bool:
        """Move the position if the log of *master* differs before it.

        Return False if the position changed meanwhile, so that the result does not apply.
        """
        generation = assigned.generation
        differs_at = await self.first_difference(assigned, master)
        if assigned.generation != generation:
            return False
        if differs_at is None:
            return True
        if assigned.was_filtered(differs_at):
            assigned.rescan(differs_at)
            return True
        is_behind = differs_at < assigned.next_offset
        if is_behind and not await self._go_on_at(assigned, master, differs_at):
            return False
        assigned.forget_log()  # it has another one at its offset
        return True

    async def _check_hold(self, assigned: Q) -> None:
        """Move the position if the topic was created again during a held pull, or a pause.

        Its log may be as long as the former one by now: no response shows that.
        """
        queue, generation = assigned.queue, assigned.generation
        master = self._instance.routes.named_master(queue)
        last = None if is_logical(queue) else stored_by(queue, assigned.before_hold)
        if last is not None and master is not None and master == assigned.master:
            differs_at = None
            if not await self._check.is_same(queue, last):
                differs_at = await self._check.first_difference(queue, master, last)
            if assigned.generation != generation:
                return
            if (
                differs_at is not None
                and differs_at <= last.offset
                and not await self._go_on_at(assigned, master, differs_at)
            ):
                return
        assigned.before_hold = None
        assigned.log_checked_at = asyncio.get_running_loop().time()

    async def _note_last(self, assigned: Q, master: str) -> None:
        """Note the message before the position, for `_check_hold`: the queue has read none."""
        generation, offset = assigned.generation, assigned.next_offset - 1
        assigned.needs_last_message = False
        if offset < 0 or is_logical(assigned.queue):
            return
        with suppress(RocketMQError):  # the pull that follows reports failures
            message = await self._check.message_at(assigned.queue, master, offset)
            if assigned.generation == generation:
                assigned.last_message = message

    async def _go_on_at(self, assigned: Q, master: str, differs_at: int) -> bool:
        """Correct the position to the first offset that differs; returns as `correct`."""
        error = OffsetIllegalError(ResponseCode.PULL_OFFSET_MOVED, LOG_DIFFERS, master)
        return await self._correct(assigned, error, assigned.next_offset, differs_at)
