"""The long description: README.md without links into the repository.

On the page of a package index there is nothing that they could lead to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https?://|mailto:)[^)]*\)")


def long_description(readme: str) -> str:
    """Return *readme* with the text of relative links in their place."""
    return RELATIVE_LINK.sub(r"\1", readme)


class ReadmeHook(MetadataHookInterface):
    """Sets the dynamic field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the long description into *metadata*."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": long_description(text)}
