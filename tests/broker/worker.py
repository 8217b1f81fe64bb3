"""Consumer process that a test can kill; it prints a JSON line per event.

python -m tests.broker.worker NAMESRV GROUP TOPIC [MAX_MESSAGES [MESSAGES_BEFORE_IT_HANGS]]
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from tests.broker.reading_groups import consumer_of


def say(**event: Any) -> None:  # noqa: ANN401 - whatever JSON takes
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def work(namesrv: str, group: str, topic: str, limit: int, hangs_after: int | None) -> None:
    """Print the result of each poll before the next poll commits it; optionally hang."""
    got = 0
    async with consumer_of(namesrv, group, commit_interval_seconds=0.1) as consumer:
        await consumer.subscribe(topic)
        await consumer.ready(30)
        say(ready=len(consumer.assignment()))
        while True:
            taken = await consumer.poll(60, limit)
            got += len(taken)
            say(got=[[m.queue.queue_id, m.queue_offset, m.body.decode()] for m in taken])
            if hangs_after is not None and got >= hangs_after:
                await asyncio.sleep(3600)


if __name__ == "__main__":
    _, where, who, what, *rest = sys.argv
    numbers = [int(each) for each in rest]
    asyncio.run(
        work(where, who, what, numbers[0] if numbers else 100, numbers[1] if rest[1:] else None)
    )
