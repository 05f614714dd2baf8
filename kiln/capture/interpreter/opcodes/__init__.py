"""Handlers of opcodes by normal name, in groups; importing the package registers them all."""

from __future__ import annotations

from kiln.capture.interpreter.opcodes import build, control, operators, stack

__all__ = ["build", "control", "operators", "stack"]
