"""The backend that torch.compile finds as "kiln", through the entry point group `torch_dynamo_backends`.

    torch.compile(model, backend="kiln", mode="reduce-overhead")

torch.compile captures the program, keeps its own guards and hands over one torch-level graph per region. The `forward`
of the graph is compiled as `kiln.compile` compiles a function, autograd included, at its first call. Sizes and numbers
that are symbols in the graph are symbols from that call on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch

from kiln.api.arguments import read_options
from kiln.api.entry import compile_graph, reset

FRAME = re.compile(r'File "(.*)", line (\d+), in (\S+)')


@final
class TorchBackend:
    """Compiles the graphs that torch.compile hands over; `reset` is what `torch.compiler.reset` calls."""

    __name__ = "kiln"

    def __call__(
        self,
        module: torch.fx.GraphModule,
        example_inputs: Sequence[object],
        *,
        mode: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Callable[..., object]:
        return compile_graph(module, title(module), read_options(mode, options, None), symbolic_inputs(module))

    def reset(self) -> None:
        reset()


kiln = TorchBackend()


def title(module: torch.fx.GraphModule) -> str:
    """What reports and warnings call the graph: `model.py:41, in forward`, where its first operation stands."""
    for node in module.graph.nodes:
        frames = FRAME.findall(str(node.meta.get("stack_trace", "")))
        if node.op.startswith("call") and frames:
            file, line, function = frames[-1]
            return f"{os.path.basename(file)}:{line}, in {function}"
    return "graph of torch.compile"


def symbolic_inputs(module: torch.fx.GraphModule) -> dict[str, tuple[int, ...]]:
    """The inputs with symbolic dimensions, and numbers that are symbols (no dimensions).

    Example inputs may be real tensors; the fakes of the capture are the `example_value` of their placeholders.
    """
    found: dict[str, tuple[int, ...]] = {}
    for node in module.graph.nodes:
        value = node.meta.get("example_value") if node.op == "placeholder" else None
        if isinstance(value, torch.SymInt | torch.SymFloat):
            found[str(node.target)] = ()
        elif isinstance(value, torch.Tensor):
            dims = tuple(dim for dim, size in enumerate(value.shape) if isinstance(size, torch.SymInt))
            if dims:
                found[str(node.target)] = dims
    return found
