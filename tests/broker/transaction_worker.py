"""Transaction producer process that a test can kill in its local transaction.

python -m tests.broker.transaction_worker NAMESRV GROUP TOPIC BODY
"""

from __future__ import annotations

import asyncio
import sys

from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.values import TransactionState
from rocketmq_aio.producer.transaction.producer import TransactionProducer


async def check(_message: MessageExt) -> TransactionState:
    return TransactionState.UNKNOWN


async def work(namesrv: str, group: str, topic: str, body: str) -> None:
    """Print the message id, then block in the local transaction."""
    async with (
        TransactionProducer(group, check=check, namesrv=namesrv) as producer,
        producer.transaction(Message(topic, body.encode())) as tx,
    ):
        sys.stdout.write(f"{tx.message_id}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
