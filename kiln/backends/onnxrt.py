"""ONNX Runtime on the CPU: `kiln.compile(model, backend="onnxrt")`.

Parts become ONNX models (`kiln/onnx`), with weights as inputs, so that a program may change them. Where it does not,
ONNX Runtime packs them ahead of time if they are part of the model:

    from kiln.backends.onnxrt import OnnxRuntime
    kiln.compile(model, backend=OnnxRuntime(constant_weights=True))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast, final

import torch

from kiln.backends.onnx_parts import OnnxBackend, PartInputs
from kiln.backends.registry import register_backend
from kiln.graph.ir.node import Node
from kiln.graph.offload.part import GraphPart
from kiln.onnx import OnnxModel, model_bytes
from kiln.runtime.offloaded import PartRun
from kiln.support.optional import load_required
from kiln.support.records import dataclass

REAL = frozenset({torch.float32, torch.float64})
SINGLE = frozenset({torch.float32})
WHOLE = frozenset({torch.int32, torch.int64})
NUMBERS = REAL | WHOLE
BYTES = frozenset({torch.bool, torch.uint8})
ALL = NUMBERS | BYTES


@final
class SessionRun:
    """A session for the model of a part."""

    def __init__(self, part: GraphPart, constant_weights: bool = False) -> None:
        self.inputs = PartInputs(part)
        self.model = self.inputs.model
        self.fixed: list[FixedWeight] = []
        self.looks_for_weights = constant_weights
        self.session = None if constant_weights else new_session(self.model)

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        if self.looks_for_weights:
            self.fix_weights(tensors)
        elif not all([weight.is_same(tensors[weight.number]) for weight in self.fixed]):
            self.fixed, self.session = [], new_session(self.model)
        fixed = {f"x{weight.number}" for weight in self.fixed}
        assert self.session is not None
        results = self.session.run(None, self.inputs.feed(tensors, sizes, fixed))
        return [torch.from_numpy(result) for result in results]

    def fix_weights(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make parameters part of the model."""
        self.looks_for_weights = False
        for number, tensor in enumerate(tensors):
            if isinstance(tensor, torch.nn.Parameter) and not tensor.is_inference():
                self.fixed.append(FixedWeight(number, tensor.data_ptr(), tensor._version))
        weights = {f"x{weight.number}": tensors[weight.number].detach() for weight in self.fixed}
        inputs = tuple([value for value in self.model.inputs if value.name not in weights])
        self.session = new_session(replace(self.model, inputs=inputs, weights={**self.model.weights, **weights}))


@final
@dataclass(frozen=True, slots=True)
class FixedWeight:
    """An input that is part of the model, as it was then."""

    number: int
    address: int
    version: int

    def is_same(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() == self.address and tensor._version == self.version


class RunResult(Protocol):
    """An `ndarray`: `torch.from_numpy` takes it."""


class InferenceSession(Protocol):
    """That of onnxruntime."""

    def run(self, outputs: None, feed: Mapping[str, object], /) -> Sequence[RunResult]: ...


def new_session(model: OnnxModel) -> InferenceSession:
    """With as many threads as torch has."""
    runtime = load_required("onnxruntime", purpose="the backend `onnxrt`")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    made = runtime.InferenceSession(model_bytes(model), options, providers=["CPUExecutionProvider"])
    return cast(InferenceSession, made)


# fmt: off
KERNELS = OnnxBackend("onnxrt", {
    # Data movement takes what has a name.
    **dict.fromkeys(("Reshape", "Transpose", "Concat", "Slice", "Expand", "Gather", "GatherElements", "GatherND",
                     "Identity", "Squeeze", "Unsqueeze", "Cast", "Shape", "ScatterElements", "ScatterND"), ALL),
    "Where": NUMBERS | {torch.uint8}, "Pad": ALL, "Equal": ALL,
    **dict.fromkeys(("And", "Or", "Xor", "Not"), frozenset({torch.bool})),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), WHOLE | {torch.uint8}),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "Greater", "LessOrEqual", "Neg",
                     "GreaterOrEqual", "Abs", "Sign", "Mod", "ReduceSum", "ReduceMax", "ReduceMin", "CumSum", "MatMul",
                     "Range", "TopK"), NUMBERS),
    "ReduceProd": SINGLE | WHOLE, "ReduceMean": REAL, "ReduceLogSumExp": REAL,
    "ArgMax": REAL | {torch.int32}, "ArgMin": REAL | {torch.int32},
    **dict.fromkeys(("Exp", "Log", "Sqrt", "Reciprocal", "Tanh", "Sigmoid", "Floor", "Ceil", "Round", "IsNaN", "IsInf",
                     "Sin", "Cos", "Pow", "Gemm", "Softmax", "MaxPool"), REAL),
}, SINGLE, SessionRun)
# fmt: on


@final
@dataclass(frozen=True)
class OnnxRuntime:
    """`constant_weights`: parameters are part of the model. A change of one is noticed, but not one through `.data`."""

    constant_weights: bool = False
    name = "onnxrt"

    def refusal(self, node: Node) -> str:
        return KERNELS.refusal(node)

    def compile(self, part: GraphPart) -> PartRun:
        return SessionRun(part, self.constant_weights and part.direction == "")


register_backend(OnnxRuntime())
