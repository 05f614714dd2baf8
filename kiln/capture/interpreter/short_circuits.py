"""`and` and `or` of truth values of tensors, in a test one side of which raises.

    assert up.all() or down.all()        the region computes both, and checks that `up.all() | down.all()` is true

Python evaluates the second operand only if the first one leaves the answer open. The graph always does, so it must have
no effect and raise nothing.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

from kiln.capture.interpreter.breaks import GraphBreak, Raised
from kiln.capture.interpreter.core import Value
from kiln.capture.interpreter.data_values import JUMPS, LONGEST_RAISE, STRAIGHT, ValueNeeded, past_step, raises_at
from kiln.capture.interpreter.frame import SymbolicFrame, read_variables, run_to
from kiln.capture.interpreter.nested_calls import is_single, without_effects
from kiln.capture.interpreter.value_checks import may_fail
from kiln.capture.interpreter.variables.tensor import Tensor, record
from kiln.graph.ir.node import Node
from kiln.graph.trace.constant_value import PURE_KINDS
from kiln.graph.trace.nested_graphs import NotNested


def takes_both_operands(frame: SymbolicFrame, first: Value, when: bool, target: int) -> bool:
    """Go on at the test of the second operand, with the truth of both; False if this is no such test.

    `when`, `target`: the jump on the first operand.

    Raises:
        ValueNeeded: if the second operand may have effects or raise; the next attempt breaks the graph.
    """
    s, here = frame.state, (frame.code, frame.at)
    second = second_test(frame, frame.ip, when, landing(frame, target))
    if second is None or here in s.needed or s.function_modes or not is_truth(first):
        return False
    other, failed = operand_up_to(frame, second)
    if not is_truth(other):
        raise failed
    frame.push(record(s, torch.logical_or if when else torch.logical_and, [first, other], {}))
    return True


def operand_up_to(frame: SymbolicFrame, end: int) -> tuple[Value, ValueNeeded]:
    """The second operand, the code up to `end`, computed in any case; and what is raised where that will not do.

    Raises:
        ValueNeeded: if it has effects, breaks the graph, or may raise.
    """
    s = frame.state
    failed = ValueNeeded(
        (frame.code, frame.at), past_step(frame), "the second operand of `and` or `or` has effects or may raise"
    )
    read_variables(frame)
    held, nodes = [*frame.locals.values(), *frame.stack], len(s.recorder.nodes)
    try:
        with without_effects(s, [frame, *held]):
            run_to(frame, end, held)
    except (NotNested, GraphBreak, Raised):
        raise failed from None
    if not all(map(is_safe, s.recorder.nodes[nodes:])):
        raise failed
    return frame.pop(), failed


def second_test(frame: SymbolicFrame, start: int, when: bool, target: Hashable) -> int | None:
    """The jump to `target` behind straight code from `start`, whose answer, or that of a third operand, raises."""
    for at in range(start, min(start + LONGEST_RAISE, len(frame.decoded))):
        instruction = frame.decoded.instruction(at)
        if instruction.name in JUMPS:
            if JUMPS[instruction.name] is not when or landing(frame, instruction.arg) != target:
                return None
            ends = raises_at(frame, at) is not None or second_test(frame, at + 1, when, target) is not None
            return at if ends else None
        if not instruction.name.startswith(STRAIGHT) or instruction.name.startswith("STORE_"):
            return None
    return None


def landing(frame: SymbolicFrame, at: int) -> Hashable:
    """Where a jump to `at` leads; the compiler makes copies of a short `return`."""
    first = frame.decoded.instruction(at)
    loads = first.name == "LOAD_CONST" and frame.decoded.instruction(at + 1).name == "RETURN_VALUE"
    return f"return {first.arg!r}" if loads or first.name == "RETURN_CONST" else at


def is_truth(value: Value) -> bool:
    return isinstance(value, Tensor) and is_single(value) and value.fake.dtype is torch.bool


def is_safe(node: Node) -> bool:
    return (node.op.kind in PURE_KINDS and not may_fail(node)) or node.op.name == "local_scalar"
