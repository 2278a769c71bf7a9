"""The list of passes in docs/compiler.md, written from the passes themselves: `python -m dla.compiler.document`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from dla.compiler.passes import PASSES

GUIDE = Path(__file__).parent.parent / "docs" / "compiler.md"
_BEGIN, _END = "<!-- passes: begin -->", "<!-- passes: end -->"


def pass_table() -> str:
    """One line for each pass, in their order: its name, and the first sentence of its module."""
    lines = ["| pass | what it does |", "|---|---|"]
    for name, run in PASSES.items():
        text = " ".join((sys.modules[run.__module__].__doc__ or "").split())
        sentence = re.match(r".*?[.](?= |$)", text)
        lines.append(f"| `{name}` | {sentence.group() if sentence else text} |".replace(" * ", r" \* "))
    return "\n".join(lines)


def with_passes(guide: str) -> str:
    """`guide`, the text of docs/compiler.md, with the list of passes as they are now."""
    before, _, rest = guide.partition(_BEGIN)
    after = rest.partition(_END)[2]
    return f"{before}{_BEGIN}\n{pass_table()}\n{_END}{after}"


if __name__ == "__main__":
    GUIDE.write_text(with_passes(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
