"""Stop signals: called blocks and restored handlers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import get_context

import pytest

from rocketmq_aio.signals import STOP_SIGNALS, stop_signals


class Heard(list[str]):
    """Recorded calls of a program's signal handlers."""

    def handle(self, number: int, _: object) -> None:
        self.append(signal.Signals(number).name)


@pytest.fixture
def program() -> Iterator[Heard]:
    """A program with handlers of its own."""
    heard = Heard()
    before = {number: signal.signal(number, heard.handle) for number in STOP_SIGNALS}
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_all_blocks_are_called_instead_of_the_program(
    program: Heard, number: signal.Signals
) -> None:
    reported: list[str] = []
    with stop_signals(lambda: reported.append("a")), stop_signals(lambda: reported.append("b")):
        signal.raise_signal(number)

    assert reported == ["a", "b"]
    assert program == []


@pytest.mark.parametrize("first", [0, 1])
def test_the_last_block_restores_the_handlers(program: Heard, first: int) -> None:
    reported: list[int] = []
    blocks = [stop_signals(lambda: reported.append(0)), stop_signals(lambda: reported.append(1))]
    for block in blocks:
        block.__enter__()
    blocks.pop(first).__exit__(None, None, None)
    signal.raise_signal(signal.SIGTERM)
    assert reported == [1 - first]

    blocks.pop().__exit__(None, None, None)
    signal.raise_signal(signal.SIGTERM)
    assert (reported, program) == ([1 - first], ["SIGTERM"])


def test_a_callback_may_be_registered_twice(program: Heard) -> None:
    reported: list[str] = []

    def listen() -> None:
        reported.append("a")

    with stop_signals(listen):
        with stop_signals(listen):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    assert reported == ["a", "a", "a"]


def test_a_handler_set_during_a_block_is_kept(program: Heard) -> None:
    later = Heard()
    with stop_signals(lambda: None):
        signal.signal(signal.SIGTERM, later.handle)
    signal.raise_signal(signal.SIGTERM)

    assert (program, later) == ([], ["SIGTERM"])


def test_a_handler_that_the_program_puts_back_after_a_block_does_not_swallow_signals(
    program: Heard,
) -> None:
    later = Heard()
    with stop_signals(lambda: None):
        ours = signal.signal(signal.SIGTERM, later.handle)
    signal.signal(signal.SIGTERM, ours)  # as a library does whose block began in ours
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)

    assert (program, later) == (["SIGTERM", "SIGTERM"], [])


def test_blocks_in_other_threads_do_nothing(program: Heard) -> None:
    handlers: list[object] = []

    def listen() -> None:
        with stop_signals(lambda: None):
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()

    assert handlers == [program.handle]


def wait_for_signal(ready: int) -> None:
    os.write(ready, b"x")
    signal.pause()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
def test_a_forked_process_has_the_original_handlers() -> None:
    reported: list[str] = []
    ready, written = os.pipe()
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with stop_signals(lambda: reported.append("parent")):
            child = get_context("fork").Process(target=wait_for_signal, args=(written,))
            child.start()
            assert os.read(ready, 1) == b"x"
            child.terminate()
            child.join(15)
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(ready)
        os.close(written)

    assert child.exitcode == -signal.SIGTERM
    assert reported == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
def test_a_block_of_the_parent_ends_in_a_forked_process() -> None:
    inherited = stop_signals(lambda: None)

    def end_both() -> None:
        with stop_signals(lambda: None):
            pass
        inherited.__exit__(None, None, None)

    with inherited:
        child = get_context("fork").Process(target=end_both)
        child.start()
        child.join(15)

    assert child.exitcode == 0
