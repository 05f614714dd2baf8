"""Writes docs/errors.md, the page of all codes, from the error classes.

python tools/errors.py            rewrite the page
python tools/errors.py --check    fail if the page is not up to date
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "docs" / "errors.md"

INTRODUCTION = """\
# Codes

What Kiln says when it breaks a graph, runs something in eager mode, or raises. Written by `python tools/errors.py` from
the error classes (a test checks that it is up to date). Names in braces are filled in when the error is raised.
"""

CHAPTERS = {
    "1": "Capture: graph breaks, and functions that run eager",
    "2": "Graph and shapes",
    "3": "Loops and code generation",
    "4": "Run time",
    "5": "Arguments and options",
    "6": "Files and caches",
    "9": "Faults of the compiler",
}
"""By the first digit of a code."""


def page() -> str:
    """The text of the page."""
    import_all()
    from kiln.support.errors import ERRORS

    lines = [INTRODUCTION]
    chapter = ""
    for code in sorted(ERRORS):
        first = code.removeprefix("KILN")[0]
        if first != chapter:
            chapter = first
            lines.append(f"## {CHAPTERS[first]}\n")
        lines += entry(code, ERRORS[code])
    return "\n".join(lines)


def entry(code: str, error: type) -> Iterator[str]:
    """The entry of one code: what, why, what to try; an error has all three."""
    if missing := [name for name in ("what", "why", "try_") if not getattr(error, name)]:
        sys.exit(f"{code} does not have: {', '.join(missing)}")
    yield f"**{code}** {error.what}: {error.why}."
    yield from (f"- Try: {hint}" for hint in error.try_)
    yield ""


def import_all() -> None:
    """Import every module of the package: error classes register themselves."""
    import kiln

    for module in pkgutil.walk_packages(kiln.__path__, "kiln."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        return int(text != PAGE.read_text())
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
