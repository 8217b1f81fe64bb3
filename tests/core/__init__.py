"""Tests of the compiled core: they build it."""
