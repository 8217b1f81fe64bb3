"""Frames: unknown codes, header encodings, and invalid bytes."""

from __future__ import annotations

from rocketmq_aio.protocol.codes import BINARY_HEADER, JSON_HEADER
from rocketmq_aio.protocol.command import Command, encode_command
from rocketmq_aio.protocol.requests.offsets import GetMaxOffset
from tests.fakes.conformance.case_env import Case, CaseEnv, is_unanswered
from tests.fakes.raw_client import RawClient

NO_SUCH_CODE = 29_999
BROKER_INFO = 28

# Each at least 12 bytes: brokers since 5.1.4 wait for that many.
NOT_FRAMES = {
    "length 0": bytes(16),
    "length 3": b"\x00\x00\x00\x03" + bytes(12),
    "negative length": b"\xff\xff\xff\xfe" + bytes(12),
    "two gibibytes": b"\x7f\xff\xff\xff" + bytes(12),
    "one byte too long": b"\x00\xff\xff\xfd" + bytes(12),
    "header longer than the frame": b"\x00\x00\x00\x0c\x00\x00\x00\x09" + bytes(8),
    "unknown header encoding": b"\x00\x00\x00\x0c\x05\x00\x00\x08" + bytes(8),
    "header that is no JSON": b"\x00\x00\x00\x0c\x00\x00\x00\x08not json",
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


async def an_unknown_code_is_not_supported(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await client.answer(client.send_fields(NO_SUCH_CODE))

    assert answer.code == 3
    assert (answer.remark or "").startswith(f" request type {NO_SUCH_CODE} not supported")


async def oneway_requests_are_never_answered(env: CaseEnv) -> None:
    async with env.client() as client:
        opaque = client.send_fields(NO_SUCH_CODE, oneway=True)

        assert await is_unanswered(client, opaque)


async def only_servers_before_5_answer_in_the_encoding_of_the_request(env: CaseEnv) -> None:
    async with RawClient(env.broker, binary=True) as client:
        answer = await client.ask(GetMaxOffset(topic=env.topic, queue_id=0))

    assert (answer.code, answer.ext_fields()) == (0, {"offset": "0"})
    assert client.encoding == (JSON_HEADER if env.is_5 else BINARY_HEADER)


async def the_opaque_is_returned(env: CaseEnv) -> None:
    async with env.client() as client:
        for opaque in (0, -5, 0x7FFF_FFFF):
            client.write(encode_command(Command(BROKER_INFO, opaque), {}))

            assert (await client.answer(opaque)).code == 0


async def fields_may_be_numbers_and_unknown_ones_are_ignored(env: CaseEnv) -> None:
    header = (
        b'{"code":30,"opaque":7,"more":[],"extFields":{"topic":"%s","queueId":0,"other":true}}'
        % env.topic.encode()
    )
    word = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
    async with env.client() as client:
        client.write(word + header)

        assert (await client.answer(7)).ext_fields() == {"offset": "0"}


async def invalid_frames_close_the_connection_without_a_response(env: CaseEnv) -> None:
    for name, data in NOT_FRAMES.items():
        async with env.client() as client:
            client.write(data)

            assert await client.end() == b"", name


async def name_servers_close_connections_with_invalid_frames(env: CaseEnv) -> None:
    for name, data in NOT_FRAMES.items():
        async with RawClient(env.namesrv) as client:
            client.write(data)

            assert await client.end() == b"", name


async def bytes_may_come_one_by_one(env: CaseEnv) -> None:
    frame = encode_command(Command(BROKER_INFO, 7), {})
    async with env.client() as client:
        for at in range(len(frame)):
            client.write(frame[at : at + 1])
            await client.flush()

        assert (await client.answer(7)).code == 0


CASES: tuple[Case, ...] = (
    an_unknown_code_is_not_supported,
    oneway_requests_are_never_answered,
    only_servers_before_5_answer_in_the_encoding_of_the_request,
    the_opaque_is_returned,
    fields_may_be_numbers_and_unknown_ones_are_ignored,
    invalid_frames_close_the_connection_without_a_response,
    name_servers_close_connections_with_invalid_frames,
    bytes_may_come_one_by_one,
)
