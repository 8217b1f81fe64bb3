"""Embedded servers that record frames, and a fault-injecting proxy, for the tests of the client.

`conformance` runs the same cases on embedded and real servers::

    async with FakeCluster(brokers=2, topics={"orders": 4}) as cluster:
        broker = cluster.broker
        cluster.faults.reset("send", topic="orders")                         # see `Faults`
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
