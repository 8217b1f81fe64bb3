"""Pytest plugin: every pytest run of its users loads it, so it imports little."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rocketmq_aio import testing
from rocketmq_aio.testing.plugin import unique_name

LOADED = """
import sys, types
import pytest
# Not the package's own __init__: what that imports is not the plugin's doing.
package = types.ModuleType("rocketmq_aio")
package.__path__ = [sys.argv[1]]
sys.modules["rocketmq_aio"] = package
before = set(sys.modules)
import rocketmq_aio.testing.plugin
print(*sorted(set(sys.modules) - before))
"""


def test_the_plugin_imports_only_itself_and_lazy_names() -> None:
    folder = testing.__path__[0].removesuffix("/testing")

    printed = subprocess.run(
        [sys.executable, "-c", LOADED, folder], stdout=subprocess.PIPE, text=True, check=True
    ).stdout

    assert printed.split() == [
        "rocketmq_aio.lazy_names",
        "rocketmq_aio.testing",
        "rocketmq_aio.testing.plugin",
    ]


@pytest.mark.parametrize("name", vars(testing)["__all__"])
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(testing, name).__name__ == name


def test_a_private_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Server'"):
        vars(testing)["__getattr__"]("Server")


def test_test_names_become_topic_names() -> None:
    first, second = (unique_name("test_sends[späť/%RETRY%-1]") for _ in range(2))

    assert first.rpartition("-")[0] == "test_sends-sp-RETRY-1"
    assert first != second


def test_long_test_names_are_shortened_to_topic_names() -> None:
    assert len(unique_name("x" * 300)) <= 127
