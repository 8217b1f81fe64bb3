"""Store an order and send a message about it, both or neither, even after a crash in between.

    python examples/transaction.py --namesrv 127.0.0.1:9876

Three orders are stored in a SQLite table, each with a message in one transaction.  The second order
fails, and its message is rolled back.  The third is stored, and the program "crashes" before it
commits: the broker calls the check, which finds the order in the table.
"""

import argparse
import asyncio
import sqlite3
from contextlib import closing

from rocketmq_aio import (
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    TransactionProducer,
    TransactionState,
)


class OutOfStockError(Exception):
    """The order cannot be fulfilled."""


class Orders:
    """The table of orders."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        database.execute("CREATE TABLE orders (name TEXT PRIMARY KEY)")

    def store(self, name: str) -> None:
        if name == "jam":
            raise OutOfStockError(name)
        with self.database:
            self.database.execute("INSERT INTO orders VALUES (?)", (name,))

    async def check(self, message: MessageExt) -> TransactionState:
        """Return the state of the transaction from the table."""
        (name,) = message.keys
        print(f"check of {name}", flush=True)
        found = self.database.execute("SELECT 1 FROM orders WHERE name = ?", (name,)).fetchone()
        return TransactionState.COMMIT if found else TransactionState.UNKNOWN


async def order(producer: TransactionProducer, orders: Orders, topic: str, name: str) -> None:
    try:
        async with producer.transaction(Message(topic, name.encode(), keys=name)) as tx:
            orders.store(name)
            if name == "cake":
                tx.unknown()  # as if the program crashed here
    except OutOfStockError:
        print(f"{name} is rolled back", flush=True)


async def main(namesrv: str | None, topic: str) -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        orders = Orders(database)
        config = LitePullConfig(start_from="earliest")
        async with (
            TransactionProducer(
                "transaction-example", check=orders.check, namesrv=namesrv
            ) as producer,
            LitePullConsumer("transaction-reader", namesrv=namesrv, config=config) as consumer,
        ):
            for name in ("tea", "jam", "cake"):
                await order(producer, orders, topic, name)
            await consumer.subscribe(topic)
            announced: list[str] = []
            while "cake" not in announced:
                announced += [message.body.decode() for message in await consumer.poll()]
            print(f"announced: {', '.join(sorted(announced))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="transactions")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic))
