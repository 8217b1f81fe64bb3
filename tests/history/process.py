"""Rules of the process: deadlines, resources, logs, retry rates and memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import fields

from tests.history.history import History
from tests.history.rules import Finding

GRACE_SECONDS = 1.0  # tolerated after the deadline of a call


def i28_every_call_ends_in_time(history: History) -> Iterator[Finding]:
    """A call returns or raises by its deadline, even with a faulty peer."""
    for call in history.calls:
        if call.ended is None:
            yield Finding(f"{call.name} never ended")
        elif call.ended > call.deadline + GRACE_SECONDS + history.delayed:
            yield Finding(
                f"{call.name} ended {call.ended - call.deadline:.1f} s after its deadline"
            )


def i29_nothing_is_left_behind(history: History) -> Iterator[Finding]:
    """After close there are as many tasks, descriptors and threads as before."""
    if history.before is None or history.after is None:
        return
    for each in fields(history.before):
        before, after = getattr(history.before, each.name), getattr(history.after, each.name)
        if after > before:
            yield Finding(f"{after} {each.name}, {before} before")


def i30_nothing_unexpected_is_said(history: History) -> Iterator[Finding]:
    """No exception goes unretrieved, no resource warning and no error is logged."""
    yield from map(Finding, history.unexpected)


def i31_requests_keep_their_pace(history: History) -> Iterator[Finding]:
    """Failing operations are not retried without pauses."""
    for name, times in history.paced.items():
        times = sorted(times)
        for index, at in enumerate(times):
            within = bisect_left(times, at + 1.0) - index
            if within > history.most_per_second:
                yield Finding(f"{name}: {within} in one second, at most {history.most_per_second}")
                break


def i32_memory_is_bounded(history: History) -> Iterator[Finding]:
    """The client never holds more than its settings allow."""
    if history.most_buffered_bytes is None:
        return
    peak = max(history.buffered_bytes, default=0)
    if peak > history.most_buffered_bytes:
        yield Finding(
            f"{peak} bytes were buffered, at most {history.most_buffered_bytes} are allowed"
        )


def i33_replies_match_their_calls(history: History) -> Iterator[Finding]:
    """No call gets the reply to another one."""
    for echo in history.echoes:
        if echo.received is not None and echo.received != echo.sent:
            yield Finding(f"the call with nonce {echo.sent} got the reply to {echo.received}")


def i34_the_run_did_something(history: History) -> Iterator[Finding]:
    """The run had operations before and after the fault, and the fault had an effect."""
    fault = history.fault
    if fault is None:
        return
    if not fault.observed:
        yield Finding("nothing showed that the fault took place")
    if not any(at < fault.started for at in history.work):
        yield Finding("no work was done before the fault")
    if not any(at > fault.healed for at in history.work):
        yield Finding("no work was done after the fault")


PROCESS = {
    "I28": i28_every_call_ends_in_time,
    "I29": i29_nothing_is_left_behind,
    "I30": i30_nothing_unexpected_is_said,
    "I31": i31_requests_keep_their_pace,
    "I32": i32_memory_is_bounded,
    "I33": i33_replies_match_their_calls,
    "I34": i34_the_run_did_something,
}
