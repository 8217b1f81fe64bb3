"""Timer messages and recalls, not known to brokers before 5.0."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode

from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.send import RecallMessage, SendMessageResponse
from tests.fakes.conformance.case_env import Case, CaseEnv, everything, send_header
from tests.fakes.raw_client import RawClient

UPDATE_BROKER_CONFIG = 25
KEY = "0123456789ABCDEF0123456789ABCDEF"
HOUR_MS = 3_600_000


async def send_timed(client: RawClient, env: CaseEnv, **timer: str) -> Command:
    """Send a message with timer properties; return the response."""
    properties = encode_properties({"UNIQ_KEY": KEY} | timer)
    return await client.ask(send_header(env, properties=properties), b"timed")


async def allow_recalls(client: RawClient, allowed: bool) -> None:
    body = f"recallMessageEnable={str(allowed).lower()}".encode()
    answer = await client.answer(client.send_fields(UPDATE_BROKER_CONFIG, {}, body))
    assert answer.code == 0, answer


async def recall(client: RawClient, env: CaseEnv, handle: str) -> Command:
    return await client.ask(RecallMessage(topic=env.topic, recall_handle=handle))


async def only_brokers_from_5_keep_a_message_until_its_time(env: CaseEnv) -> None:
    begun = time.time()
    async with env.client() as client:
        answer = await send_timed(client, env, TIMER_DELAY_MS="2500")
        (message,) = await everything(client, env, 1)

    waited = message.store_time.timestamp() - begun
    assert answer.code == 0
    assert message.body == b"timed"
    # Times are rounded down to a second, or one second less.
    assert (waited > 0.4) == env.is_5


async def a_message_that_waits_has_a_recall_handle(env: CaseEnv) -> None:
    async with env.client() as client:
        due = time.time_ns() // 1_000_000 + HOUR_MS
        answer = await send_timed(client, env, TIMER_DELIVER_MS=str(due))
        plain = await client.ask(send_header(env), b"plain")
        level = await send_timed(client, env, DELAY="1")
    handle = read_header(answer, SendMessageResponse).recall_handle

    assert read_header(plain, SendMessageResponse).recall_handle is None
    assert read_header(level, SendMessageResponse).recall_handle is None
    if not env.is_5:
        assert handle is None
        return
    assert handle is not None
    version, topic, _, millis, key = urlsafe_b64decode(handle).decode().split(" ")
    assert (version, topic, key) == ("v1", env.topic, KEY)
    assert -1000 < int(millis) - due <= 1


async def a_time_that_has_passed_is_now(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await send_timed(client, env, TIMER_DELIVER_MS="1")
        (message,) = await everything(client, env, 1)

    assert (answer.code, message.body) == (0, b"timed")


async def a_time_too_far_away_is_refused(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await send_timed(client, env, TIMER_DELAY_MS=str(4 * 24 * HOUR_MS))

    assert answer.code == (13 if env.is_5 else 0)


async def recalls_are_off_unless_switched_on(env: CaseEnv) -> None:
    async with env.client() as client:
        await allow_recalls(client, allowed=False)
        answer = await recall(client, env, "anything")

    assert answer.code == (16 if env.is_5 else 3)


async def a_recalled_message_is_not_delivered(env: CaseEnv) -> None:
    async with env.client() as client:
        await allow_recalls(client, allowed=True)
        sent = await send_timed(client, env, TIMER_DELAY_MS="4000")
        handle = read_header(sent, SendMessageResponse).recall_handle
        answer = await recall(client, env, handle or "none")
        wrong = await recall(client, env, urlsafe_b64encode(b"v1 a b 1 c").decode())
        await send_timed(client, env, TIMER_DELAY_MS="5500", TAGS="later", UNIQ_KEY=KEY[::-1])
        first, *_ = await everything(client, env, 1)
        await allow_recalls(client, allowed=False)

    if not env.is_5:
        assert (answer.code, wrong.code) == (3, 3)
        return
    assert (answer.code, wrong.code) == (0, 604)
    assert answer.ext_fields()["msgId"] == KEY
    assert first.tags == "later"


async def the_code_of_recalls_fits_a_binary_header(env: CaseEnv) -> None:
    async with RawClient(env.broker, binary=True) as client:
        answer = await recall(client, env, "anything")

    assert RequestCode.RECALL_MESSAGE < 2**15
    assert answer.code == (16 if env.is_5 else 3)


CASES: tuple[Case, ...] = (
    only_brokers_from_5_keep_a_message_until_its_time,
    a_message_that_waits_has_a_recall_handle,
    a_time_that_has_passed_is_now,
    a_time_too_far_away_is_refused,
    recalls_are_off_unless_switched_on,
    a_recalled_message_is_not_delivered,
    the_code_of_recalls_fits_a_binary_header,
)
