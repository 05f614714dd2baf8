"""`kiln.export` for what users have: modules that are compiled are exported as their originals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from kiln.api.arguments import read_options
from kiln.api.module import original_module
from kiln.capture.interpreter.variables.function import WRAPPED_BY_TORCH
from kiln.native._frames import Dispatcher
from kiln.pipeline.dispatchers import original_of
from kiln.programs.analysis import ProgramCost
from kiln.programs.export import export_program
from kiln.programs.package_writer import package_program
from kiln.programs.program import COMPILERS, Compiler, Level, Numerics, Program
from kiln.programs.static.library import write_static_library


def export(
    target: object,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    dynamic_shapes: object = None,
    level: Level = "core",
    training: bool = False,
    numerics: Numerics = "fast",
) -> Program:
    """One call of `target` as a whole program.

    Args:
        target: an `nn.Module`, a function or a method; of one that Kiln or torch has compiled the original.
        args: the positional arguments of the call; tensors stand for all tensors of their sizes.
        kwargs: the keyword arguments.
        dynamic_shapes: which sizes are symbols, by argument name: `{"x": {0: kiln.Dim("batch", max=64)}}`, as
            `torch.export` takes it; or `kiln.Examples`, more calls from whose sizes this is inferred.
        level: what `graph_module` and `text()` show: "torch" calls, "core" ATen, or Kiln's primitives ("prims").
        training: add the gradients of the first result, a loss, with respect to the parameters that require them.
        numerics: "fast" takes operators apart into primitives, which compile best; "strict" keeps those of ATen whose
            parts would round otherwise (norms, softmax, gelu): the program has eager's bits, and a smaller graph.

    Returns:
        The program. It runs, prints, is saved to a file, and checks the shapes of a call before running.

    Raises:
        KilnError: with the user's line, where the call is not one graph.
    """
    if isinstance(target, nn.Module):
        target = original_module(target)
    elif isinstance(target, Dispatcher):
        target = original_of(target)
    target = getattr(target, WRAPPED_BY_TORCH, target)
    return export_program(
        target, args, kwargs, dynamic_shapes=dynamic_shapes, level=level, training=training, numerics=numerics
    )


def analyze(target: object, *, dynamic_shapes: object = None) -> Callable[..., ProgramCost]:
    """`kiln.analyze(fn)(*args, **kwargs)`: what such a call costs, as formulas in its symbols; nothing is computed.

    It prints as flops, bytes moved, peak memory, and the constraints of the sizes. Raises KilnError where the call is
    not one graph.
    """

    def call(*args: object, **kwargs: object) -> ProgramCost:
        program = export(target, args, kwargs, dynamic_shapes=dynamic_shapes)
        return program.cost

    return call


COMPILERS.append(Compiler(package_program, write_static_library, export_program, read_options))
