"""Type checks of hooks: an object that is not a hook is an error."""

# pyright: reportUnnecessaryTypeIgnoreComment=error

from rocketmq_aio import (
    LitePullConsumer,
    MessageExt,
    MessageTrace,
    PopConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from rocketmq_aio.hooks import ConsumeContext, EndTransactionContext, SendContext
from rocketmq_aio.opentelemetry import OpenTelemetryHook


class Audit:
    """Consume hook and send hook in one."""

    def before(self, context: ConsumeContext) -> None: ...
    def after(self, context: ConsumeContext) -> None: ...
    def before_send(self, context: SendContext) -> None: ...
    def after_send(self, context: SendContext) -> None: ...


class Misspelt:
    """Lacks `after_send`."""

    def before_send(self, context: SendContext) -> None: ...
    def after_sent(self, context: SendContext) -> None: ...


class Endings:
    """End-transaction hook."""

    def end_transaction(self, context: EndTransactionContext) -> None: ...


class Mine:
    """Filter."""

    def filter(self, messages: object) -> list[MessageExt]:
        """Return no message."""
        return []


async def handle(message: MessageExt) -> None:
    """Handle *message*."""


def check(message: MessageExt) -> TransactionState:
    """Return the state of a transaction."""
    return TransactionState.COMMIT


Producer("shop", hooks=[Audit(), MessageTrace(), OpenTelemetryHook()])
Producer("shop", hooks=[Misspelt()])  # type: ignore[list-item]
Producer("shop", hooks=[Mine()])  # type: ignore[list-item]
TransactionProducer("till", check=check, hooks=[Audit(), Endings(), MessageTrace()])
PushConsumer("billing", on_message=handle, hooks=[Audit(), Mine(), MessageTrace()])
PushConsumer("billing", on_message=handle, hooks=[print])  # type: ignore[list-item]
LitePullConsumer("billing", hooks=[Audit(), MessageTrace(), OpenTelemetryHook()])
LitePullConsumer("billing", hooks=[Mine()])  # type: ignore[list-item]
PopConsumer("billing", hooks=[Audit(), MessageTrace()])
