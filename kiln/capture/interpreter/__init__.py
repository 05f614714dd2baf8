"""The symbolic interpreter: from a call of a Python function to guards, regions and transformed code.

    capture_frame(function, locals, Callbacks(compile_region, recorder_factory, ...))  ->  Capture

How to add an opcode: a row in the version table (`capture/bytecode/v3xx.py`) gives its normal name; a handler with
`@opcode("NAME", pops=2, pushes=1)` in `opcodes/` executes it. `pops` means that it may break the graph, and gives the
number of its operands.
How to add a kind of value: a class derived from `core.Value` in a file of `variables/`, a wrapper with `@wraps(type)`.
How to model a builtin: `@handles(function)` in `builtins/`; for a method the unbound method, `@handles(list.append)`,
whose first argument is the object. A pure function of constants is a row in `pure.PURE_FUNCTIONS` instead.
How to add an operator on a kind of value: a row of `OPERATORS` in `operations.py`.
How to add a reason to break: a class in `breaks.py` with the next code.
"""

from __future__ import annotations

from kiln.capture.interpreter.capture import Callbacks, Capture, Region, capture_frame

__all__ = ["Callbacks", "Capture", "Region", "capture_frame"]
