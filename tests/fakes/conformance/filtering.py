"""SQL92 filters: the messages that an expression selects, and rejected expressions."""

from __future__ import annotations

import msgspec

from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.bodies import (
    CheckClientRequest,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from rocketmq_aio.protocol.codes import PULL_SUBSCRIPTION, RequestCode
from rocketmq_aio.protocol.requests.pop import PopMessage
from tests.fakes.conformance.case_env import (
    Case,
    CaseEnv,
    eventually,
    everything,
    messages_in,
    pull,
    pull_header,
    send_header,
)
from tests.fakes.raw_client import RawClient

STORED = (
    {"a": "5"},
    {"a": "abc"},
    {"b": "x"},
    {"a": "abc", "b": "x"},
    {"a": "7", "b": "6"},
    {"a": "10", "b": "9"},
    {"a": "true"},
    {"a": " 5"},
    {"a": "-5", "TAGS": "t"},
    {"a": "it's"},
    {"a": "NaN"},
    {"c": "1"},
    {"d": "3000000000"},
)
EVERYTHING = "0 1 2 3 4 5 6 7 8 9 10 11 12"
SELECTED = {  # expression -> numbers of the messages in STORED that it selects
    # comparisons: text is converted to the type of the number; a message that fails does not match
    "a = 5": "0",
    "5 = a": "0",
    "a = '5'": "0",
    "a = 5.0": "0 7",
    "a <> 5": "4 5 8",
    "5 <> a": "2 4 5 8 11 12",
    "a > 4": "0 4 5",
    "a >= 7": "4 5",
    "a < 6": "0 8",
    "a <= -5": "8",
    "a > 4.5": "0 4 5 7 10",
    "a > b": "4 5",
    "a = b": "11 12",
    "a = TRUE": "6",
    "TRUE = a": "",
    "a = 'it''s'": "9",
    "TAGS = 't'": "8",
    "A = 5": "",
    # a number that fits into an int is one, and the text has to fit, too
    "d > 4": "",
    "d <> 4": "",
    "d = 3000000000": "12",
    "d > 2147483647": "",
    "d > 2147483648": "12",
    "d > 4.5": "12",
    # ranges and lists
    "a BETWEEN 5 AND 7": "0 4",
    "a not between 5 and 7": "5 8",
    "a BETWEEN -4 AND -6": "",
    "a IN ('5', 'abc')": "0 1 3",
    "a NOT IN ('5', 'abc')": "4 5 6 7 8 9 10",
    # null: comparisons with a missing property are unknown
    "a IS NULL": "2 11 12",
    "a IS NOT NULL AND b IS NULL": "0 1 6 7 8 9 10",
    "b <> 'x'": "4 5",
    "NOT (b = 'x')": "4 5",
    # logic: three values; NOT binds closer than a comparison
    "a = 5 OR b = 'x'": "0 2",
    "b = 'x' OR a = 5": "0 2 3",
    "a = 7 AND b = '6'": "4",
    "NOT (a = 5)": "4 5 8",
    "NOT a = 5": "",
    "NOT (b = 'x' AND a = 5)": "4 5 8",
    "NOT (b = 'x' OR a = 5)": "4 5",
    "a = 5 OR a = 7 AND b = '9'": "0",
    "(a = 5 OR a = 7) AND b = '6'": "4",
    "(a > 4) = TRUE": "0 4 5",
    # constants, properties and null as conditions
    "TRUE": EVERYTHING,
    "FALSE": "",
    "NULL": "",
    "a": "",
    "NOT a": "0 1 3 4 5 6 7 8 9 10",
    "a OR TRUE": EVERYTHING,
    "1 = 1": EVERYTHING,
    # what follows a complete expression is ignored
    "a = 5 LIKE 'x'": "0",
    "a = 5 0.0": "0",
    "a = /* comment */ 5": "0",
    "a = -- comment\n 5": "0",
}
TEXT_TESTS = {  # from 5.x on; 4.9 takes the words for the end of the expression
    "a CONTAINS 'b'": "1 3",
    "a NOT CONTAINS 'b'": "0 4 5 6 7 8 9 10",
    "a STARTSWITH 'a'": "1 3",
    "a ENDSWITH '5'": "0 7 8",
    "NOT (a CONTAINS 'b')": "0 2 4 5 6 7 8 9 10 11 12",
    "NOT (a NOT CONTAINS 'b')": "1 2 3 11 12",
    "NOT (a CONTAINS '')": EVERYTHING,
    "5 NOT CONTAINS 'b'": "",
}
REJECTED = (
    "a >",
    "(a = 5",
    "a = 5 AND",
    "a == 5",
    "a != 5",
    'a = "5"',
    "a = 'x",
    "a.b = 1",
    "a > 'x'",
    "a > TRUE",
    "a = NULL",
    "a > 0.0",
    "TRUE = 1",
    "a IN ()",
    "a IN (5)",
    "'a' IN ('a')",
    "a BETWEEN 'a' AND 'b'",
    "a BETWEEN 6 AND 4",
    "a IS TRUE",
    "5",
    "'a'",
    "",
    "a = 99999999999999999999",
)


def sql(expression: str, env: CaseEnv, version: int = 1) -> SubscriptionData:
    return SubscriptionData(
        topic=env.topic,
        sub_string=expression,
        tags_set=[],
        code_set=[],
        sub_version=version,
        expression_type="SQL92",
    )


async def store(client: RawClient, env: CaseEnv) -> None:
    for properties in STORED:
        await client.ask(send_header(env, properties=encode_properties(properties)), b"body")
    await everything(client, env, len(STORED))


async def selected(client: RawClient, env: CaseEnv, expression: str) -> str:
    """Return the offsets that *expression* selects."""
    offsets: list[int] = []
    offset, by = 0, {"subscription": expression, "expression_type": "SQL92"}
    while offset < len(STORED):
        header = pull_header(env, offset, sys_flag=PULL_SUBSCRIPTION, **by)
        answer, fields = await pull(client, header)
        assert answer.code in (0, 20), answer
        offsets += [message.queue_offset for message in messages_in(answer, env)]
        offset = fields.next_begin_offset
    return " ".join(map(str, offsets))


async def check(client: RawClient, env: CaseEnv, expression: str) -> int:
    request = CheckClientRequest(
        client_id="c@1", group=env.group, subscription_data=sql(expression, env)
    )
    body = msgspec.json.encode(request)
    return (await client.answer(client.send_fields(RequestCode.CHECK_CLIENT_CONFIG, {}, body))).code


async def sql_selects_messages_by_properties(env: CaseEnv) -> None:
    async with env.client() as client:
        await store(client, env)
        found = {each: await selected(client, env, each) for each in SELECTED}
        checks = {each: await check(client, env, each) for each in SELECTED}

    assert found == SELECTED
    assert set(checks.values()) == {0}


async def sql_of_5_tests_parts_of_a_text(env: CaseEnv) -> None:
    async with env.client() as client:
        await store(client, env)
        found = {each: await selected(client, env, each) for each in TEXT_TESTS}
        checks = {each: await check(client, env, each) for each in TEXT_TESTS}

    invalid = [] if env.is_5 else [each for each in TEXT_TESTS if "NOT" in each]
    of_4_9 = dict.fromkeys(TEXT_TESTS, "") | dict.fromkeys(invalid, EVERYTHING)
    assert found == (TEXT_TESTS if env.is_5 else of_4_9)
    assert [each for each, code in checks.items() if code == 23] == invalid


async def sql_that_does_not_parse_is_rejected_by_the_check(env: CaseEnv) -> None:
    async with env.client() as client:
        codes = {each: await check(client, env, each) for each in REJECTED}

    assert codes == dict.fromkeys(REJECTED, 23)


async def sql_of_a_pull_that_does_not_parse_selects_everything(env: CaseEnv) -> None:
    async with env.client() as client:
        await store(client, env)
        found = await selected(client, env, "a >")
        by = {"subscription": "", "expression_type": "SQL92"}
        empty = await client.ask(pull_header(env, 0, sys_flag=PULL_SUBSCRIPTION, **by))

    assert found == EVERYTHING
    assert (empty.code, empty.remark) == (23, "parse the consumer's subscription failed")


async def sql_of_a_heartbeat_selects_messages(env: CaseEnv) -> None:
    async with env.client() as client:
        await store(client, env)
        good = await pulled_after_heartbeat(client, env, "a > 6", 100)
        bad = await pulled_after_heartbeat(client, env, "a >", 101)

    assert good == (0, [4, 5])
    assert bad == (27, [])


async def pulled_after_heartbeat(
    client: RawClient, env: CaseEnv, expression: str, version: int
) -> tuple[int, list[int]]:
    consumer = ConsumerData(
        group_name=env.group,
        consume_type="CONSUME_ACTIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        subscription_data_set=[sql(expression, env, version)],
    )
    body = msgspec.json.encode(HeartbeatData(client_id="c@1", consumer_data_set=[consumer]))
    assert (await client.answer(client.send_fields(RequestCode.HEART_BEAT, {}, body))).code == 0
    by = {"subscription": None, "expression_type": "SQL92", "sub_version": version}
    header = pull_header(env, 0, sys_flag=0, **by)

    async def registered() -> bool:
        return (await client.ask(header)).code not in (24, 25)

    assert await eventually(registered)
    answer = await client.ask(header)
    messages = messages_in(answer, env) if answer.code == 0 else []
    return answer.code, [message.queue_offset for message in messages]


async def pops_select_by_sql_and_reject_what_does_not_parse(env: CaseEnv) -> None:
    if not env.is_5:
        return
    fields: dict[str, object] = {
        "consumer_group": env.group,
        "topic": env.topic,
        "queue_id": 0,
        "max_msg_nums": 32,
        "invisible_time": 60_000,
        "poll_time": 0,
        "born_time": 0,
        "init_mode": 0,
        "exp_type": "SQL92",
    }
    async with env.client() as client:
        await store(client, env)
        bad = await client.ask(PopMessage(**fields, exp="a >"))  # type: ignore[arg-type]
        good = await client.ask(PopMessage(**fields, exp="a > 6"))  # type: ignore[arg-type]

    assert (bad.code, bad.remark) == (23, "parse the consumer's subscription failed")
    assert [message.queue_offset for message in messages_in(good, env)] == [4, 5]


CASES: tuple[Case, ...] = (
    sql_selects_messages_by_properties,
    sql_of_5_tests_parts_of_a_text,
    sql_that_does_not_parse_is_rejected_by_the_check,
    sql_of_a_pull_that_does_not_parse_selects_everything,
    sql_of_a_heartbeat_selects_messages,
    pops_select_by_sql_and_reject_what_does_not_parse,
)
