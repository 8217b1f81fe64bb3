"""Long description of the package: README.md without relative links.

Package indexes do not have the files of the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https?://|mailto:)[^)]*\)")


def long_description(readme: str) -> str:
    """Return *readme* with relative links replaced by their texts."""
    return RELATIVE_LINK.sub(r"\1", readme)


class ReadmeHook(MetadataHookInterface):
    """Sets the dynamic field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the long description to *metadata*."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": long_description(text)}
