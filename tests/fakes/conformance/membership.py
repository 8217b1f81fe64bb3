"""Members of a group, and notifications of changes."""

from __future__ import annotations

import msgspec

from rocketmq_aio.model.address import parse_address
from rocketmq_aio.protocol.bodies import (
    CheckClientRequest,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    SubscriptionData,
)
from rocketmq_aio.protocol.codes import CLIENT_VERSION, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command, encode_command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.groups import (
    CheckClientConfig,
    ConsumerConnections,
    GetConsumerConnectionList,
    GetConsumerListByGroup,
    Heartbeat,
    UnregisterClient,
)
from rocketmq_aio.protocol.subscription import java_hash
from tests.fakes.conformance.case_env import Case, CaseEnv, eventually
from tests.fakes.raw_client import RawClient

NOTIFIED = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
LANGUAGE_AT = 10  # in a frame with a binary header
GO = 9


async def heartbeat(
    client: RawClient, env: CaseEnv, client_id: str, *, expression: str = "*", version: int = 1
) -> Command:
    """Join the group of the case; return the response."""
    tags = [] if expression == "*" else [expression]
    subscription = SubscriptionData(
        topic=env.topic,
        sub_string=expression,
        tags_set=tags,
        code_set=[java_hash(tag) for tag in tags],
        sub_version=version,
    )
    return await client.ask(Heartbeat(), heartbeat_body(env, client_id, [subscription]))


def heartbeat_body(
    env: CaseEnv,
    client_id: str,
    subscriptions: list[SubscriptionData],
    *,
    fingerprint: int = 0,
    without_sub: bool = False,
) -> bytes:
    consumer = ConsumerData(
        group_name=env.group,
        consume_type="CONSUME_ACTIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=subscriptions,
    )
    data = HeartbeatData(
        client_id=client_id,
        consumer_data_set=[consumer],
        heartbeat_fingerprint=fingerprint,
        without_sub=without_sub,
    )
    return msgspec.json.encode(data)


async def members(client: RawClient, env: CaseEnv) -> list[str] | None:
    """Return the sorted client ids of the group; None if the broker returns an error."""
    answer = await client.ask(GetConsumerListByGroup(consumer_group=env.group))
    if answer.code == 1:
        assert answer.body == b""
        return None
    assert answer.code == 0, answer
    return sorted(read_body(answer.body, ConsumerList).consumer_id_list)


async def a_group_without_members_is_an_error(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await client.ask(GetConsumerListByGroup(consumer_group=env.group))

    assert answer.code == 1
    assert answer.remark is not None
    assert answer.remark.startswith("no consumer for this group")


async def members_are_those_that_sent_a_heartbeat(env: CaseEnv) -> None:
    async with env.client() as one, env.client() as two:
        await heartbeat(one, env, "c@1")
        alone = await members(one, env)
        await heartbeat(two, env, "c@2")

        assert alone == ["c@1"]
        assert await members(one, env) == ["c@1", "c@2"]


async def one_client_over_two_connections_is_listed_twice(env: CaseEnv) -> None:
    async with env.client() as one, env.client() as two:
        await heartbeat(one, env, "c@1")
        await heartbeat(two, env, "c@1")

        assert await members(one, env) == ["c@1", "c@1"]


async def an_unregistered_client_is_not_a_member(env: CaseEnv) -> None:
    leave = UnregisterClient(client_id="c@1", consumer_group=env.group)
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        answer = await client.ask(leave)

        assert answer.code == 0
        assert await members(client, env) is None


async def unregistering_applies_to_its_connection_only(env: CaseEnv) -> None:
    leave = UnregisterClient(client_id="c@1", consumer_group=env.group)
    async with env.client() as one, env.client() as two:
        await heartbeat(one, env, "c@1")
        await two.ask(leave)

        assert await members(two, env) == ["c@1"]


async def a_closed_connection_ends_its_memberships(env: CaseEnv) -> None:
    async with env.client() as stays:
        await heartbeat(stays, env, "c@1")
        async with env.client() as leaves:
            await heartbeat(leaves, env, "c@2")

        async def is_alone() -> bool:
            return await members(stays, env) == ["c@1"]

        assert await eventually(is_alone)


async def all_members_are_told_when_one_joins_or_leaves(env: CaseEnv) -> None:
    async with env.client() as one:
        await heartbeat(one, env, "c@1")
        own = await one.request(NOTIFIED)
        async with env.client() as two:
            await heartbeat(two, env, "c@2")
            joined = [await one.request(NOTIFIED), await two.request(NOTIFIED)]
        left = await one.request(NOTIFIED)

    for notice in (own, *joined, left):
        assert notice.is_oneway
        assert notice.ext_fields() == {"consumerGroup": env.group}


async def brokers_from_5_say_whether_short_heartbeats_will_do(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await heartbeat(client, env, "c@1")

    expected = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert answer.ext_fields() == (expected if env.is_5 else {})


async def a_short_heartbeat_is_compared_by_fingerprint(env: CaseEnv) -> None:
    subscription = SubscriptionData(topic=env.topic, sub_string="*")
    bodies = (
        heartbeat_body(env, "c@1", [subscription], fingerprint=77),
        heartbeat_body(env, "c@1", [], fingerprint=77, without_sub=True),
        heartbeat_body(env, "c@1", [], fingerprint=78, without_sub=True),
    )
    async with env.client() as client:
        answers = [await client.ask(Heartbeat(), body) for body in bodies]

    changed = [answer.ext_fields().get("IS_SUB_CHANGE") for answer in answers]
    assert changed == (["false", "false", "true"] if env.is_5 else [None, None, None])


async def a_heartbeat_without_a_body_is_an_error(env: CaseEnv) -> None:
    async with env.client() as client:
        assert (await client.ask(Heartbeat())).code == 1


async def connections(client: RawClient, env: CaseEnv) -> ConsumerConnections:
    answer = await client.ask(GetConsumerConnectionList(consumer_group=env.group))
    assert answer.code == 0, answer
    return read_body(answer.body, ConsumerConnections)


async def a_group_without_members_has_no_connections(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await client.ask(GetConsumerConnectionList(consumer_group=env.group))

    assert (answer.code, answer.body) == (ResponseCode.CONSUMER_NOT_ONLINE, b"")


async def the_connections_of_a_group_are_listed_with_their_addresses(env: CaseEnv) -> None:
    async with env.client() as one, env.client() as two:
        await heartbeat(one, env, "c@1")
        await heartbeat(two, env, "c@1")
        found = await connections(one, env)

    listed = found.connection_set
    assert {(each.client_id, each.version) for each in listed} == {("c@1", CLIENT_VERSION)}
    assert len({each.client_addr for each in listed}) == len(listed) == 2
    assert all(parse_address(each.client_addr)[0] == "127.0.0.1" for each in listed)
    assert (found.consume_type, found.message_model) == ("CONSUME_ACTIVELY", "CLUSTERING")


async def connections_are_listed_with_the_language_of_their_clients(env: CaseEnv) -> None:
    body = heartbeat_body(env, "c@1", [SubscriptionData(topic=env.topic, sub_string="*")])
    heard = Command(RequestCode.HEART_BEAT, 1, body=body)
    text = encode_command(heard, {}, version=441).replace(b'"PYTHON"', b'"RUST"  ')
    binary = bytearray(encode_command(heard, {}, binary=True, version=442))
    binary[LANGUAGE_AT] = GO
    async with env.client() as one, env.client() as two, env.client() as three:
        for client, frame in ((one, text), (two, bytes(binary))):
            client.write(frame)
            await client.answer(1)
        await heartbeat(three, env, "c@3")
        found = await connections(three, env)

    listed = sorted((each.version, each.language) for each in found.connection_set)
    assert listed == [(441, "RUST"), (442, "GO"), (CLIENT_VERSION, "PYTHON")]


async def of_two_subscriptions_to_a_topic_the_newer_one_holds(env: CaseEnv) -> None:
    async with env.client() as one, env.client() as two:
        await heartbeat(one, env, "c@1", expression="TagA", version=2)
        await heartbeat(two, env, "c@2", expression="TagB", version=1)
        older_last = await connections(one, env)
        await heartbeat(two, env, "c@2", expression="TagB", version=3)
        newer_last = await connections(one, env)

    assert older_last.subscription_table[env.topic].sub_string == "TagA"
    held = newer_last.subscription_table[env.topic]
    assert (held.sub_string, held.tags_set, held.sub_version) == ("TagB", ["TagB"], 3)


async def only_the_topics_of_the_last_heartbeat_are_subscribed_to(env: CaseEnv) -> None:
    here, elsewhere = (
        SubscriptionData(topic=topic, sub_string="*", sub_version=1)
        for topic in (env.topic, f"{env.topic}-2")
    )
    async with env.client() as one, env.client() as two:
        await one.ask(Heartbeat(), heartbeat_body(env, "c@1", [here, elsewhere]))
        both = await connections(one, env)
        await two.ask(Heartbeat(), heartbeat_body(env, "c@2", [here]))
        alone = await connections(one, env)

    assert both.subscription_table.keys() == {here.topic, elsewhere.topic}
    assert alone.subscription_table.keys() == {here.topic}


async def an_sql_expression_can_be_checked(env: CaseEnv) -> None:
    async with env.client() as client:
        codes = [
            (await client.ask(CheckClientConfig(), check_body(env, expression))).code
            for expression in ("price > 3", "(BAD")
        ]

    assert codes == [0, 23]


def check_body(env: CaseEnv, expression: str) -> bytes:
    subscription = SubscriptionData(
        topic=env.topic, sub_string=expression, sub_version=1, expression_type="SQL92"
    )
    asked = CheckClientRequest(client_id="c@1", group=env.group, subscription_data=subscription)
    return msgspec.json.encode(asked)


CASES: tuple[Case, ...] = (
    a_group_without_members_is_an_error,
    members_are_those_that_sent_a_heartbeat,
    one_client_over_two_connections_is_listed_twice,
    an_unregistered_client_is_not_a_member,
    unregistering_applies_to_its_connection_only,
    a_closed_connection_ends_its_memberships,
    all_members_are_told_when_one_joins_or_leaves,
    brokers_from_5_say_whether_short_heartbeats_will_do,
    a_short_heartbeat_is_compared_by_fingerprint,
    a_heartbeat_without_a_body_is_an_error,
    a_group_without_members_has_no_connections,
    the_connections_of_a_group_are_listed_with_their_addresses,
    connections_are_listed_with_the_language_of_their_clients,
    of_two_subscriptions_to_a_topic_the_newer_one_holds,
    only_the_topics_of_the_last_heartbeat_are_subscribed_to,
    an_sql_expression_can_be_checked,
)
