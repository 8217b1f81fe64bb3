"""Type checks of settings: an invalid choice is an error.

Expected errors have an ignore; an unneeded ignore is an error as well.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=error

from datetime import UTC, datetime

from rocketmq_aio import (
    AdminClient,
    AllocateAveragely,
    ClientConfig,
    LitePullConfig,
    LocalFileOffsetStore,
    PopConfig,
    ProducerConfig,
    PushConfig,
)

ClientConfig(header_encoding="json", namespace_version=2)
ClientConfig(header_encoding="xml")  # type: ignore[arg-type]
ClientConfig(namespace_version=3)  # type: ignore[arg-type]

ProducerConfig(compression="zstd")
ProducerConfig(compression=None)
ProducerConfig(compression="zsdt")  # type: ignore[arg-type]

ClientConfig.from_env(namesrv="127.0.0.1:9876", instance_name="web-1", header_encoding="json")
ClientConfig.from_env({"NAMESRV_ADDR": "127.0.0.1:9876"}, request_timeout_seconds=5)
ClientConfig.from_env(nmaesrv="127.0.0.1:9876")  # type: ignore[call-arg]
ClientConfig.from_env(header_encoding="xml")  # type: ignore[arg-type]

PopConfig(start_from="earliest")
PopConfig(start_from=datetime.now(UTC))  # type: ignore[arg-type]
PushConfig(start_from=datetime.now(UTC))
PushConfig(start_from="erliest")  # type: ignore[arg-type]
PushConfig(undecodable="dead_letter")
PushConfig(undecodable="dead-letter")  # type: ignore[arg-type]
LitePullConfig(offset_illegal="error", unreadable="skip")
LitePullConfig(offset_illegal="err")  # type: ignore[arg-type]
LitePullConfig(unreadable="drop")  # type: ignore[arg-type]

PushConfig(allocate=AllocateAveragely(), offset_store=LocalFileOffsetStore())
PushConfig(allocate={"orders": AllocateAveragely()})
PushConfig(allocate=AllocateAveragely)  # type: ignore[arg-type]
PushConfig(offset_store="offsets.json")  # type: ignore[arg-type]


async def create(admin: AdminClient) -> None:
    """Create topics with permissions."""
    await admin.create_topic("orders", perm="RW")
    await admin.create_topic("orders", perm="rw")  # type: ignore[arg-type]
