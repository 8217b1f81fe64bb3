"""The real broker of the benchmarks: start, topics, backlogs and checks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from types import TracebackType
from typing import Final, Self

from benchmarks.bare.connection import connect, find_broker
from rocketmq_aio.testing import Cluster

QUEUES: Final = 16
FILL_BATCH: Final = 32
FILL_IN_FLIGHT: Final = 8
FILL_SECONDS: Final = 900.0
GET_MAX_OFFSET: Final = 30
UPDATE_BROKER_CONFIG: Final = 25
BYTES_PER_PULLED: Final = (
    8192  # per message of a pull's limit: 256 KiB for 32 messages, the default
)
MOST_PULL_BYTES: Final = 4 * 2**20
STABLE_SECONDS: Final = 0.5
DISPATCH_SECONDS: Final = 60.0
FULL_BYTES: Final = 20 * 2**30  # bodies sent to one broker before it is replaced
# The defaults of 5.x: those of `rocketmq_aio.testing` are for few transactions.
PROPERTIES: Final = {"transactionOpMsgMaxSize": "4096", "transactionOpBatchInterval": "3000"}
WARMING_MESSAGES: Final = 320_000  # sent to a new broker before the first sample


class MeasuredBroker:
    """One name server and one broker; backlogs are filled at most once."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._start()

    def _start(self) -> None:
        self._filled: dict[str, int] = {}
        self._sent_bytes = 0
        self._cluster = Cluster.start(version=self.version, broker_properties=PROPERTIES)
        try:
            self.fill("bench-warming", total=WARMING_MESSAGES, body_bytes=1024)
        except BaseException:
            self._cluster.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cluster.close()

    @property
    def namesrv(self) -> str:
        return self._cluster.namesrv

    @property
    def pids(self) -> list[int]:
        """Processes of the broker; empty if it runs elsewhere."""
        return [broker.pid for broker in self._cluster.brokers if broker.pid is not None]

    def create_topic(self, topic: str) -> None:
        self._cluster.create_topic(topic, queues=QUEUES)

    def fill(self, topic: str, *, total: int, body_bytes: int) -> None:
        """Fill *topic* with *total* messages, evenly over its queues, unless it has them."""
        self.create_topic(topic)
        missing = total - self._filled.get(topic, 0)
        if missing <= 0:
            return
        settings = {
            "--namesrv": self.namesrv, "--topic": topic, "--in-flight": FILL_IN_FLIGHT,
            "--batch": FILL_BATCH, "--total": missing, "--body-bytes": body_bytes,
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.subject", "bare", "fill"]
        for name, value in settings.items():
            command += [name, str(value)]
        subprocess.run(command, check=True, timeout=FILL_SECONDS)
        self._filled[topic] = self.stored(topic)

    def limit_pulls(self, messages: int) -> None:
        """Set the limits of a pull from memory: messages, and bytes in proportion."""
        properties = {
            "maxTransferCountOnMessageInMemory": messages,
            "maxTransferBytesOnMessageInMemory": min(messages * BYTES_PER_PULLED, MOST_PULL_BYTES),
        }
        asyncio.run(_configure(self._cluster.brokers[0].address, properties))

    def note_growth(self, sent_bytes: int) -> None:
        self._sent_bytes += sent_bytes

    def renew_if_full(self) -> bool:
        """Replace a broker whose disk use is too high; return whether it was replaced."""
        if self._sent_bytes < FULL_BYTES:
            return False
        self._cluster.close()
        self._start()
        return True

    def stored(self, topic: str) -> int:
        """Return how many messages the queues of *topic* hold after their indexes caught up.

        :raises TimeoutError: they were still growing after a minute
        """
        deadline = time.monotonic() + DISPATCH_SECONDS
        before = -1
        while time.monotonic() < deadline:
            now = asyncio.run(_max_offsets(self.namesrv, topic))
            if now == before:
                return now
            before = now
            time.sleep(STABLE_SECONDS)
        raise TimeoutError(f"{topic} still grows {DISPATCH_SECONDS:g} s after the last send")


async def _configure(address: str, properties: dict[str, int]) -> None:
    connection = await connect(address)
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    reply, _ = await connection.json_request(UPDATE_BROKER_CONFIG, {}, text.encode())
    connection.close()
    if reply.code:
        raise RuntimeError(f"broker settings: code {reply.code}: {reply.remark}")


async def _max_offsets(namesrv: str, topic: str) -> int:
    address, _, queues = await find_broker(namesrv, topic)
    connection = await connect(address)
    total = 0
    for queue in range(queues):
        fields = {"topic": topic, "queueId": str(queue)}
        reply, _ = await connection.json_request(GET_MAX_OFFSET, fields)
        if reply.code:
            raise RuntimeError(f"max offset of {topic}: code {reply.code}: {reply.remark}")
        total += int(reply.fields()["offset"])
    connection.close()
    return total
