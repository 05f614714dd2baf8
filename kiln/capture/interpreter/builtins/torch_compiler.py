"""Functions by which a program speaks to torch.compile, in modules that Kiln does not import.

@torch.compiler.nested_compile_region       interpreted; equal regions are found anyway (`repeated_layers`)
with error_on_graph_break(True):            a graph break within is raised, as with `fullgraph=True`
"""

from __future__ import annotations

from typing import final

from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.variables.function import NAMED_HANDLERS
from kiln.support.errors import KilnError
from kiln.support.records import dataclass

UTILS = "torch._dynamo.utils"


@final
@dataclass
class BreakPolicy:
    """What the program has said of graph breaks at this point."""

    is_error: bool = False


def refuse_break(s: CaptureState, stop: KilnError) -> None:
    """Let the break be raised if the program says so."""
    stop.forbidden = s.part(BreakPolicy).is_error


def set_is_error(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    s.part(BreakPolicy).is_error = args[0].truth(s)
    return s.const(None)


def call_region(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """The placeholder of a nested region raises when it is told that it is compiled."""
    return args[0].call(s, args[1:], kwargs)


NAMED_HANDLERS[UTILS, "_get_error_on_graph_break"] = lambda s, args, kwargs: s.const(s.part(BreakPolicy).is_error)
NAMED_HANDLERS[UTILS, "_set_error_on_graph_break"] = set_is_error
NAMED_HANDLERS["torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder"] = call_region
