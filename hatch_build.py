"""The long description of the package: the README with absolute links, for a package index.

In a clone the README's links are relative, so they work there and on a host of the repository. The address is
`Repository` in pyproject.toml.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!\[[^\]]*\]\(|\]\()(?![a-z]+:|#)")


def absolute(text: str, repository: str) -> str:
    """Markdown whose links to files lead to the repository; pictures lead to the files themselves.

    >>> absolute("![curve](a.png) [docs](docs/faq.md#gpu) [here](#top)", "https://host/x")
    '![curve](https://host/x/raw/main/a.png) [docs](https://host/x/blob/main/docs/faq.md#gpu) [here](#top)'
    """

    def lead(found: re.Match[str]) -> str:
        return f"{found[1]}{repository}/{'raw' if found[1].startswith('!') else 'blob'}/main/"

    return RELATIVE.sub(lead, text)


class LongDescription(MetadataHookInterface):
    """Called by hatchling when it builds a wheel or an sdist."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        content = absolute(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": content}
