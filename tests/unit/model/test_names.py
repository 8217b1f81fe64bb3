"""Names of topics and groups: invalid and reserved names are rejected."""

from enum import Enum

import pytest

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.names import (
    MAX_GROUP,
    MAX_TOPIC,
    check_group,
    check_topic,
    is_internal_topic,
    topic_fault,
)

GOOD = ["a", "orders", "Orders_2-b", "%RETRY%group", "a|b", "%", "-", "0", "x" * MAX_TOPIC]
BAD_CHARACTERS = [
    "a.b", "..", "a/b", "a\\b", "a b", " a", "a ", "a\n", "a\x00", "a\x01b", "a\x02b",
    "a+b", "a@b", "a#b", "a*", "a:b", "订单", "é", "\ud800", "a\u200b",
]  # fmt: skip
NOT_TEXT = ["", " ", "\t\n", None, 5, b"orders", ["orders"], object]


@pytest.mark.parametrize("topic", GOOD)
def test_check_topic_returns_a_valid_topic(topic: str) -> None:
    assert check_topic(topic) == topic
    assert topic_fault(topic) is None


@pytest.mark.parametrize("topic", [*BAD_CHARACTERS, *NOT_TEXT, "x" * (MAX_TOPIC + 1)])
def test_check_topic_rejects_an_invalid_topic(topic: str) -> None:
    with pytest.raises(ConfigError, match="topic=") as caught:
        check_topic(topic)

    assert (caught.value.setting, caught.value.value) == ("topic", topic)
    assert caught.value.reason == topic_fault(topic)


def test_an_invalid_topic_names_its_setting() -> None:
    with pytest.raises(ConfigError, match="template_topic='a b'"):
        check_topic("a b", setting="template_topic")


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_retry_and_dead_letter_topics_may_be_longer(prefix: str) -> None:
    longest = prefix + "g" * MAX_GROUP

    assert check_topic(longest) == longest
    with pytest.raises(ConfigError, match="at most"):
        check_topic(longest + "g" * 3)


@pytest.mark.parametrize("group", ["g", "orders-service", "a%b|c_D-1", "x" * MAX_GROUP])
def test_check_group_returns_a_valid_group(group: str) -> None:
    assert check_group(group) == group


@pytest.mark.parametrize("group", [*BAD_CHARACTERS, *NOT_TEXT, "x" * (MAX_GROUP + 1)])
def test_check_group_rejects_an_invalid_group(group: str) -> None:
    with pytest.raises(ConfigError, match="group=") as caught:
        check_group(group)

    assert (caught.value.setting, caught.value.value) == ("group", group)


@pytest.mark.parametrize("group", ["DEFAULT_PRODUCER", "DEFAULT_CONSUMER"])
def test_reserved_groups_are_rejected(group: str) -> None:
    with pytest.raises(ConfigError, match="reserved"):
        check_group(group)


@pytest.mark.parametrize(
    ("topic", "internal"),
    [
        ("orders", False),
        ("%RETRY%billing", True),
        ("%DLQ%billing", True),
        ("%SYS%lite", True),
        ("TBW102", True),
        ("SCHEDULE_TOPIC_XXXX", True),
        ("RMQ_SYS_TRACE_TOPIC", True),
        ("DefaultCluster", True),
        ("DefaultCluster_REPLY_TOPIC", True),
        ("ORDER_REPLY_TOPIC", False),
    ],
)
def test_internal_topics_are_recognised_by_their_names(topic: str, internal: bool) -> None:
    assert is_internal_topic(topic, {"DefaultCluster"}) is internal


def test_members_of_string_enums_become_plain_text() -> None:
    class Name(str, Enum):  # noqa: UP042 - its members format as "Name.PAID"
        PAID = "paid"

    assert (type(check_topic(Name.PAID)), type(check_group(Name.PAID))) == (str, str)
