"""Web application with one producer for all requests and a consumer in the background.

    python examples/fastapi_app.py --namesrv 127.0.0.1:9876 --port 8000
    curl localhost:8000/orders -H 'Content-Type: application/json' -d '{"item": "tea"}'
    curl localhost:8000/orders

With ROCKETMQ_NAMESRV set, you can also run `uvicorn fastapi_app:app` in this folder.
"""

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ValidationError

from rocketmq_aio import (
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    RetryLater,
    RocketMQError,
    SendUnknownError,
)

TOPIC = os.environ.get("ORDERS_TOPIC", "orders")
READY_TIMEOUT_SECONDS = 1.0


class Order(BaseModel):
    item: str


class Stored(BaseModel):
    message_id: str
    queue: str
    offset: int


class Orders:
    """Orders that the consumer has handled."""

    def __init__(self) -> None:
        self.handled: list[Order] = []

    async def handle(self, message: MessageExt) -> None:
        try:
            order = Order.model_validate_json(message.body)
        except ValidationError as error:
            raise RetryLater(-1) from error  # a retry does not help: dead-letter topic
        self.handled.append(order)


class State(TypedDict):
    producer: Producer
    consumer: PushConsumer
    orders: Orders


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[State]:
    orders = Orders()
    config = PushConfig(start_from="earliest")
    async with (
        Producer("shop-producer") as producer,
        PushConsumer("shop", on_message=orders.handle, config=config) as consumer,
    ):
        await consumer.subscribe(TOPIC)
        yield {"producer": producer, "consumer": consumer, "orders": orders}
    # Leaving `async with` waits for running handlers, commits and leaves the group.


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
    orders: Orders = request.state.orders
    return orders.handled


@app.get("/health")
async def health(request: Request) -> str:
    consumer: PushConsumer = request.state.consumer
    try:
        await consumer.ready(READY_TIMEOUT_SECONDS)
    except (RocketMQError, TimeoutError) as error:
        raise HTTPException(503, f"the consumer does not work: {error}") from error
    return "ok"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    if arguments.namesrv:
        os.environ["ROCKETMQ_NAMESRV"] = arguments.namesrv  # read by the clients
    uvicorn.run(app, port=arguments.port)
