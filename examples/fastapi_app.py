"""A web application with one producer for all requests and a consumer in the background.

    python examples/fastapi_app.py --namesrv 127.0.0.1:9876 --port 8000
    curl localhost:8000/orders -H 'Content-Type: application/json' -d '{"item": "tea"}'
    curl localhost:8000/orders

With ROCKETMQ_NAMESRV set, `uvicorn fastapi_app:app` in this folder does the same.
"""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypedDict

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ValidationError

from rocketmq_aio import (
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    RocketMQError,
    SendUnknownError,
)

TOPIC = os.environ.get("ORDERS_TOPIC", "orders")


class Order(BaseModel):
    item: str


class Stored(BaseModel):
    message_id: str
    queue: str
    offset: int


class State(TypedDict):
    producer: Producer
    orders: list[Order]
    consuming: asyncio.Task[None]


def take(message: MessageExt, orders: list[Order]) -> None:
    try:
        orders.append(Order.model_validate_json(message.body))
    except ValidationError as error:
        # It would fail for ever: note it and go on, or it would end the consumer.
        print(f"no order: {message!r}: {error}", flush=True)


async def consume(orders: list[Order]) -> None:
    config = LitePullConfig(start_from="earliest")
    # Opened by the task that is cancelled: a message interrupted in work is not committed.
    async with LitePullConsumer("shop", config=config) as consumer:
        await consumer.subscribe(TOPIC)
        async for message in consumer:
            take(message, orders)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[State]:
    orders: list[Order] = []
    async with Producer("shop-producer") as producer:
        consuming = asyncio.create_task(consume(orders))
        yield {"producer": producer, "orders": orders, "consuming": consuming}
        consuming.cancel()
        with suppress(asyncio.CancelledError):
            await consuming


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place_order(order: Order, request: Request) -> Stored:
    producer: Producer = request.state.producer
    try:
        result = await producer.send(Message(TOPIC, order.model_dump_json().encode()))
    except SendUnknownError as error:
        raise HTTPException(504, f"it may have been stored: {error}") from error
    except RocketMQError as error:
        raise HTTPException(503, f"it was not stored: {error}") from error
    return Stored(message_id=result.message_id, queue=str(result.queue), offset=result.queue_offset)


@app.get("/orders")
async def list_orders(request: Request) -> list[Order]:
    orders: list[Order] = request.state.orders
    return orders


@app.get("/health")
async def health(request: Request) -> str:
    if request.state.consuming.done():
        raise HTTPException(503, "the consumer has ended")
    return "ok"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    if arguments.namesrv:
        os.environ["ROCKETMQ_NAMESRV"] = arguments.namesrv  # where the clients look
    uvicorn.run(app, port=arguments.port)
