"""Ranges that index tensors: their bounds stay symbols, so that one variant serves all sizes.

    q[range(len(action)), action]        q[torch.arange(len(action)), action]
    x[:, range(1, n)] = 0                x[:, torch.arange(1, n)] = 0

Whether a range is an index is read in the bytecode behind its call. Whatever else is asked of it fixes its numbers.
"""

from __future__ import annotations

from typing import final

from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Codegen, Value
from kiln.capture.interpreter.frame import OPCODES, SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.symbolic import Symbolic

LOOKED_AT = 24
"""Instructions behind a call in which its result becomes an index."""


def index_range(s: CaptureState, args: Args) -> Value | None:
    """The range that the current instruction makes for a subscript; None if its numbers are to be fixed."""
    if len(args) not in (1, 2) or not all([arg.python_type() is int for arg in args]):
        return None
    symbols = [arg for arg in args if isinstance(arg, Symbolic)]
    if not symbols or not all([arg.node.node.has_hint() for arg in symbols]) or not becomes_index(running_frame(s)):
        return None
    numbers = [arg.node if isinstance(arg, Symbolic) else arg.real() for arg in (s.const(0), *args)]
    is_ordered = s.wrap(numbers[-1] >= numbers[-2], None).truth(s)  # `arange` refuses what an empty range takes
    return IndexRange(args) if is_ordered else None


def becomes_index(frame: SymbolicFrame) -> bool:
    """Whether the bytecode subscripts something with the result of the current instruction, or with a tuple of it."""
    above, code = 0, frame.decoded  # values above it on the stack
    for at in range(frame.at + 1, min(frame.at + LOOKED_AT, len(code))):
        instruction = code.instruction(at)
        name, row = instruction.name, OPCODES.get(instruction.name)
        if name in ("BINARY_SUBSCR", "STORE_SUBSCR") and above == 0:
            return True
        if name == "BUILD_TUPLE":
            above = max(above - instruction.arg + 1, 0)  # the tuple in its place, or above it
        elif name in LOADS:
            above += 1
        elif name in ("KW_NAMES", "NOP"):
            continue
        elif row is None or row.pops is None or row.operands(instruction.arg) > above:
            return False
        else:
            above += row.results(instruction.arg) - row.operands(instruction.arg)
    return False


LOADS = ("LOAD_FAST", "LOAD_CONST", "LOAD_DEREF", "PUSH_NULL")


@final
class IndexRange(Value):
    """`range(...)` that indexes a tensor."""

    __slots__ = ("args",)

    def __init__(self, args: Args) -> None:
        self.args = args

    def python_type(self) -> type:
        return range

    def fixed(self, s: CaptureState) -> Value:
        return s.const(self.constant(s))

    def constant(self, s: CaptureState) -> range:
        return range(*[arg.constant(s) for arg in self.args])

    def torch_arg(self, s: CaptureState) -> object:
        return self.fixed(s).torch_arg(s)

    def length(self, s: CaptureState) -> int:
        return self.fixed(s).length(s)

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        return self.fixed(s).get_item(s, key, site)

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return self.fixed(s).iterate(s, site)

    def emit(self, g: Codegen) -> None:
        g.make(self, range, *self.args)
