"""What backends that read ONNX models share: which nodes they take, and the model of a part.

backend = OnnxBackend("onnxrt", {"Erf": REAL, "MatMul": REAL | WHOLE, ...}, SINGLE, SessionRun)
backend.refusal(node)        "" or "onnxrt has no BitShift of int64"
model_of(part)               inputs x0, x1, ..., then the sizes that no input has; results y0, y1, ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import final

import torch

from kiln.graph.ir.node import Node
from kiln.graph.offload.part import GraphPart
from kiln.onnx import NoOnnxForm, OnnxModel, calls_of_node, to_onnx
from kiln.runtime.offloaded import PartRun
from kiln.support.records import dataclass
from kiln.symbolic import Symbol
from kiln.tensor.dtypes import DTYPE_NAMES
from kiln.tensor.spec import TensorSpec

Dtypes = frozenset[torch.dtype]


@final
@dataclass(frozen=True, slots=True)
class OnnxBackend:
    """The dtypes for which a library has a kernel of each ONNX operator; `default` for those that are not listed.

    `run` makes the callable of a part.
    """

    name: str
    dtypes: Mapping[str, Dtypes]
    default: Dtypes
    run: Callable[[GraphPart], PartRun]

    def compile(self, part: GraphPart) -> PartRun:
        return self.run(part)

    def refusal(self, node: Node) -> str:
        """Why the library cannot run the calls that `node` becomes; "" if it can."""
        specs = [value.spec for value in (node, *node.inputs)]
        parts = [part for spec in specs for part in (spec if isinstance(spec, tuple) else (spec,))]
        if any([isinstance(part, TensorSpec) and part.device.type != "cpu" for part in parts]):
            return "it is on a GPU"
        try:
            calls = calls_of_node(node)
        except NoOnnxForm as problem:
            return str(problem.details["reason"])
        for call in calls:
            if call.dtype not in self.dtypes.get(call.op, self.default):
                return f"{self.name} has no {call.op} of {DTYPE_NAMES[call.dtype]}"
        return ""


class PartInputs:
    """The model of a part, and how its inputs are made of tensors and sizes."""

    def __init__(self, part: GraphPart) -> None:
        self.model, self.hidden = model_of(part)
        self.places = [part.symbols.index(symbol) for symbol in self.hidden]
        self.names = frozenset([value.name for value in self.model.inputs])

    def feed(
        self, tensors: Sequence[torch.Tensor], sizes: Sequence[int], without: Collection[str] = ()
    ) -> dict[str, object]:
        """Arrays by the names of the inputs that the model has, but those `without`."""
        given = {f"x{number}": tensor for number, tensor in enumerate(tensors)}
        for symbol, place in zip(self.hidden, self.places, strict=True):
            given[symbol.name] = torch.tensor([sizes[place]], device="cpu")
        wanted = self.names.difference(without)
        return {name: tensor.detach().contiguous().numpy() for name, tensor in given.items() if name in wanted}


def model_of(part: GraphPart) -> tuple[OnnxModel, tuple[Symbol, ...]]:
    """The model of a part, and the symbols that are its last inputs. Raises NoOnnxForm."""
    inputs, hidden = [f"x{number}" for number in range(len(part.graph.inputs))], part.hidden_symbols()
    outputs = [f"y{number}" for number in range(len(part.graph.outputs))]
    return to_onnx(part.graph, part.constants, inputs, symbols=hidden, outputs=outputs), hidden
