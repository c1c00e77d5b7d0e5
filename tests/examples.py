"""The Python examples of README and docs/ as modules: ``python tests/examples.py FOLDER``, for mypy (tox -e types)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write(folder: Path) -> int:
    """Write each Python block of the documents as a module into a new folder; return their number."""
    folder.mkdir(parents=True)
    count = 0
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        blocks = re.findall(r"^```python\n(.*?)^```$", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        for block in blocks:
            count += 1
            (folder / f"{document.stem.replace('-', '_')}_{count}.py").write_text(block, "utf-8")
    return count


if __name__ == "__main__":
    print(write(Path(sys.argv[1])), "examples")
