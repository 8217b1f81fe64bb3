"""Arguments are checked by the annotations of their parameters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Literal, TypedDict, Unpack

import pytest

from rocketmq_aio.config.arguments import check_fields, checked_argument, checked_arguments
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)


class Name(str, Enum):  # noqa: UP042 - str() of a StrEnum is plain text
    ORDERS = "orders"


class Settings(TypedDict, total=False):
    queues: int


@checked_arguments
class Calls:
    async def read(
        self, name: str, *, brokers: Iterable[str] | None = None, part: str = ""
    ) -> object:
        return name, brokers, part

    async def each(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number

    def change(self, *kinds: Literal["a", "b"], **settings: Unpack[Settings]) -> object:
        return kinds, settings

    def _private(self, name: str) -> str:
        return name


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (str, "", "a non-empty string"),
        (str, b"x", "a non-empty string"),
        (str, "a\udc80", "half a surrogate pair"),
        (int, True, "a whole number from 0"),
        (int, -1, "a whole number from 0"),
        (int, 2**63, "a whole number from 0"),
        (float, float("nan"), "a number from 0"),
        (bool, 1, "True or False"),
        (Literal["RW", "R"], "X", "one of 'RW', 'R'"),
        (datetime | int, "x", "a datetime or a whole number"),
        (Iterable[str], b"x", "a list of non-empty strings"),
        (Iterable[str], [""], "a list of non-empty strings"),
        (list[MessageQueue], [1], "a list of MessageQueue objects"),
        (Mapping[str, int], {"a": "b"}, "a mapping of non-empty strings to whole numbers"),
        (Mapping[str, str] | None, 0, "a mapping of .* to .* or None"),
        (Callable[[], None], 1, "a Callable"),
        (MessageQueue, "orders", "a MessageQueue"),
        (MessageQueue, MessageQueue("orders", None, 0), "a MessageQueue"),  # type: ignore[arg-type]
        (MessageQueue, MessageQueue("orders", "broker-a", -1), "a MessageQueue"),
    ],
)
def test_an_argument_of_another_kind_is_rejected(
    kind: object, value: object, expected: str
) -> None:
    with pytest.raises(ConfigError, match=f"^wanted=.*{expected}"):
        checked_argument("wanted", value, kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (str, "x"), (int, 2**63 - 1), (float, 1), (bool, False), (Literal["R"], "R"),
        (str | None, None), (Mapping[str, str], {"a": ""}), (Iterable[str], []), (Any, object()),
        (MessageQueue, QUEUE), (Iterable[MessageQueue], [QUEUE]), (Callable[[], None], print),
    ],
)  # fmt: skip
def test_an_argument_of_its_kind_is_returned(kind: object, value: object) -> None:
    assert checked_argument("wanted", value, kind) == value


def test_members_of_string_enums_become_plain_text() -> None:
    for kind, given in ((str, Name.ORDERS), (Iterable[str], [Name.ORDERS])):
        taken = checked_argument("name", given, kind)

        assert str(taken) in ("orders", "['orders']")


def test_values_of_secrets_are_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"new_password='\*\*\*'"):
        checked_argument("new_password", b"hunter2", str)


async def test_a_call_takes_one_name_for_several_and_an_empty_default() -> None:
    assert await Calls().read("x", brokers="broker-a", part="") == ("x", ["broker-a"], "")
    assert await Calls().read("x", brokers=iter(("a", "b"))) == ("x", ["a", "b"], "")


async def test_a_call_checks_all_its_arguments() -> None:
    calls = Calls()

    with pytest.raises(ConfigError, match="name=None"):
        await calls.read(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="brokers=1"):
        await calls.read("x", brokers=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="count='x'"):
        calls.each("x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="kinds='c'"):
        calls.change("c")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="queues='8'"):
        calls.change(queues="8")  # type: ignore[arg-type]
    assert calls._private(1) == 1  # type: ignore[arg-type,comparison-overlap]


async def test_an_argument_whose_comparison_raises_is_rejected() -> None:
    class Array:
        def __eq__(self, other: object) -> bool:
            raise LookupError

        __hash__ = None  # type: ignore[assignment]

    @checked_arguments
    def call(name: str = "") -> str:
        return name

    with pytest.raises(ConfigError, match="name="):
        call(Array())  # type: ignore[arg-type]


async def test_missing_and_unknown_arguments_are_errors_of_python() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        await Calls().read()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        await Calls().read("x", colour="red")  # type: ignore[call-arg]


@dataclass(frozen=True)
class Fields:
    names: tuple[str, ...] = ()
    text: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_list_of_a_field_becomes_a_tuple_and_text_may_be_blank() -> None:
    assert Fields(names=["a", "b"], text=" ") == Fields(names=("a", "b"), text=" ")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("names", "orders"), ("names", [5]), ("text", None)])
def test_a_field_of_another_type_is_rejected(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}="):
        Fields(**{name: value})  # type: ignore[arg-type]


def test_values_of_fields_without_a_repr_are_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"options='\*\*\*'"):
        Fields(options={"secretKey": 5})  # type: ignore[dict-item]
