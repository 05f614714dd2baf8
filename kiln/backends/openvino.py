"""OpenVINO on the CPU: `kiln.compile(model, backend="openvino")`.

Parts become ONNX models (`kiln/onnx`), which OpenVINO reads. It computes float64 in 32 bits and int64 in int32, so that
only float32 is computed there; other dtypes are moved, compared and used as indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast, final

import torch

from kiln.backends.onnx_parts import OnnxBackend, PartInputs
from kiln.backends.registry import register_backend
from kiln.graph.offload.part import GraphPart
from kiln.onnx import model_bytes
from kiln.support.optional import load_required

SINGLE = frozenset({torch.float32})
TRUTHS = frozenset({torch.bool})


class CompiledModel(Protocol):
    """That of openvino; results by their place."""

    def __call__(self, inputs: Mapping[str, object], /) -> Mapping[int, object]: ...


@final
class CompiledModelRun:
    """A compiled model of a part."""

    def __init__(self, part: GraphPart) -> None:
        openvino = load_required("openvino", purpose="the backend `openvino`")
        self.inputs = PartInputs(part)
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        core = openvino.Core()
        made = core.compile_model(core.read_model(model_bytes(self.inputs.model)), "CPU", settings)
        self.compiled = cast(CompiledModel, made)

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        found = self.compiled(self.inputs.feed(tensors, sizes))
        return [torch.from_numpy(found[number]) for number in range(len(self.inputs.model.outputs))]


# fmt: off
KERNELS = OnnxBackend("openvino", {
    **dict.fromkeys(("Reshape", "Transpose", "Concat", "Slice", "Expand", "Squeeze", "Unsqueeze", "Identity"),
                    SINGLE | TRUTHS | {torch.int32}),
    **dict.fromkeys(("And", "Or", "Xor", "Not"), TRUTHS),
    "Cast": SINGLE | TRUTHS | {torch.int32}, "Shape": SINGLE | TRUTHS | {torch.int32, torch.int64},
    # Other answers than eager's: indices smaller than the tensor, which of equal values.
    **dict.fromkeys(("GatherElements", "ArgMax", "ArgMin", "TopK", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
                     "BitwiseNot"), frozenset[torch.dtype]()),
}, SINGLE, CompiledModelRun)
# fmt: on
register_backend(KERNELS)
