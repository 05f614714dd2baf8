"""What a program says of compiling: `kiln.is_compiling`, which capture replaces by True, and the mark of functions."""

from __future__ import annotations

DISABLED = "_torchdynamo_disable"
"""The attribute by which `torch.compiler.disable` and `kiln.disable` mark a function that is to run in Python."""


def is_compiling() -> bool:
    """True in compiled code, else False. (`torch.compiler.is_compiling` depends on an option.)"""
    return False
