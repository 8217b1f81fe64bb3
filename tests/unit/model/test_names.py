"""Names of topics and groups: what the broker would refuse is refused before any connection."""

import pytest

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.names import MAX_GROUP, MAX_TOPIC, check_group, check_topic, topic_fault

GOOD = ["a", "orders", "Orders_2-b", "%RETRY%group", "a|b", "%", "-", "0", "x" * MAX_TOPIC]
BAD_CHARACTERS = [
    "a.b", "..", "a/b", "a\\b", "a b", " a", "a ", "a\n", "a\x00", "a\x01b", "a\x02b",
    "a+b", "a@b", "a#b", "a*", "a:b", "订单", "é", "\ud800", "a\u200b",
]  # fmt: skip
NOT_TEXT = ["", " ", "\t\n", None, 5, b"orders", ["orders"], object]


@pytest.mark.parametrize("topic", GOOD)
def test_a_good_topic_is_returned_as_it_is(topic: str) -> None:
    assert check_topic(topic) == topic
    assert topic_fault(topic) is None


@pytest.mark.parametrize("topic", [*BAD_CHARACTERS, *NOT_TEXT, "x" * (MAX_TOPIC + 1)])
def test_a_bad_topic_is_refused_with_its_value(topic: str) -> None:
    with pytest.raises(ConfigError, match="topic=") as caught:
        check_topic(topic)

    assert (caught.value.setting, caught.value.value) == ("topic", topic)
    assert caught.value.reason == topic_fault(topic)


def test_a_bad_topic_names_the_setting_it_came_from() -> None:
    with pytest.raises(ConfigError, match="template_topic='a b'"):
        check_topic("a b", setting="template_topic")


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_the_topics_of_a_group_may_be_longer(prefix: str) -> None:
    longest = prefix + "g" * MAX_GROUP

    assert check_topic(longest) == longest
    with pytest.raises(ConfigError, match="at most"):
        check_topic(longest + "g" * 3)


@pytest.mark.parametrize("group", ["g", "orders-service", "a%b|c_D-1", "x" * MAX_GROUP])
def test_a_good_group_is_returned_as_it_is(group: str) -> None:
    assert check_group(group) == group


@pytest.mark.parametrize("group", [*BAD_CHARACTERS, *NOT_TEXT, "x" * (MAX_GROUP + 1)])
def test_a_bad_group_is_refused_with_its_value(group: str) -> None:
    with pytest.raises(ConfigError, match="group=") as caught:
        check_group(group)

    assert (caught.value.setting, caught.value.value) == ("group", group)


@pytest.mark.parametrize("group", ["DEFAULT_PRODUCER", "DEFAULT_CONSUMER"])
def test_the_groups_that_brokers_keep_to_themselves_are_refused(group: str) -> None:
    with pytest.raises(ConfigError, match="reserved"):
        check_group(group)
