"""Topic queue listeners: called when queues of a topic are added or removed, in order."""

from __future__ import annotations

import anyio

from rocketmq_aio.consumer.common.listeners import TopicQueuesListener, call_listener
from rocketmq_aio.instance.routes import RouteTable
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.remoting.background_tasks import BackgroundTasks


class TopicQueueListeners:
    """One listener per topic; learning the first route is not a change."""

    def __init__(self, routes: RouteTable, tasks: BackgroundTasks) -> None:
        self._routes = routes
        self._tasks = tasks
        # A call waits for the one before, which may have taken longer than to the next change.
        self._listeners: dict[str, tuple[TopicQueuesListener, anyio.Lock]] = {}
        self._known: dict[str, tuple[MessageQueue, ...]] = {}

    def topics(self) -> set[str]:
        return set(self._listeners)

    def add(self, topic: str, listener: TopicQueuesListener) -> None:
        self._listeners[topic] = listener, anyio.Lock()
        self._remember(topic)

    def forget(self, topic: str) -> None:
        self._listeners.pop(topic, None)
        self._known.pop(topic, None)

    def check(self, topic: str) -> None:
        """Call the listener if the queues of *topic* changed with its route."""
        if topic not in self._listeners:
            return
        before = self._known.get(topic)
        self._remember(topic)
        now = self._known.get(topic, ())
        if before is not None and before != now:
            self._tasks.spawn(
                self._call, topic, list(now), *self._listeners[topic], name="listener"
            )

    async def keep_watching(self, interval_seconds: float) -> None:
        """Refresh the routes of all topics regularly; the route table calls `check`."""
        while True:
            await anyio.sleep(interval_seconds)
            await self._routes.refresh(self.topics())

    async def _call(
        self,
        topic: str,
        queues: list[MessageQueue],
        listener: TopicQueuesListener,
        turn: anyio.Lock,
    ) -> None:
        async with turn:
            await call_listener(listener, topic, queues)

    def _remember(self, topic: str) -> None:
        route = self._routes.known(topic)
        if route is not None:
            self._known[topic] = route.subscribe_queues
        elif topic in self._known:
            self._known[topic] = ()
