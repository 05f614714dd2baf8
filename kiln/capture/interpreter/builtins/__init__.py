"""Handlers of builtin callables; importing the package registers them all."""

from __future__ import annotations

from kiln.capture.interpreter.builtins import functions, methods, torch_functions

__all__ = ["functions", "methods", "torch_functions"]
