"""Kinds of values, one file per kind; importing the package registers how objects become values."""

from __future__ import annotations

from kiln.capture.interpreter.variables import builtin, classes, constant, function, mapping, module, sequence, tensor

__all__ = ["builtin", "classes", "constant", "function", "mapping", "module", "sequence", "tensor"]
