"""Runtime: one event loop thread per process and one client per set of connection options.

Spark runs task after task in threads of the same worker: connections stay open between them.
The thread is a daemon because Spark kills its workers without notice.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

import anyio

from rocketmq_aio.config.client import ClientConfig, Credentials
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull.raw_pulls import RawPulls
from rocketmq_aio.errors import ConfigError, NameServerUnavailableError
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.remoting.dial import tls_context
from rocketmq_aio.spark.options.source_options import Connection

logger = get_logger(__name__)

T = TypeVar("T")
Args = TypeVarTuple("Args")

MAX_KEPT: Final = 8  # clients kept open that are not in use
ROW_PRODUCER: Final = ProducerConfig(compression=None)  # rows are not compressed
# Seconds before each further request for the list of name servers when a client starts.
ADDRESS_SERVER_PAUSES: Final = (0.5, 1, 2, 4, 8)
THREAD_NAME: Final = "rocketmq-spark"


class _NoReachabilityCheck(ClientBase):
    """Starts while no name server responds, too: the requests of reads and writes are retried.

    Spark repeats a failed task at once, four times in all: an outage of a second would end a query.
    """

    async def _check_reachable(self) -> None:
        pass


class _PullConsumer(_NoReachabilityCheck, PullConsumer):
    pass


class _Producer(_NoReachabilityCheck, Producer[Any]):
    pass


class Runtime:
    """The client of one set of connection options; thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        self._loop = loop
        self._group = connection.group
        self._files = _tls_files(connection)
        self._config = client_config(connection)
        self._lock = threading.Lock()
        self._pull_consumer: PullConsumer | None = None
        self._pulls: RawPulls | None = None
        self._producers: list[Producer] = []  # one at most
        self.instance: MQClientInstance = self.call(self._start)
        release = weakref.finalize(self, _release, self.instance, self._producers)
        release.atexit = False

    @classmethod
    def get(cls, connection: Connection) -> Runtime:
        """Return the runtime of *connection*; start it on first use and after its client failed.

        If TLS files were replaced and can be read, another one is started.  Keep a reference while
        you use its clients: they are closed when there is none and `MAX_KEPT` other connections
        were used since.  Raises as `client_config`.
        """
        with _process.lock:
            runtime = _process.used.get(connection)
            if runtime is None or runtime.instance.has_ended:
                runtime = cls(_process.start_loop(), connection)
            elif (files := _tls_files(connection)) != runtime._files:
                try:
                    runtime = cls(_process.start_loop(), connection)
                except ConfigError as error:  # written in part, or only one of two
                    runtime._files = files
                    logger.warning("tls_files_not_renewed", reason=str(error))
                except NameServerUnavailableError as error:  # at the next call
                    logger.warning("tls_files_not_renewed", reason=str(error))
            _process.used[connection] = runtime
            _process.keep(connection, runtime)
            return runtime

    def call(self, function: Callable[[*Args], Coroutine[Any, Any, T]], *args: *Args) -> T:
        """Run an async function on the loop and return its result; an interrupt cancels it."""
        future = self.submit(function, *args)
        try:
            return future.result()
        finally:
            future.cancel()

    def submit(
        self, function: Callable[[*Args], Coroutine[Any, Any, T]], *args: *Args
    ) -> Future[T]:
        """Start an async function on the loop; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(function(*args), self._loop)

    def pull_consumer(self) -> PullConsumer:
        """Return the running pull consumer of the options' group."""
        with self._lock:
            if self._pull_consumer is None:
                consumer = _PullConsumer(self._group, client=self.instance)
                self.call(consumer.start)
                self._pull_consumer = consumer
            return self._pull_consumer

    def pulls(self) -> RawPulls:
        """Return the raw pulls of the options' group."""
        with self._lock:
            if self._pulls is None:
                self._pulls = RawPulls(self.instance, self._group)
                self.instance.register_reader(self._pulls)
            return self._pulls

    def producer(self) -> Producer:
        """Return the running producer of rows, which has its own connections."""
        with self._lock:
            while self._producers and self._producers[0].client.has_ended:
                self.submit(self._producers.pop().client.close)
            if not self._producers:
                producer = _Producer(self._group, config=ROW_PRODUCER, client=self._config)
                self.call(producer.start)
                self._producers.append(producer)
            return self._producers[0]

    async def _start(self) -> MQClientInstance:
        pauses = iter(ADDRESS_SERVER_PAUSES)
        while True:
            instance = MQClientInstance(self._config)
            try:
                await instance.start()
            except NameServerUnavailableError:
                if (pause := next(pauses, None)) is None:
                    raise
                await anyio.sleep(pause)
            else:
                return instance


@dataclass
class _Process:
    """State of a process; a forked child starts with a new one."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    runtimes: dict[Connection, Runtime] = field(default_factory=dict)  # most recently used last
    used: WeakValueDictionary[Connection, Runtime] = field(default_factory=WeakValueDictionary)
    closing: set[Future[None]] = field(default_factory=set)
    loop: asyncio.AbstractEventLoop | None = None

    def keep(self, connection: Connection, runtime: Runtime) -> None:
        """Keep *runtime* open and drop the least recently used one."""
        self.runtimes.pop(connection, None)
        self.runtimes[connection] = runtime
        if len(self.runtimes) > MAX_KEPT:
            del self.runtimes[next(iter(self.runtimes))]

    def start_loop(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            run = self.loop.run_forever
            threading.Thread(target=run, name=THREAD_NAME, daemon=True).start()
        return self.loop


def _release(instance: MQClientInstance, producers: list[Producer]) -> None:
    """Close the clients of an unreferenced runtime; called from any thread."""
    process = _process
    if process.loop is None:
        return  # in a forked child: the clients belong to the parent

    async def close() -> None:
        for client in (*(each.client for each in producers), instance):
            try:
                await client.close()
            except Exception as error:  # noqa: BLE001 - a background task: the others are closed too
                logger.warning("client_not_closed", reason=str(error))

    future = asyncio.run_coroutine_threadsafe(close(), process.loop)
    process.closing.add(future)
    future.add_done_callback(process.closing.discard)


def _reset_after_fork() -> None:
    # The child has no loop thread, and a lock held by another thread is never released.
    global _process
    _process = _Process()


_process = _Process()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_reset_after_fork)


def client_config(connection: Connection) -> ClientConfig:
    """Return the client settings of *connection*; credentials may come from the environment.

    :raises ConfigError: certificate files cannot be read, or credentials are incomplete
    """
    given: dict[str, Any] = {"namesrv": connection.name_server}
    if connection.access_key is not None and connection.secret_key is not None:
        given["credentials"] = Credentials(
            access_key=connection.access_key,
            secret_key=connection.secret_key,
            security_token=connection.security_token,
        )
    if connection.tls:
        given["tls"] = _tls(connection)
    if connection.namespace is not None:
        given["namespace"] = connection.namespace
    return ClientConfig.from_env(**given)


def _tls_files(connection: Connection) -> list[tuple[int, ...]] | None:
    """Return values that change when a TLS file is replaced; None if one is missing."""
    paths = (connection.tls_ca_file, connection.tls_cert_file, connection.tls_key_file)
    try:
        found = [os.stat(path) for path in paths if path is not None]
    except OSError:
        return None
    return [(each.st_mtime_ns, each.st_ino, each.st_size) for each in found]


def _tls(connection: Connection) -> ssl.SSLContext:
    authority, certificate = connection.tls_ca_file, connection.tls_cert_file
    try:
        context = tls_context(authority)
        if certificate is not None:
            context.load_cert_chain(certificate, connection.tls_key_file, _no_passphrase)
        return context
    except OSError as error:  # includes SSLError
        files = ", ".join(filter(None, (authority, certificate, connection.tls_key_file)))
        raise ConfigError("tls files", files, str(error)) from error


def _no_passphrase() -> str:
    # Without it OpenSSL asks at the terminal of the driver, and waits.
    raise OSError("the key is encrypted: decrypt it, processes of Spark ask for no passphrase")
