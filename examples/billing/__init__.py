"""An application with its test suite; docs/guide/testing.md explains it."""
