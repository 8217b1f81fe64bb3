"""ClientBase: the life cycle of producers, consumers and administrators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from enum import Enum
from threading import get_ident
from types import TracebackType
from typing import Final, NoReturn, Self

import anyio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import ClosedError, ConfigError, NotRunningError
from rocketmq_aio.instance.client_instance import (
    MAKE_ANOTHER,
    MQClientInstance,
    loop_for,
    other_loop_error,
)
from rocketmq_aio.instance.hook_runner import LifecycleHook, bind_hooks
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.names import check_group
from rocketmq_aio.remoting.background_tasks import in_background_task
from rocketmq_aio.remoting.fork import FORKED, copy_error, reset_after_fork

logger = get_logger(__name__)

NO_THREAD: Final = -1
CLOSE_SECONDS: Final = 15.0  # the longest wait for brokers in `close`


class State(Enum):
    """The states of a client, in order."""

    NEW = "not started: use `async with` or `start()`"
    STARTING = "still starting"
    RUNNING = "running"
    FAILED = "failed"
    CLOSED = "closed"
    FORKED = f"of another process: it {FORKED}"


class ClientBase:
    """Base of all public clients: a group, an instance, start and close.

    `start` and `close` may be called from different tasks.  A client creates and owns its
    instance, or uses a running one that is shared.
    """

    def __init__(
        self, group: str, *, namesrv: str | None, client: MQClientInstance | ClientConfig | None
    ) -> None:
        self._group = check_group(group)
        self._close_seconds = CLOSE_SECONDS
        self._owned = not isinstance(client, MQClientInstance)
        self._instance = _instance(namesrv, client)
        self._lifecycle_hooks: list[LifecycleHook] = []
        self._state = State.NEW
        self._failure: BaseException | None = None
        # For hot paths: asyncio.get_running_loop() costs a system call.
        self._thread = NO_THREAD
        self._is_running: Callable[[], bool] = bool  # of the loop, while this client runs
        self._running: asyncio.AbstractEventLoop | None = None
        self._home: asyncio.AbstractEventLoop | None = None  # the loop of `start`
        self._starting: anyio.CancelScope | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._left_normally = False
        self._left_by: asyncio.Task[object] | None = None

    @property
    def group(self) -> str:
        """The group of this client."""
        return self._group

    @property
    def client(self) -> MQClientInstance:
        """The instance of this client, its own or a shared one."""
        return self._instance

    # --- life cycle -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and register with the group.

        :raises NameServerUnavailableError: no name server responded
        :raises ConfigError: no name server is configured, or the group is taken in the instance
        :raises NotRunningError: it was started before, or no asyncio event loop is running
        """
        if self._state is State.CLOSED:
            raise ClosedError(f"{self!r} is closed; make a new one")
        if self._state is not State.NEW:
            way_out = "`async with` or `start()` starts a client once; make another to start again"
            raise NotRunningError(f"{self!r} is {self._state.value}: {way_out}")
        self._home = loop_for(repr(self))
        self._state = State.STARTING
        reset_after_fork(self)
        self._start_ended = self._home.create_future()
        try:
            await self._start()
        except BaseException:
            await self._wait_until_released(self._start_release())
            raise
        self._state = State.RUNNING
        self._running = self._home
        self._is_running = self._running.is_running
        self._thread = get_ident()

    async def close(self) -> None:
        """Leave the group and release all resources; bounded in time, may be called twice.

        When cancelled, it continues in the background.
        """
        if self._state is State.FORKED:
            return  # the resources belong to the parent
        if self._home is None:
            self._state = State.CLOSED
            return
        if self._home is not asyncio.get_running_loop():
            raise other_loop_error(repr(self), self._home, "close it there")
        first = self._releasing is None
        releasing = self._start_release()
        await self._wait_until_released(releasing)
        if first:
            releasing.result()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._left_normally = kind is None
        self._left_by = asyncio.current_task()
        await self.close()

    async def _start(self) -> None:
        try:
            with anyio.CancelScope() as self._starting:  # cancelled by `close`
                if self._owned:
                    await self._instance.start()
                self._instance.check_running()
                await self._check_reachable()
                for hook in self._lifecycle_hooks:
                    await hook.open()
                await self._open()
        finally:
            self._starting = None
            if not self._start_ended.done():
                self._start_ended.set_result(None)
        if self._state is not State.STARTING:
            self._raise_failure()
            raise ClosedError(f"{self!r} was closed while it started")

    def _start_release(self) -> asyncio.Task[None]:
        """Return the task that releases everything; a cancelled caller does not stop it."""
        if self._releasing is None:
            if self._state is not State.FAILED:
                self._state = State.CLOSED
            self._stop_running()
            name = f"rocketmq:{self._group}:close"
            self._releasing = asyncio.get_running_loop().create_task(self._release(), name=name)
        return self._releasing

    @staticmethod
    async def _wait_until_released(releasing: asyncio.Task[None]) -> None:
        # Shielded, since the release is bounded; except in a background task, such as that of a
        # listener that closes its own consumer: the release has to cancel it.
        with anyio.CancelScope(shield=not in_background_task()):
            await asyncio.wait([releasing])

    async def _release(self) -> None:
        async with AsyncExitStack() as stack:  # each is closed, whatever the ones before raise
            if self._owned:
                stack.push_async_callback(self._instance.close)
            for hook in reversed(self._lifecycle_hooks):
                stack.push_async_callback(hook.close)
            if self._starting is not None:
                self._starting.cancel()
                await self._start_ended
            with anyio.move_on_after(self._close_seconds) as scope:
                await self._shut()
            if scope.cancelled_caught:
                logger.warning("close_timed_out", group=self._group, seconds=self._close_seconds)

    def _bind_hooks(self, hooks: Iterable[object]) -> list[object]:
        """Return *hooks*, with those of a `HookMaker` made for this client."""
        bound, self._lifecycle_hooks = bind_hooks(hooks, self._instance, self._group)
        return bound

    async def _open(self) -> None:
        """Start the parts of the client; called once."""
        raise NotImplementedError

    async def _shut(self) -> None:
        """Stop the parts of the client; called once, also after a failed start."""
        raise NotImplementedError

    # --- state ----------------------------------------------------------------------------------

    def on_failed(self, cause: BaseException) -> None:
        """Called when the instance has failed: every later call raises."""
        self._failure = cause
        self._stop_running()
        if self._state is not State.CLOSED:
            self._state = State.FAILED

    def after_fork(self) -> None:
        """In a forked child: every call raises, and `close` does nothing."""
        self._stop_running()
        self._failure = None
        self._state = State.FORKED

    def _stop_running(self) -> None:
        self._thread = NO_THREAD
        self._running = None

    def _check_running(self) -> None:
        """Raise the error for a call that this client cannot serve now."""
        self._raise_failure()
        if self._state is State.CLOSED:
            raise ClosedError(f"{self!r} is closed")
        if self._running is None:
            raise NotRunningError(f"{self!r} is {self._state.value}")
        if self._running is not _current_loop():
            raise other_loop_error(repr(self), self._running, MAKE_ANOTHER)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            if self._home is not None and self._home.is_closed():
                raise other_loop_error(repr(self), self._home, MAKE_ANOTHER) from self._failure
            raise NotRunningError(f"{self!r} failed: {self._failure!r}") from self._failure

    def _can_prepare(self) -> bool:
        """Whether calls without requests are allowed: before `start`."""
        return self._state is State.NEW

    def _check_usable(self) -> None:
        """Raise unless the client is running or not started yet."""
        if self._state is not State.NEW:
            self._check_running()

    def _is_closed(self) -> bool:
        return self._state is State.CLOSED and self._failure is None

    async def _check_reachable(self) -> None:
        """Let `start` fail with a wrong address."""
        await self._instance.routes.check_reachable()

    def __reduce__(self) -> NoReturn:
        raise copy_error(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._group!r}>"


def _instance(
    namesrv: str | None, client: MQClientInstance | ClientConfig | None
) -> MQClientInstance:
    if namesrv is not None and client is not None:
        raise ConfigError("namesrv", namesrv, "give either namesrv= or client=")
    if isinstance(client, MQClientInstance):
        return client
    if isinstance(client, ClientConfig):
        return MQClientInstance(client)
    if client is not None:
        raise ConfigError("client", client, "expected an MQClientInstance or a ClientConfig")
    config = ClientConfig.from_env()
    if namesrv is not None:
        config = replace(config, namesrv=namesrv)
    if not config.namesrv:
        reason = "give namesrv=... or set ROCKETMQ_NAMESRV or NAMESRV_ADDR"
        raise ConfigError("namesrv", config.namesrv, reason)
    return MQClientInstance(config)


def _current_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running loop; None in a thread without one, where `send_nowait` may be called."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
