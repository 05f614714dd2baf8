"""Functions by which a program speaks to torch.compile, in modules that Kiln does not import.

@torch.compiler.nested_compile_region       interpreted; equal regions are found anyway (`repeated_layers`)
with error_on_graph_break(True):            a graph break within is raised, as with `fullgraph=True`
torch.compile(model)(x)                     the original is interpreted
torch.export.load(path).module()(x)         a module of torch.fx is one like others
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import nn

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Handler, Kwargs, Value
from kiln.capture.interpreter.variables.function import NAMED_HANDLERS
from kiln.capture.interpreter.variables.module import Module, is_plain_graph
from kiln.support.errors import KilnError
from kiln.support.records import dataclass

UTILS = "torch._dynamo.utils"
ORIGINAL = "_orig_mod"


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


def in_place_of(replacement: Callable[..., object]) -> Handler:
    """Python code that is interpreted instead."""
    return lambda s, args, kwargs: s.wrap(replacement, None).call(s, args, kwargs)


def attribute_of_original(module: nn.Module, name: str) -> object:
    """Of a module that `torch.compile` has wrapped."""
    original = module._modules[ORIGINAL]
    return original if name == ORIGINAL else getattr(original, name)


def call_original(module: nn.Module, *args: object, **kwargs: object) -> object:
    original = module._modules[ORIGINAL]
    assert original is not None
    return original(*args, **kwargs)


def call_graph_module(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Of a class that torch.fx has made: around `nn.Module.__call__` it only explains errors."""
    module, *rest = args
    if not isinstance(module, Module) or not is_plain_graph(module.cls):
        raise UnsupportedCall(function=module.type_name(), why="its class has a __call__ of its own beside torch.fx's")
    return module.call(s, rest, kwargs)


def nothing(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return s.const(None)


NAMED_HANDLERS.update({
    ("torch._dynamo.eval_frame", "OptimizedModule.__getattr__"): in_place_of(attribute_of_original),
    ("torch._dynamo.eval_frame", "OptimizedModule.__call__"): in_place_of(call_original),
    ("torch.fx.graph_module", "GraphModule.recompile.<locals>.call_wrapped"): call_graph_module,
    ("torch.fx.graph_module", "_WrappedCall.__call__"): lambda s, args, kwargs: call_graph_module(s, args[1:], kwargs),
    # Checks of the arguments, which torch.compile leaves out, too; the graph has its own.
    ("torch.export._unlift", "_check_inputs_match"): nothing,
    ("torch.export._unlift", "_check_input_constraints_for_module"): nothing,
})  # fmt: skip
NAMED_HANDLERS[UTILS, "_get_error_on_graph_break"] = lambda s, args, kwargs: s.const(s.part(BreakPolicy).is_error)
NAMED_HANDLERS[UTILS, "_set_error_on_graph_break"] = set_is_error
NAMED_HANDLERS["torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder"] = call_region
