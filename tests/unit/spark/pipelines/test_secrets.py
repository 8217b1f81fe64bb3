"""Further options may hold passwords: no form of the settings shows them."""

from __future__ import annotations

import pytest

from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.loading import LoadSettings
from rocketmq_aio.spark.pipelines.replaying import ReplaySettings
from rocketmq_aio.spark.pipelines.selection import Selection
from rocketmq_aio.spark.pipelines.target import Target

PLANTED = {"secretKey": "planted", "password": "planted"}
ACCOUNT = {"accessKey": "app", "secretKey": "planted", "securityToken": "planted"}
CONNECTION = Connection(name_server="127.0.0.1:1")
SELECTION = Selection(topics=("orders",), options=ACCOUNT)


@pytest.mark.parametrize(
    "settings",
    [
        Connection(
            name_server="127.0.0.1:1",
            access_key="app",
            secret_key="planted",
            security_token="planted",
        ),
        Target(path="/data", options=PLANTED),
        ReplaySettings(connection=CONNECTION, selection=SELECTION, to="again", options=ACCOUNT),
        LoadSettings(
            connection=CONNECTION,
            topic="orders",
            path="/data",
            options=ACCOUNT,
            read_options=PLANTED,
        ),
    ],
    ids=lambda settings: type(settings).__name__,
)
def test_repr_of_settings_omits_further_options(settings: object) -> None:
    assert "planted" not in repr(settings)
