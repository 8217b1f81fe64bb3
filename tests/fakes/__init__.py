"""Scripted peers for tests: a broker, a name server, a proxy that breaks things.

They answer by default as real ones would; a test gives a handler for one request code, used once
unless kept.  That they answer as real ones is proven by `conformance`, run on both::

    async with FakeCluster(brokers=2, topics={"orders": 4}) as cluster:
        broker = cluster.broker
        broker.on(RequestCode.SEND_MESSAGE_V2, Reply(2, remark="busy"))      # once
        broker.on(RequestCode.PULL_MESSAGE, None, times=None)                # never answer
        held = broker.hold(RequestCode.HEART_BEAT)                           # answer when released
        broker.on_connect(Close())                                           # hang up on the next
        ... the client under test, with namesrv=cluster.namesrv ...
        await broker.wait_for(RequestCode.SEND_MESSAGE_V2, 3)
        await broker.push(GetConsumerRunningInfo(...))                       # ask the client

    async with FaultProxy(broker.address) as proxy:                          # address_mapper=
        proxy.down.on(drop, code=RequestCode.SEND_MESSAGE_V2)                # lose one answer
        proxy.up.cut(frame=3, byte=10, reset=True)                           # inside the 4th frame

What was recorded of a run is judged by `history`.
"""

import pytest

pytest.register_assert_rewrite("tests.fakes.conformance")
