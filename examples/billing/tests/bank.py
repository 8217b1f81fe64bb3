"""A bank for tests."""

from collections import Counter

from examples.billing.app import BankIsBusyError, Order


class FakeBank:
    """Counts charges by order; it is busy for the first *busy* of them."""

    def __init__(self, busy: int = 0) -> None:
        self.charged: Counter[int] = Counter()
        self.calls = 0
        self._busy = busy

    async def charge(self, order: Order) -> None:
        self.calls += 1
        if self.calls <= self._busy:
            raise BankIsBusyError
        self.charged[order.number] += 1
