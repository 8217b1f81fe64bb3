"""Scripted broker, name server and fault-injecting proxy for tests.

They respond like real servers by default.  A test can set a handler for a request code, used once
unless kept.  `conformance` runs the same cases on fakes and real servers::

    async with FakeCluster(brokers=2, topics={"orders": 4}) as cluster:
        broker = cluster.broker
        broker.on(RequestCode.SEND_MESSAGE_V2, Reply(2, remark="busy"))      # once
        broker.on(RequestCode.PULL_MESSAGE, None, times=None)                # never answer
        held = broker.hold(RequestCode.HEART_BEAT)                           # answer when released
        broker.on_connect(Close())                                           # close the next one
        ... the client under test, with namesrv=cluster.namesrv ...
        await broker.wait_for(RequestCode.SEND_MESSAGE_V2, 3)
        await broker.push(GetConsumerRunningInfo(...))                       # send to the client

    async with FaultProxy(broker.address) as proxy:                          # address_mapper=
        proxy.down.on(drop, code=RequestCode.SEND_MESSAGE_V2)                # drop one response
        proxy.up.cut(frame=3, byte=10, reset=True)                           # within the 4th frame

`history` checks what was recorded of a run.
"""

import pytest

pytest.register_assert_rewrite("tests.fakes.conformance")
