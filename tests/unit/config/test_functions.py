"""Functions of the application: validation before the first call."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from rocketmq_aio import AllocateConsistentHash, ClientConfig, PushConfig
from rocketmq_aio.config.validation import check_function, name_of
from rocketmq_aio.consumer.common.listeners import check_listener
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.producer.queue_selectors import SelectByMachineRoom


class Shop:
    def sell(self, message: object) -> None: ...

    async def __call__(self, message: object, at: int = 0) -> None: ...


def no_parameter() -> None: ...


def two(message: object, context: object) -> None: ...


def only_by_name(message: object, *, context: object) -> None: ...


def with_option(message: object, context: object = None) -> None: ...


def passing_on(*args: object) -> None: ...


def yielding(message: object) -> Iterator[object]:
    yield message


class Yielding:
    async def __call__(self, message: object) -> AsyncIterator[object]:
        yield message


@functools.wraps(two)
def wrapping_two(message: object) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        Shop().sell,
        Shop(),
        lambda message: message,
        lambda *args: args,
        with_option,
        passing_on,
        functools.partial(two, 1),
        print,
        int,
    ],
)
def test_functions_with_matching_parameters_are_accepted(function: Callable[..., object]) -> None:
    check_function("on_message", function, "message")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_parameter, r"called with \(message\), and takes \(\)"),
        (two, "takes .*missing a required argument: 'context'"),
        (wrapping_two, "missing a required argument: 'context'"),
        (Shop.sell, "missing a required argument: 'message'"),
        (only_by_name, "missing a required (keyword-only )?argument: 'context'"),
        (functools.partial(two, 1, 2), "too many positional arguments"),
        (yielding, "a generator function runs none of it"),
        (Yielding(), "a generator function runs none of it"),
        (Yielding().__call__, "a generator function runs none of it"),
        (functools.partial(yielding), "a generator function runs none of it"),
        ("handle", "expected a function"),
        (None, "expected a function"),
    ],
)
def test_functions_with_other_parameters_are_rejected(function: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_function("on_message", function, "message")
    assert caught.value.setting == "on_message"


def test_errors_do_not_show_arguments_of_a_partial() -> None:
    def needs_two(message: object, context: object, *, password: str) -> None: ...

    function = functools.partial(needs_two, password="s3cret")
    with pytest.raises(ConfigError, match=r"needs_two.*takes .*password") as caught:
        check_function("on_message", function, "message")
    assert "s3cret" not in str(caught.value)


def test_a_function_whose_result_is_iterated_may_be_a_generator() -> None:
    check_function("allocate", yielding, "queues", may_yield=True)


def test_name_of_returns_the_qualified_name() -> None:
    assert name_of(two) == f"{__name__}.two"
    assert name_of(Shop().sell) == f"{__name__}.Shop.sell"
    assert name_of(functools.partial(two, 1)) == f"partial({name_of(two)})"


async def asynchronous(*_: object) -> object:
    """Must not be called: nothing would await it."""


ASYNC: Any = asynchronous


@pytest.mark.parametrize(
    ("setting", "make"),
    [
        ("credentials", lambda: ClientConfig(credentials=ASYNC)),
        ("address_mapper", lambda: ClientConfig(address_mapper=ASYNC)),
        ("allocate", lambda: PushConfig(allocate=ASYNC)),
        ("allocate", lambda: PushConfig(allocate={"orders": functools.partial(ASYNC, 1)})),
        ("hash", lambda: AllocateConsistentHash(hash=ASYNC)),
        ("inner", lambda: SelectByMachineRoom({"a"}, ASYNC)),
        ("on_event", lambda: check_listener("on_event", ASYNC, "e", may_be_async=False)),
    ],
)
def test_a_function_whose_result_is_used_at_once_must_not_be_async(
    setting: str, make: Callable[[], object]
) -> None:
    with pytest.raises(ConfigError, match="expected a plain function, not an async one") as raised:
        make()

    assert raised.value.setting == setting
    assert "asynchronous" in str(raised.value)
