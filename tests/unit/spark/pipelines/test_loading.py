"""Files of a load: settings of the session."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines import loading
from rocketmq_aio.spark.pipelines.loading import INFERENCE, LoadSettings

SETTINGS = LoadSettings(connection=Connection(name_server="a:1"), topic="orders", path="/files")
TIMEOUT = 60.0


class Session:
    """A session whose first and second look at files wait."""

    def __init__(self) -> None:
        self.values = {INFERENCE: "true"}
        self.begun = 0
        self.looks = [threading.Event(), threading.Event()]
        self.resumes = [threading.Event(), threading.Event()]
        self.conf = SimpleNamespace(get=self.values.__getitem__, set=self.values.__setitem__)
        self.read: Any = self
        self.format = self.options = self.schema = lambda *_, **__: self

    def load(self, _: str) -> SimpleNamespace:
        if self.values[INFERENCE] == "false":
            number, self.begun = self.begun, self.begun + 1
            self.looks[number].set()
            assert self.resumes[number].wait(TIMEOUT)
        return SimpleNamespace(schema=None)


def test_concurrent_loads_restore_the_setting_of_the_session() -> None:
    spark: Any = Session()
    threads = [threading.Thread(target=loading._read_rows, args=(spark, SETTINGS)) for _ in "ab"]
    threads[0].start()
    assert spark.looks[0].wait(TIMEOUT)
    threads[1].start()
    spark.looks[1].wait(0.2)  # only if the second load does not wait for the first one
    spark.resumes[0].set()
    threads[0].join()
    spark.resumes[1].set()
    threads[1].join()

    assert spark.values == {INFERENCE: "true"}
    assert spark.begun == 2
