"""Plot lag and throughput of a streaming query, in cells as in a notebook.

    python examples/lag_plot.py --seconds 30 --to lag.png

Orders are sent in bursts, and a batch of the query has at most 2,000 of them: the lag rises and
falls. The example starts its own RocketMQ, or uses the one of ROCKETMQ_NAMESRV.
"""

# %% Imports and options
import argparse
import asyncio
import os
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # draws to files; omit it in a notebook

import matplotlib.pyplot as plt
from pyspark.sql import SparkSession

from rocketmq_aio import Message, Producer
from rocketmq_aio.spark import LagListener, QueryLag
from rocketmq_aio.testing import Cluster

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seconds", type=float, default=30)
parser.add_argument("--to", type=Path, default=Path("lag.png"))
parser.add_argument("--version", default="5.5.0", help="of RocketMQ, such as 4.9.7")
chosen = parser.parse_args()

# %% A topic, and orders in bursts
BURST = 5_000
namesrv = os.environ.get("ROCKETMQ_NAMESRV")
cluster = None if namesrv else Cluster.start(chosen.version)
where = namesrv or (cluster.namesrv if cluster else "")
topic = f"bursts-{time.time_ns()}"
if cluster:
    cluster.create_topic(topic, queues=4)


async def send_bursts(stop: threading.Event) -> None:
    async with Producer("bursts", namesrv=where) as producer:
        while not stop.is_set():
            messages = [Message(topic, f"order {number}".encode()) for number in range(BURST)]
            await producer.send_batch(messages)
            await asyncio.sleep(4)


# %% The query, and a listener that collects the lag of each batch
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
settings: dict[str, bool | float | int | str | None] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
}
spark = SparkSession.Builder().master("local[2,4]").config(map=settings).getOrCreate()
seen: list[QueryLag] = []
spark.streams.addListener(LagListener(seen.append))

with tempfile.TemporaryDirectory() if cluster else nullcontext(tempfile.mkdtemp()) as checkpoint:
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", where)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 2_000)
        .schema("body binary")
        .load()
    )
    query = (
        messages.writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )
    stop = threading.Event()
    sending = threading.Thread(target=lambda: asyncio.run(send_bursts(stop)))
    sending.start()
    try:
        query.awaitTermination(int(chosen.seconds))  # raises the error of a failed query
        while not seen and query.isActive:  # the first batch is still running
            query.awaitTermination(1)
    finally:
        stop.set()
        sending.join()
        query.stop()

# %% Lag above, throughput below
times = [datetime.fromisoformat(lag.timestamp) for lag in seen]
figure, (above, below) = plt.subplots(2, sharex=True, figsize=(9, 6))
above.step(times, [lag.total for lag in seen], where="post")
above.set_ylabel("messages behind")
below.bar(times, [lag.input_rows for lag in seen], width=0.6 / 86_400)
below.set_ylabel("messages in the batch")
figure.autofmt_xdate()
figure.suptitle(f"{topic}: {sum(lag.input_rows for lag in seen):,} messages")
figure.savefig(chosen.to)

# %% The same as text
for lag in seen:
    print(lag)
print(f"{len(seen)} batches, at most {max(lag.total for lag in seen):,} behind: {chosen.to}")
spark.stop()
if cluster:
    cluster.close()
