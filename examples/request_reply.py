"""Send requests over a topic and reply to them: a remote call through the broker.

python examples/request_reply.py --namesrv 127.0.0.1:9876 --topic questions
"""

import argparse
import asyncio

from rocketmq_aio import Message, MessageExt, Producer, PushConsumer

QUESTIONS = ("tea?", "jam?", "cake?")


async def main(namesrv: str | None, topic: str) -> None:
    async with (
        Producer("questions-asked", namesrv=namesrv) as asking,
        Producer("questions-answered", namesrv=namesrv) as answering,
    ):

        async def answer(question: MessageExt) -> None:
            await answering.reply(question, b"yes, " + question.body.removesuffix(b"?"))

        async with PushConsumer("questions", on_message=answer, namesrv=namesrv) as consumer:
            await consumer.subscribe(topic)
            await consumer.ready()
            calls = [asking.request(Message(topic, q.encode()), 10) for q in QUESTIONS]
            for question, reply in zip(QUESTIONS, await asyncio.gather(*calls), strict=True):
                print(f"{question} {reply.body.decode()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", help="host:port (default: ROCKETMQ_NAMESRV)")
    parser.add_argument("--topic", default="questions")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.namesrv, arguments.topic))
