"""Exceptions of functions of the application."""

from __future__ import annotations

import asyncio
from typing import Final

# Exceptions of a plain function of the application.  Cancellation is only delivered at an await,
# so a CancelledError or GeneratorExit is an error of that function.
APPLICATION_ERRORS: Final = (Exception, asyncio.CancelledError, GeneratorExit)
