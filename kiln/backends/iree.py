"""IREE on the CPU: `kiln.compile(model, backend="iree")`.

Parts become ONNX models (`kiln/onnx`), one for each set of sizes: with free sizes IREE's importer broadcasts some
operands wrongly. It needs the shape of every value, which the package `onnx` infers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast, final

import torch

from kiln.backends.onnx_parts import OnnxBackend, model_of
from kiln.backends.registry import register_backend
from kiln.graph.offload.part import GraphPart
from kiln.onnx import OnnxModel, model_bytes
from kiln.onnx.model import OnnxValue
from kiln.support.optional import load_required

PURPOSE = "the backend `iree`"
FLAGS = ["--iree-llvmcpu-target-cpu=host", "--iree-input-demote-f64-to-f32=false"]
SINGLE = frozenset({torch.float32})
REAL = SINGLE | {torch.float64}
WHOLE = frozenset({torch.int32, torch.int64})
TRUTHS = frozenset({torch.bool})
ALL = REAL | WHOLE | TRUTHS


class HostArray(Protocol):
    """An `ndarray`."""


class DeviceArray(Protocol):
    """That of iree.runtime."""

    def to_host(self) -> HostArray: ...


@final
class ModuleRun:
    """A compiled module for each set of sizes."""

    def __init__(self, part: GraphPart) -> None:
        self.symbols = part.symbols
        self.model, _ = model_of(part)
        self.calls: dict[tuple[int, ...], Callable[..., object]] = {}

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        key = tuple(sizes)
        call = self.calls.get(key)
        if call is None:
            model = with_sizes(self.model, dict(zip([symbol.name for symbol in self.symbols], key, strict=True)))
            call = self.calls[key] = loaded(compiled(model_bytes(model)), model.name)
        inputs = {value.name for value in self.model.inputs}
        named = {f"x{number}": tensor.detach().contiguous() for number, tensor in enumerate(tensors)}
        found = call(*[tensor.numpy() for name, tensor in named.items() if name in inputs])
        results = found if isinstance(found, tuple) else (found,)
        return [torch.from_numpy(cast(DeviceArray, result).to_host()).clone() for result in results]


def with_sizes(model: OnnxModel, sizes: Mapping[str, int]) -> OnnxModel:
    """The model for these values of its symbols; those that were inputs are constants."""

    def fixed(value: OnnxValue) -> OnnxValue:
        return replace(
            value, sizes=tuple([sizes.get(size, size) if isinstance(size, str) else size for size in value.sizes])
        )

    inputs = tuple([fixed(value) for value in model.inputs if value.name not in sizes])
    given = {
        value.name: torch.tensor([sizes[value.name]], device="cpu") for value in model.inputs if value.name in sizes
    }
    outputs = tuple([fixed(value) for value in model.outputs])
    return replace(model, inputs=inputs, outputs=outputs, numbers={**model.numbers, **given})


def compiled(model: bytes) -> bytes:
    """The bytecode of an ONNX model, with machine code for this processor."""
    onnx = load_required("onnx", purpose=PURPOSE)
    importer = load_required("iree.compiler.extras.onnx_importer", purpose=PURPOSE)
    compiler = load_required("iree.compiler", purpose=PURPOSE)
    described = importer.ModelInfo(onnx.shape_inference.infer_shapes(onnx.load_from_string(model), data_prop=True))
    module = described.create_module(context=compiler.ir.Context()).operation
    importer.NodeImporter.define_function(described.main_graph, module).import_all()
    text = module.get_asm(enable_debug_info=False)
    made: bytes = load_required("iree.compiler.tools", purpose=PURPOSE).compile_str(
        text, input_type="onnx", target_backends=["llvm-cpu"], extra_args=FLAGS
    )
    return made


def loaded(bytecode: bytes, name: str) -> Callable[..., object]:
    """The function `name` of a compiled module."""
    runtime = load_required("iree.runtime", purpose=PURPOSE)
    context = runtime.SystemContext(
        config=runtime.Config("local-sync" if torch.get_num_threads() == 1 else "local-task")
    )
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, bytecode))
    function: Callable[..., object] = context.modules.module[name]
    return function


# fmt: off
KERNELS = OnnxBackend("iree", {
    **dict.fromkeys(("Reshape", "Transpose", "Concat", "Slice", "Expand", "Squeeze", "Unsqueeze", "Identity", "Cast",
                     "Shape", "Where", "Equal"), ALL),
    **dict.fromkeys(("And", "Or", "Xor", "Not"), TRUTHS),
    # Without a form for float64.
    **dict.fromkeys(("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh",
                     "Erf"), SINGLE),
    "Pad": frozenset(),  # not with negative numbers
    **dict.fromkeys(("Add", "Sub", "Mul", "Max", "Min", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Neg",
                     "Abs", "ReduceSum", "ReduceMax", "ReduceMin", "MatMul"), REAL | WHOLE),
}, REAL, ModuleRun)
# fmt: on
register_backend(KERNELS)
