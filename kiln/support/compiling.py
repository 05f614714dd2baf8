"""`kiln.is_compiling`; capture replaces the call by True."""

from __future__ import annotations


def is_compiling() -> bool:
    """True in compiled code, else False. (`torch.compiler.is_compiling` depends on an option.)"""
    return False
