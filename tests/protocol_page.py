"""What `docs/protocol.md` says of the scripts, made from the heads of their files:
``python -m tests.protocol_page`` writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "protocol.md"
SCRIPTS = sorted((ROOT / "busmq_spark").glob("*/lua/*.lua"), key=lambda script: script.stem)
_PART = re.compile(r"(<!-- scripts -->\n).*?(\n<!-- /scripts -->)", re.DOTALL)


def head(script: Path) -> str:
    """The comment that a script begins with."""
    lines = []
    for line in script.read_text("utf-8").splitlines():
        if not line.startswith("--"):
            break
        if not line.startswith("-- @include"):
            lines.append(line.removeprefix("--").removeprefix(" "))
    return "\n".join(lines)


def scripts() -> str:
    """The heads of all scripts, by name."""
    return "\n\n".join(
        f"#### `{script.stem}`\n\n```text\n{head(script)}\n```" for script in SCRIPTS
    )


def with_scripts(page: str) -> str:
    """The page with the heads as they are now."""
    return _PART.sub(lambda found: found[1] + scripts() + found[2], page)


if __name__ == "__main__":
    PAGE.write_text(with_scripts(PAGE.read_text("utf-8")), "utf-8")
