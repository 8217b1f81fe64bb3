"""Arrow columns: stored messages to record batches, and rows to batch entries."""

from __future__ import annotations

from typing import Any

import pyarrow.compute

Column = Any  # an Arrow array or record batch: pyarrow has no types
pc: Any = pyarrow.compute  # its functions are created on import: type checkers see none
