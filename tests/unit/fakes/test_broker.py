"""Controls of the fake broker that the conformance cases do not cover."""

from __future__ import annotations

import pytest

from rocketmq_aio.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND
from tests.fakes.broker import FakeBroker
from tests.fakes.conformance.case_env import (
    CaseEnv,
    messages_in,
    pull,
    pull_header,
    send,
    send_header,
)
from tests.fakes.conformance.membership import heartbeat, members
from tests.fakes.conformance.offsets import query, update
from tests.fakes.raw_client import RawClient


def env_of(broker: FakeBroker) -> CaseEnv:
    broker.create_topic("orders")
    return CaseEnv("", broker.address, broker.version.name, "orders", "billing")


async def test_a_put_message_is_pulled_like_a_sent_one() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        env = env_of(broker)
        broker.put("orders", b"body", properties="TAGS\x01new\x02")
        answer, _ = await pull(client, pull_header(env, 0))
        (message,) = messages_in(answer, env)

        assert (message.body, message.tags) == (b"body", "new")
        assert [stored.body for stored in broker.messages("orders")] == [b"body"]


async def test_a_pull_of_deleted_messages_is_corrected_to_the_minimum() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        env = env_of(broker)
        for _ in range(5):
            broker.put("orders", b"body")
        broker.topics["orders"].queues[0].drop_before(3)
        moved, fields = await pull(client, pull_header(env, 1))
        found, _ = await pull(client, pull_header(env, 3))

        assert (moved.code, fields.next_begin_offset, fields.min_offset) == (21, 3, 3)
        assert [message.queue_offset for message in messages_in(found, env)] == [3, 4]
        # And the offset of a group that never committed is no longer taken for 0.
        assert (await client.ask(query(env))).code == 22


async def test_tests_can_read_and_set_committed_offsets() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        env = env_of(broker)
        broker.commit("billing", "orders", 0, 7)
        seen = (await client.ask(query(env))).ext_fields()
        await client.ask(update(env, 9))

        assert seen == {"offset": "7"}
        assert broker.committed("billing", "orders", 0) == 9
        assert broker.committed("billing", "orders", 1) is None


async def test_sql_that_does_not_parse_matches_everything() -> None:
    header = {"subscription": "colour = 'red'", "expression_type": "SQL92"}
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        env = env_of(broker)
        for colour in ("red", "blue"):
            broker.put("orders", colour.encode(), properties=f"colour\x01{colour}\x02")
        filtered, _ = await pull(client, pull_header(env, 0, **header))
        header["subscription"] = "colour ="
        unfiltered, _ = await pull(client, pull_header(env, 0, **header))

        assert len(messages_in(unfiltered, env)) == 2
        assert [message.body for message in messages_in(filtered, env)] == [b"red"]


async def test_sends_create_topics_only_if_enabled() -> None:
    async with FakeBroker(auto_create_topics=False) as broker, RawClient(broker.address) as client:
        env = env_of(broker)

        assert (await client.ask(send_header(env, topic="new"), b"x")).code == 17
        assert "new" not in broker.topics


@pytest.mark.parametrize(("version", "listed"), [("5.5.0", None), ("4.9.7", ["c@1"])])
async def test_members_create_groups_only_if_enabled(
    version: str, listed: list[str] | None
) -> None:
    broker = FakeBroker(version=version, auto_create_groups=False)
    async with broker, RawClient(broker.address) as client:
        env = env_of(broker)
        joined = await heartbeat(client, env, "c@1")
        refused = await client.ask(pull_header(env, 0))
        seen = await members(client, env)
        broker.create_group("billing")
        accepted = await client.ask(pull_header(env, 0, sys_flag=PULL_SUBSCRIPTION))

        assert (joined.code, refused.code, accepted.code) == (0, 26, 19)
        assert seen == listed


async def test_a_pull_needs_read_permission() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        env = env_of(broker)
        broker.create_topic("orders", perm=2)

        assert (await client.ask(pull_header(env, 0))).code == 16


async def test_a_restart_keeps_messages_and_offsets_but_no_members() -> None:
    async with FakeBroker() as broker:
        env = env_of(broker)
        async with RawClient(broker.address) as client:
            await heartbeat(client, env, "c@1")
            await send(client, env, b"body")
            await client.ask(update(env, 1))
            await broker.restart()
        async with RawClient(broker.address) as client:
            assert await members(client, env) is None
            assert (await client.ask(query(env))).ext_fields() == {"offset": "1"}
            answer, _ = await pull(client, pull_header(env, 0))
            assert [message.body for message in messages_in(answer, env)] == [b"body"]


async def test_a_held_pull_ends_with_its_connection() -> None:
    flags = PULL_SUSPEND | PULL_SUBSCRIPTION
    async with FakeBroker() as broker:
        env = env_of(broker)
        async with RawClient(broker.address) as client:
            client.send(pull_header(env, 0, sys_flag=flags))
            await broker.wait_for(11)
        await broker.wait_for_connections(0)
        broker.put("orders", b"body")

        assert not any(frame.sent for frame in broker.wire)


async def test_a_pull_response_has_at_most_256_kibibytes() -> None:
    async with FakeBroker() as broker, RawClient(broker.address) as client:
        env = env_of(broker)
        for _ in range(40):
            broker.put("orders", bytes(10_000))
        answer, fields = await pull(client, pull_header(env, 0, max_msg_nums=32))

        assert fields.next_begin_offset == len(messages_in(answer, env)) == 25
