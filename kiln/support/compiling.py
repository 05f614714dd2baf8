"""The question whether code is being compiled; capture answers it in place of the call."""

from __future__ import annotations


def is_compiling() -> bool:
    """False in Python; inside a compiled region True, always: unlike `torch.compiler.is_compiling`, only code that
    knows of Kiln asks it."""
    return False
