"""
What mkdocs changes in the pages: the README is the first one, and a link that leaves docs/ becomes its text.

Such a link leads to code or to a document beside it, which the site does not have.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the README, with links as from docs/."""
    from mkdocs.structure.files import File

    text = (ROOT / "README.md").read_text("utf-8")
    files.append(File.generated(config, "index.md", content=in_docs(text, folder="")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave links inside of docs/ as they are."""
    return markdown if page.file.src_uri == "index.md" else in_docs(markdown, folder="docs")


def in_docs(text: str, *, folder: str) -> str:
    """Return a page of ``folder`` as a page of docs/."""

    def replaced(link: re.Match[str]) -> str:
        words, target = link.groups()
        if "://" in target or target.startswith("#"):
            return link[0]
        path, hash_sign, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        path = "docs/index.md" if path == "README.md" else path
        if not path.startswith("docs/") or not path.endswith(".md"):
            return words
        return f"[{words}]({path.removeprefix('docs/')}{hash_sign}{anchor})"

    return LINK.sub(replaced, text)
