"""Code that leaves a variant: numbers drawn at random until then are drawn again by what runs instead.

states = random_states(devices)
try:
    outputs = region(x)
except (error of values):
    restore_states(states)
    return side_exit(x)
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import final

from kiln.capture.bytecode.assemble import Assembler, Label, TryBegin, TryEnd
from kiln.capture.interpreter.codegen import CodeWriter, emit_source
from kiln.capture.interpreter.core import CaptureState
from kiln.capture.interpreter.data_values import calls_opaque
from kiln.capture.interpreter.host_draws import DRAWN, Draws
from kiln.capture.interpreter.speculation import write_exit
from kiln.capture.interpreter.value_checks import may_fail
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.rewrite import all_nodes
from kiln.graph.prims.table import Kind
from kiln.graph.trace.nested_graphs import draws_random
from kiln.runtime.checked_region import (
    FallbackErrors,
    is_behind_checks,
    is_failed_check,
    is_of_operator,
    is_of_values,
    random_states,
)
from kiln.runtime.host_draws import HostDraws, restore_states
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec

STATES, ERROR, FAILURE = "_kiln_random_states", "_kiln_error", "_kiln_failure"


@final
@dataclass(frozen=True, slots=True)
class Fallback:
    """What runs instead of a region: `leave` writes its call for the `errors` that lead there at run time."""

    errors: FallbackErrors
    leave: Callable[[], None]


def errors_of(graph: Graph, is_checked: bool, own_region: bool) -> Callable[[BaseException], bool] | None:
    """Which errors of the region lead to the original; None: it raises none, or eager cannot run the same again.

    Those of a region that checks what the capture has assumed do. Operators of torch fail in an `own_region` as they do
    in eager; other compilers' regions have errors of their own.
    """
    if is_checked:
        return is_failed_check if graph.writes else is_behind_checks
    nodes = list(all_nodes(graph))
    libraries = [node for node in nodes if node.op.kind is Kind.LIBRARY]
    if calls_opaque(graph) or not all(str(node.attrs["target"]).startswith("aten.") for node in libraries):
        return None
    if graph.writes:
        return is_failed_check if own_region and any(node.op.name == "assert" for node in nodes) else None
    of_operators = own_region and bool(libraries or any(node.op.name == "opaque" for node in nodes))
    tensors = [node.spec for node in nodes if isinstance(node.spec, TensorSpec)]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return is_of_operator if of_operators else None
    if of_operators:
        return is_behind_checks
    return is_of_values if any(map(may_fail, nodes)) else None


def make_fallback(
    s: CaptureState,
    errors: Callable[[BaseException], bool],
    exits: Callable[[], None] | None,
    leave: Callable[[], None],
) -> Fallback:
    """What runs for `errors`: `exits` where the capture has assumed something, else `leave`.

    Without assumptions eager must raise them, too, unless it draws other random numbers or the program handles them.
    """
    is_exact = exits is None and not s.counters.may_catch and not draws_random(s.recorder.nodes)
    return Fallback(FallbackErrors(errors, is_exact), exits or leave)


@contextmanager
def falling_back(head: Assembler, fallback: Fallback | None) -> Iterator[None]:
    """The instructions written inside, which begin with an empty stack and leave one value, run under `fallback`."""
    if fallback is None:
        yield
        return
    landing, passed, mine = Label(), Label(), Label()
    begin = TryBegin(landing, False, 0)
    head.items.append(begin)
    yield
    head.items.append(TryEnd(begin))
    head.op("JUMP_FORWARD", passed)
    head.label(landing)
    head.op("STORE_FAST", ERROR).const(fallback.errors).op("LOAD_FAST", ERROR).call(1)
    head.op("COPY", 1).op("STORE_FAST", FAILURE).jump_if(True, mine)
    head.op("LOAD_FAST", ERROR).op("DELETE_FAST", ERROR).op("RERAISE", 0)
    head.label(mine)
    head.op("DELETE_FAST", ERROR)
    fallback.leave()
    head.const(fallback.errors).attr("succeeded").op("LOAD_FAST", FAILURE).call(1).op("POP_TOP")
    head.op("RETURN_VALUE")
    head.label(passed)


def write_draws(
    head: Assembler, writer: CodeWriter, draws: HostDraws, found: Draws, side_exit: Callable[..., object],
    code: types.CodeType,
) -> None:  # fmt: skip
    """Draw in front of the region, or leave if what is drawn has another form."""
    head.const(draws)
    for source in found.given:
        emit_source(head, source, writer)
    head.call(len(found.given))
    head.op("COPY", 1)
    head.const(None)
    head.op("IS_OP", 0)
    exit_unless(head, partial(write_exit, head, side_exit, code), False)
    head.op("UNPACK_SEQUENCE", found.leaves + 1)
    for number in range(found.leaves + 1):
        head.op("STORE_FAST", f"{DRAWN}{number}")


def write_leave(s: CaptureState, head: Assembler, code: types.CodeType, side_exit: Callable[..., object]) -> None:
    """Push the result of the side exit, which draws the random numbers of the call again."""
    found = s.part(Draws)
    if (draws := found.plan()) is not None:
        head.const(draws.restore)
        head.op("LOAD_FAST", f"{DRAWN}{found.leaves}")
        head.call(1)
        head.op("POP_TOP")
    write_exit(head, side_exit, code)


def exit_unless(head: Assembler, write_side_exit: Callable[[], None], expected: bool) -> None:
    """Pop a truth value, and leave through the side exit if it is not `expected`."""
    passed = Label()
    head.jump_if(expected, passed)
    write_side_exit()
    head.op("RETURN_VALUE")
    head.label(passed)


def write_random_states(s: CaptureState, head: Assembler, leave: Callable[[], None]) -> Callable[[], None]:
    """Keep the states of torch's generators; what leaves behind the region draws from them again."""
    head.const(random_states)
    devices = {str(node.spec.device) for node in s.recorder.nodes if isinstance(node.spec, TensorSpec)}
    head.const(tuple(sorted(devices)))
    head.call(1)
    head.op("STORE_FAST", STATES)

    def leave_restored() -> None:
        head.const(restore_states)
        head.op("LOAD_FAST", STATES)
        head.call(1)
        head.op("POP_TOP")
        leave()

    return leave_restored
