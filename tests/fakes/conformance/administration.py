"""Administration of topics, groups and offsets, on brokers and name servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocketmq_aio.embedded.broker.admin import KEPT_SETTINGS
from rocketmq_aio.embedded.codes import OtherCode
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.pull import PullMessageResponse
from tests.fakes.conformance.case_env import (
    QUEUES,
    Case,
    CaseEnv,
    eventually,
    everything,
    is_unanswered,
    pull,
    pull_header,
    send,
)
from tests.fakes.conformance.membership import heartbeat
from tests.fakes.conformance.offsets import offset, query, update
from tests.fakes.raw_client import RawClient

OFFSET_TABLE = "offsetTable"


Ext = Mapping[str, str]


async def ask(client: RawClient, code: int, ext: Ext | None = None, body: bytes = b"") -> Command:
    return await client.answer(client.send_fields(code, ext, body))


async def body_of(client: RawClient, code: int, ext: Ext | None = None) -> dict[str, Any]:
    answer = await ask(client, code, ext)
    assert answer.code == 0, answer
    found: dict[str, Any] = read_body(answer.body, dict)
    return found


async def reset_offset(client: RawClient, env: CaseEnv) -> Command:
    """Reset the offsets of the group in all queues of the topic to the earliest."""
    ext = {"group": env.group, "topic": env.topic, "timestamp": "0", "isForce": "true"}
    return await ask(client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)


async def put_topic(client: RawClient, topic: str, queues: int = 1, **changes: str) -> Command:
    ext = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    ext |= {"readQueueNums": str(queues), "writeQueueNums": str(queues), "order": "false"}
    return await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, ext | changes)


async def put_group(client: RawClient, group: str, settings: str = "") -> Command:
    body = f'{{"groupName":"{group}"{settings}}}'.encode()
    return await ask(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def topics(client: RawClient) -> dict[str, Any]:
    table = await body_of(client, RequestCode.GET_ALL_TOPIC_CONFIG)
    found: dict[str, Any] = table["topicConfigTable"]
    return found


async def groups(client: RawClient) -> dict[str, Any]:
    table = await body_of(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    found: dict[str, Any] = table["subscriptionGroupTable"]
    return found


def invalid(env: CaseEnv) -> int:
    return 29 if env.is_5 else 1


async def a_topic_is_created_changed_and_deleted(env: CaseEnv) -> None:
    name = f"{env.topic}-new"
    async with env.client() as client:
        made = await put_topic(client, name, 2)
        first = (await topics(client))[name]
        await put_topic(client, name, 3, perm="4")
        second = (await topics(client))[name]
        gone = await ask(client, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
        again = await ask(client, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
        left = await topics(client)

    expected: dict[str, Any] = {
        "topicName": name,
        "readQueueNums": 2,
        "writeQueueNums": 2,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    expected |= {"attributes": {}} if env.is_5 else {}
    assert [made.code, gone.code, again.code] == [0, 0, 0]
    assert first == expected
    assert second == expected | {"readQueueNums": 3, "writeQueueNums": 3, "perm": 4}
    assert name not in left


async def invalid_and_reserved_topic_names_are_rejected(env: CaseEnv) -> None:
    async with env.client() as client:
        blank = await put_topic(client, " ")
        characters = await put_topic(client, "no spaces")
        long = await put_topic(client, "a" * 128)
        reserved = await put_topic(client, "SELF_TEST_TOPIC")
        cluster = await put_topic(client, "DefaultCluster")
        kept = await ask(client, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "SELF_TEST_TOPIC"})

    rejected = (blank, characters, long, reserved, cluster, kept)
    assert [each.code for each in rejected] == [invalid(env)] * 6
    long_name, rule = "a" * 128, "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    faults = [f": no spaces, {rule}", f": {long_name}, is longer than topic max length: 127"]
    if not env.is_5:
        faults = [f" {rule}", " is longer than topic max length."]
    assert [each.remark for each in rejected] == [
        "The specified topic is blank.",
        *(f"The specified topic{fault}" for fault in faults),
        "The topic[SELF_TEST_TOPIC] is conflict with system topic.",
        "The topic[DefaultCluster] is conflict with system topic.",
        "The topic[SELF_TEST_TOPIC] is conflict with system topic.",
    ]


async def attributes_are_added_changed_and_removed_from_5_on(env: CaseEnv) -> None:
    if not env.is_5:
        return
    name = f"{env.topic}-new"
    async with env.client() as client:
        await put_topic(client, name, attributes="+message.type=FIFO,+queue.type=SimpleCQ")
        made = (await topics(client))[name]["attributes"]
        await put_topic(client, name, attributes="-message.type")
        changed = (await topics(client))[name]["attributes"]
        unknown = await put_topic(client, name, attributes="+colour=red")
        fixed = await put_topic(client, name, attributes="+queue.type=BatchCQ")
        wrong = [
            await put_topic(client, name, attributes=change)
            for change in (
                "+message.type=fifo",
                "+reserve.time=-2",
                "+reserve.time=x",
                "-message.type",
            )
        ]

    assert made == {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    assert changed == {"queue.type": "SimpleCQ"}
    assert [each.code for each in (unknown, fixed, *wrong)] == [1] * 6


async def attributes_of_groups_are_checked_from_5_on(env: CaseEnv) -> None:
    if not env.is_5:
        return
    async with env.client() as client:
        made = await put_group(client, env.group, ',"attributes":{"+priority.factor":"50"}')
        wrong = [
            await put_group(client, name, f',"attributes":{{"{change}"}}')
            for name in (env.group, f"{env.group}-2")
            for change in ('+priority.factor":"101', '+priority.factor":"x', '+factor":"1', '-a":"')
        ]
        found = await groups(client)

    assert [made.code, *(each.code for each in wrong)] == [0, *[1] * 8]
    assert found[env.group]["attributes"] == {"priority.factor": "50"}
    assert f"{env.group}-2" not in found


async def a_missing_topic_has_no_statistics(env: CaseEnv) -> None:
    async with env.client() as client:
        stats = await ask(client, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "missing-topic"})
        config = await ask(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "missing-topic"})

    assert (stats.code, stats.remark) == (17, "topic[missing-topic] not exist")
    assert config.code == (17 if env.is_5 else 3)


async def statistics_describe_queues_and_progress(env: CaseEnv) -> None:
    async with env.client() as client:
        await put_group(client, env.group)
        await send(client, env, b"one")
        await send(client, env, b"two")
        await everything(client, env, 2)
        await client.ask(update(env, 1))
        stats = await body_of(client, RequestCode.GET_TOPIC_STATS_INFO, {"topic": env.topic})
        ext = {"consumerGroup": env.group, "topic": env.topic}
        progress = await body_of(client, RequestCode.GET_CONSUME_STATS, ext)
        listed = await body_of(client, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": env.topic})

    queues = {read_body(key.encode(), dict)["queueId"]: v for key, v in stats[OFFSET_TABLE].items()}
    assert len(queues) == QUEUES
    assert (queues[0]["minOffset"], queues[0]["maxOffset"]) == (0, 2)
    assert (queues[0]["lastUpdateTimestamp"] > 0, queues[1]["lastUpdateTimestamp"]) == (True, 0)
    reached = {
        read_body(key.encode(), dict)["queueId"]: (each["brokerOffset"], each["consumerOffset"])
        for key, each in progress[OFFSET_TABLE].items()
    }
    assert reached == {0: (2, 1)} | dict.fromkeys(range(1, QUEUES), (0, 0))
    assert listed["groupList"] == [env.group]


async def progress_of_all_groups_is_that_of_all_topics_or_of_ordered_ones(env: CaseEnv) -> None:
    ordered = f"{env.topic}-ordered"
    async with env.client() as client:
        await put_topic(client, ordered, order="true")
        await put_group(client, env.group)
        for topic in (env.topic, ordered):
            header = update(env, 0)
            await client.ask(type(header)(**{**fields(header), "topic": topic}))
        tables = [
            await body_of(client, RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": is_order})
            for is_order in ("false", "true")
        ]

    def listed(table: dict[str, Any]) -> set[str]:
        [stats] = [each[env.group] for each in table["consumeStatsList"] if env.group in each]
        keys = {key for each in stats for key in each[OFFSET_TABLE]}
        return {read_body(key.encode(), dict)["topic"] for key in keys}

    # 4.9 does not store that a topic is ordered.
    assert listed(tables[0]) == {env.topic, ordered}
    assert listed(tables[1]) == ({ordered} if env.is_5 else set())


async def statistics_of_unknown_names_are_errors(env: CaseEnv) -> None:
    async with env.client() as client:
        answers = [
            await ask(client, RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": n, "statsKey": key})
            for n, key in (("TOPIC_PUT_NUMS", "missing-topic"), ("NO_SUCH_NUMS", env.topic))
        ]

    assert [(each.code, each.remark) for each in answers] == [
        (1, "The stats <TOPIC_PUT_NUMS> <missing-topic> not exist"),
        (1, f"The stats <NO_SUCH_NUMS> <{env.topic}> not exist"),
    ]


async def consume_rates_are_those_of_the_last_minute(env: CaseEnv) -> None:
    stats = {"statsName": "GROUP_GET_NUMS", "statsKey": f"{env.topic}@{env.group}"}
    async with env.client() as client:
        await put_group(client, env.group)
        await send(client, env, b"one")
        ext = {"consumerGroup": env.group, "topic": env.topic}

        async def is_counted() -> bool:
            await everything(client, env, 1)
            await client.ask(update(env, 1))
            progress = await body_of(client, RequestCode.GET_CONSUME_STATS, ext)
            data = await ask(client, RequestCode.VIEW_BROKER_STATS_DATA, stats)
            if data.code:  # before the first pull is counted
                return False
            minute = read_body(data.body, dict)["statsMinute"]
            return bool(min(progress["consumeTps"], minute["sum"], minute["tps"]) > 0)

        # Real brokers take samples every ten seconds.
        assert await eventually(is_counted, 40.0)


async def a_group_is_created_changed_and_deleted(env: CaseEnv) -> None:
    async with env.client() as client:
        await put_group(client, env.group)
        made = (await groups(client))[env.group]
        await put_group(client, env.group, ',"retryMaxTimes":3,"consumeEnable":false')
        changed = (await groups(client))[env.group]
        await send(client, env, b"body")
        denied = await client.ask(pull_header(env, 0))
        await ask(
            client,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            {"groupName": env.group, "cleanOffset": "true", "removeOffset": "true"},
        )
        left = await groups(client)

    assert (made["retryQueueNums"], made["retryMaxTimes"], made["consumeEnable"]) == (1, 16, True)
    assert (changed["retryMaxTimes"], changed["consumeEnable"]) == (3, False)
    assert (denied.code, denied.remark) == (16, f"subscription group no permission, {env.group}")
    assert env.group not in left


async def requests_create_groups_by_valid_names_from_5_on(env: CaseEnv) -> None:
    if not env.is_5:
        return
    async with env.client() as client:
        config = await ask(client, OtherCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": env.group})
        pulled = await client.ask(pull_header(env, 0, consumer_group="no group"))
        found = await groups(client)

    assert (config.code, pulled.code) == (0, 26)
    assert env.group in found
    assert "no group" not in found


async def a_held_pull_is_refused_when_the_group_may_not_consume_any_more(env: CaseEnv) -> None:
    async with env.client() as consumer, env.client() as client:
        await put_group(client, env.group)
        held = consumer.send(pull_header(env, 0))
        assert await is_unanswered(consumer, held)
        await put_group(client, env.group, ',"consumeEnable":false')
        await send(client, env, b"body")
        refused = await consumer.answer(held)

    assert (refused.code, refused.remark) == (16, f"subscription group no permission, {env.group}")


async def a_held_pull_ends_at_the_reset_offset_from_5_on(env: CaseEnv) -> None:
    async with env.client() as consumer, env.client() as client:
        await put_group(client, env.group)
        await send(client, env, b"one")
        await everything(client, env, 1)
        await commit_all(client, env, 1)
        held = consumer.send(pull_header(env, 1))
        assert await is_unanswered(consumer, held)
        await reset_offset(client, env)
        await send(client, env, b"two")
        answer = await consumer.answer(held)

    assert (answer.code, answer.remark) == ((21, "OFFSET_RESET") if env.is_5 else (0, "FOUND"))
    assert read_header(answer, PullMessageResponse).next_begin_offset == (0 if env.is_5 else 2)


async def clients_that_are_not_connected_are_errors(env: CaseEnv) -> None:
    async with env.client() as client:
        producers = await ask(
            client, RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": env.group}
        )
        running = await ask(
            client,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            {"consumerGroup": env.group, "clientId": "c@1"},
        )

    assert (producers.code, producers.remark) == (1, f"the producer group[{env.group}] not exist")
    remark = f"The Consumer <{env.group}> <c@1> not online"
    assert (running.code, running.remark) == (1, remark)


async def an_offset_reset_moves_offline_groups_from_5_on(env: CaseEnv) -> None:
    async with env.client() as client:
        await put_group(client, env.group)
        for body in (b"one", b"two"):
            await send(client, env, body)
        await everything(client, env, 2)
        await commit_all(client, env, 2)
        answer = await reset_offset(client, env)
        reached = await offset(client, query(env))
        await client.ask(update(env, 2))
        kept = await offset(client, query(env))
        _, moved = await pull(client, pull_header(env, 2, suspend_timeout_millis=0, sys_flag=4))
        await client.ask(update(env, 1))
        later = await offset(client, query(env))

    if env.is_5:
        assert answer.code == 0, answer
        assert (reached, kept, moved.next_begin_offset, later) == (0, 0, 0, 1)
    else:
        assert answer.code == 206
        assert (reached, kept, moved.next_begin_offset, later) == (2, 2, 2, 1)


async def commit_all(client: RawClient, env: CaseEnv, first: int) -> None:
    """Commit the offset *first* in queue 0, and 0 in the others."""
    for number in range(QUEUES):
        header = update(env, first if number == 0 else 0)
        await client.ask(type(header)(**{**fields(header), "queue_id": number}))


def fields(header: Any) -> dict[str, Any]:  # noqa: ANN401 - any header
    return {name: getattr(header, name) for name in header.__struct_fields__}


async def a_reset_to_an_offset_beyond_the_end_is_refused_from_5_on(env: CaseEnv) -> None:
    if not env.is_5:
        return
    ext = {"group": env.group, "topic": env.topic, "timestamp": "0", "isForce": "true"}
    async with env.client() as client:
        await put_group(client, env.group)
        answer = await ask(
            client,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            ext | {"queueId": "0", "offset": "99"},
        )

    assert (answer.code, answer.remark) == (
        *(1, "Target offset 99 not in consume queue range [0-0]"),
    )


async def groups_are_described_by_the_broker_from_5_on(env: CaseEnv) -> None:
    codes = (OtherCode.QUERY_TOPICS_BY_CONSUMER, OtherCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    ext = {"group": env.group, "topic": env.topic}
    async with env.client() as client:
        answers = [await ask(client, code, ext) for code in codes]

    assert [each.code for each in answers] == ([0, 0] if env.is_5 else [3, 3])


async def an_offset_reset_is_sent_to_members_before_5(env: CaseEnv) -> None:
    async with env.client() as member, env.client() as client:
        await heartbeat(member, env, "c@1")
        for number in range(QUEUES):
            header = update(env, 0)
            await client.ask(type(header)(**{**fields(header), "queue_id": number}))
        answer = await reset_offset(client, env)
        assert answer.code == 0, answer
        if env.is_5:
            return
        pushed = await member.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)

    assert pushed.is_oneway
    assert pushed.ext_fields() == {
        "group": env.group,
        "topic": env.topic,
        "timestamp": "0",
        "isForce": "false",
    }
    assert len(read_body(pushed.body, dict)[OFFSET_TABLE]) == QUEUES


async def offsets_are_cloned_of_one_topic(env: CaseEnv) -> None:
    copy = f"{env.group}-2"
    fields = {"srcGroup": env.group, "destGroup": copy}
    found = []
    async with env.client() as client:
        for group in (env.group, copy):
            await put_group(client, group)
        await send(client, env, b"body")
        await everything(client, env, 1)
        await client.ask(update(env, 1))
        for ext in (fields, fields | {"topic": ""}, fields | {"topic": env.topic}):
            assert (await ask(client, OtherCode.CLONE_GROUP_OFFSET, ext)).code == 0
            found.append(await offset(client, query(env, consumer_group=copy)))

    assert found == [0, 0, 1]


async def name_servers_keep_values_by_namespace_and_key(env: CaseEnv) -> None:
    key = {"namespace": env.group, "key": "k"}
    async with RawClient(env.namesrv) as client:
        missing = await ask(client, RequestCode.GET_KV_CONFIG, key)
        await ask(client, RequestCode.PUT_KV_CONFIG, {**key, "value": "v"})
        found = await ask(client, RequestCode.GET_KV_CONFIG, key)
        deleted = await ask(client, RequestCode.DELETE_KV_CONFIG, key)
        gone = await ask(client, RequestCode.GET_KV_CONFIG, key)

    remark = f"No config item, Namespace: {env.group} Key: k"
    assert (missing.code, missing.remark, gone.code, deleted.code) == (22, remark, 22, 0)
    assert found.ext_fields() == {"value": "v"}


async def settings_that_a_broker_does_not_have_are_ignored(env: CaseEnv) -> None:
    async with env.client() as client:
        changed = await ask(client, RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermision=4")
        config = await ask(client, RequestCode.GET_BROKER_CONFIG)

    assert changed.code == 0
    assert b"brokerPermission=6" in config.body
    assert b"brokerPermision=" not in config.body
    names = {line.partition(b"=")[0].decode() for line in config.body.splitlines()}
    assert KEPT_SETTINGS.keys() <= names


async def name_servers_list_brokers_and_topics(env: CaseEnv) -> None:
    async with RawClient(env.namesrv) as client:
        cluster = await body_of(client, RequestCode.GET_BROKER_CLUSTER_INFO)
        (name,) = cluster["brokerAddrTable"]

        async def is_listed() -> bool:
            listed = await body_of(client, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            return {env.topic, name, "DefaultCluster"} <= set(listed["topicList"])

        assert await eventually(is_listed)

    assert cluster["clusterAddrTable"] == {"DefaultCluster": [name]}
    assert cluster["brokerAddrTable"][name]["brokerAddrs"] == {"0": env.broker}


CASES: tuple[Case, ...] = (
    a_topic_is_created_changed_and_deleted,
    invalid_and_reserved_topic_names_are_rejected,
    attributes_are_added_changed_and_removed_from_5_on,
    attributes_of_groups_are_checked_from_5_on,
    a_missing_topic_has_no_statistics,
    statistics_describe_queues_and_progress,
    progress_of_all_groups_is_that_of_all_topics_or_of_ordered_ones,
    statistics_of_unknown_names_are_errors,
    consume_rates_are_those_of_the_last_minute,
    a_group_is_created_changed_and_deleted,
    requests_create_groups_by_valid_names_from_5_on,
    a_held_pull_is_refused_when_the_group_may_not_consume_any_more,
    a_held_pull_ends_at_the_reset_offset_from_5_on,
    clients_that_are_not_connected_are_errors,
    an_offset_reset_moves_offline_groups_from_5_on,
    a_reset_to_an_offset_beyond_the_end_is_refused_from_5_on,
    an_offset_reset_is_sent_to_members_before_5,
    groups_are_described_by_the_broker_from_5_on,
    offsets_are_cloned_of_one_topic,
    name_servers_keep_values_by_namespace_and_key,
    settings_that_a_broker_does_not_have_are_ignored,
    name_servers_list_brokers_and_topics,
)
