"""XLA on the CPU, by JAX: `kiln.compile(model, backend="xla")`.

A part is evaluated in `jax.numpy` under `jax.jit`, once for each set of sizes: XLA has static shapes. Memory is shared
with torch where both lay it out alike; float64 and int64 stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import final

import torch

from kiln.backends.registry import register_backend
from kiln.graph.ir.node import Arg, Attr, Node
from kiln.graph.offload.part import GraphPart
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Column, Kind
from kiln.runtime.offloaded import PartRun
from kiln.support.optional import load_required
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Symbol, evaluate
from kiln.tensor.spec import Spec, TensorSpec

PURPOSE = "the backend `xla`"
TAKEN = frozenset({torch.float32, torch.float64, torch.int32, torch.int64, torch.bool})
Sizes = tuple[int, ...]
XlaRule = Callable[..., object]
"""(jax, arrays, attributes) -> array."""
XLA_RULES: Column[XlaRule] = PRIMS.column("xla")
rule = XLA_RULES


def function(path: str) -> XlaRule:
    """The rule that calls `jax.<path>` with the inputs."""
    *folders, name = path.split(".")

    def run(jax: ModuleType, *inputs: object) -> object:
        found = jax
        for folder in folders:
            found = getattr(found, folder)
        return getattr(found, name)(*inputs)

    return run


# fmt: off
for _name, _path in {
    "neg": "numpy.negative", "abs": "numpy.abs", "add": "numpy.add", "sub": "numpy.subtract", "mul": "numpy.multiply",
    "div": "numpy.divide", "maximum": "numpy.maximum", "minimum": "numpy.minimum", "fmax": "numpy.fmax",
    "fmin": "numpy.fmin", "where": "numpy.where", "floor": "numpy.floor", "ceil": "numpy.ceil", "trunc": "numpy.trunc",
    "round": "numpy.round", "sqrt": "numpy.sqrt", "rsqrt": "lax.rsqrt", "reciprocal": "numpy.reciprocal",
    "exp": "numpy.exp", "exp2": "numpy.exp2", "expm1": "numpy.expm1", "log": "numpy.log", "log2": "numpy.log2",
    "log10": "numpy.log10", "log1p": "numpy.log1p", "sin": "numpy.sin", "cos": "numpy.cos", "tan": "numpy.tan",
    "asin": "numpy.arcsin", "acos": "numpy.arccos", "atan": "numpy.arctan", "atan2": "numpy.arctan2",
    "sinh": "numpy.sinh", "cosh": "numpy.cosh", "tanh": "numpy.tanh", "sigmoid": "nn.sigmoid", "erf": "lax.erf",
    "erfc": "lax.erfc", "hypot": "numpy.hypot", "copysign": "numpy.copysign", "signbit": "numpy.signbit",
    "eq": "numpy.equal", "ne": "numpy.not_equal", "lt": "numpy.less", "le": "numpy.less_equal", "gt": "numpy.greater",
    "ge": "numpy.greater_equal", "isnan": "numpy.isnan", "isinf": "numpy.isinf", "logical_not": "numpy.logical_not",
    "bitwise_and": "numpy.bitwise_and", "bitwise_or": "numpy.bitwise_or", "bitwise_xor": "numpy.bitwise_xor",
    "bitwise_not": "numpy.bitwise_not",
}.items():
    rule[_name] = function(_path)

for _name, _path in {"amax": "max", "amin": "min", "any": "any", "all": "all"}.items():
    rule[_name] = lambda jax, x, *, axes, _path=_path: getattr(jax.numpy, _path)(x, axis=axes)

rule["sum"] = lambda jax, x, *, axes: jax.numpy.sum(x, axis=axes, dtype=x.dtype)
rule["prod"] = lambda jax, x, *, axes: jax.numpy.prod(x, axis=axes, dtype=x.dtype)
rule["fma"] = lambda jax, x, y, z: x * y + z
rule["convert"] = lambda jax, x, *, dtype: x.astype(dtype_of(jax, dtype))
rule["cumsum"] = lambda jax, x, *, axis: jax.numpy.cumsum(x, axis=axis)
rule["cumprod"] = lambda jax, x, *, axis: jax.numpy.cumprod(x, axis=axis)
rule["expand"] = lambda jax, x, *, sizes: jax.numpy.broadcast_to(x, sizes)
rule["permute"] = lambda jax, x, *, dims: jax.numpy.transpose(x, dims)
rule["view"] = rule_of_reshape = lambda jax, x, *, sizes: jax.numpy.reshape(x, sizes)
rule["reshape"] = rule_of_reshape
rule["unsqueeze"] = lambda jax, x, *, axis: jax.numpy.expand_dims(x, axis)
rule["squeeze"] = lambda jax, x, *, axes: jax.numpy.squeeze(x, axes)
rule["slice"] = lambda jax, x, *, axis, start, stop, step: jax.lax.slice_in_dim(x, start, stop, step, axis)
rule["select"] = lambda jax, x, *, axis, index: jax.lax.index_in_dim(x, index, axis, keepdims=False)
rule["clone"] = lambda jax, x, *, strides: jax.numpy.copy(x)
rule["cat"] = lambda jax, *inputs, axis: jax.numpy.concatenate(inputs, axis=axis)
rule["flip"] = lambda jax, x, *, axes: jax.numpy.flip(x, axes)
rule["full"] = lambda jax, x, *, sizes: jax.numpy.broadcast_to(x, sizes)
rule["constant"] = lambda jax, *, value, dtype, device: jax.numpy.asarray(value, dtype_of(jax, dtype))
# fmt: on


@rule("pad")
def pad(jax: ModuleType, x: object, value: object, *, low: Sizes, high: Sizes) -> object:
    return jax.lax.pad(x, value, [(a, b, 0) for a, b in zip(low, high, strict=True)])


@rule("iota")
def iota(jax: ModuleType, *, length: int, start: int, step: int, dtype: torch.dtype, device: torch.device) -> object:
    return (jax.numpy.arange(length) * step + start).astype(dtype_of(jax, dtype))


def index(jax: ModuleType, x: object, *indices: object, axes: Sizes) -> object:
    """Along one axis; indices are in bounds, or negative."""
    return jax.numpy.take(x, indices[0], axis=axes[0], mode="wrap")


# Calls of a library.

LIBRARY: dict[str, XlaRule] = {
    "aten.mm.default": function("numpy.matmul"),
    "aten.bmm.default": function("numpy.matmul"),
    "aten.mv.default": function("numpy.matmul"),
    "aten.addmm.default": lambda jax, b, x, y, *, beta=1, alpha=1: beta * b + alpha * jax.numpy.matmul(x, y),
    "aten.baddbmm.default": lambda jax, b, x, y, *, beta=1, alpha=1: beta * b + alpha * jax.numpy.matmul(x, y),
}
DIMENSIONS = {3: ("NCH", "OIH"), 4: ("NCHW", "OIHW"), 5: ("NCDHW", "OIDHW")}


def convolution(
    jax: ModuleType, x: object, weight: object, bias: object, stride: Sizes, padding: Sizes, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: int,
) -> object:  # fmt: skip
    rank = getattr(x, "ndim", 0)
    image, kernel = DIMENSIONS[rank]
    each = [size * (rank - 2) if len(size) == 1 else size for size in (stride, padding, dilation)]
    made = jax.lax.conv_general_dilated(
        x, weight, each[0], [(border, border) for border in each[1]], rhs_dilation=each[2],
        dimension_numbers=(image, kernel, image), feature_group_count=groups,
    )  # fmt: skip
    return made if bias is None else made + jax.numpy.reshape(bias, (1, -1, *[1] * (rank - 2)))


LIBRARY["aten.convolution.default"] = convolution


def dtype_of(jax: ModuleType, dtype: torch.dtype) -> object:
    return getattr(jax.numpy, "bool_" if dtype is torch.bool else str(dtype).removeprefix("torch."))


@final
@dataclass(frozen=True)
class Xla:
    """Registered as `xla`."""

    name = "xla"

    def refusal(self, node: Node) -> str:
        parts = [part for spec in [node.spec, *[value.spec for value in node.inputs]] for part in specs_in(spec)]
        if any([part.device.type != "cpu" or part.dtype not in TAKEN for part in parts]):
            return "of another dtype or device"
        target = node.attrs.get("target")
        if target is not None:
            plain = target in LIBRARY and not (target == "aten.convolution.default" and node.attrs["args"][6])
            return "" if plain else "no rule"
        if node.op.name == "index":
            plain = len(node.attrs["axes"]) == 1 and node.inputs[1].tensor.dtype is not torch.bool
            return "" if plain else "several indices"
        if node.op.name not in XLA_RULES:
            return "no rule"
        extreme = node.op.kind is Kind.REDUCTION and any(
            [node.inputs[0].tensor.sizes[a] == 0 for a in node.attrs["axes"]]
        )
        return "a reduction of no elements" if extreme else ""

    def compile(self, part: GraphPart) -> PartRun:
        return JitRun(part)


def specs_in(spec: Spec | None) -> list[TensorSpec]:
    parts = spec if isinstance(spec, tuple) else (spec,)
    return [part for part in parts if isinstance(part, TensorSpec)]


register_backend(Xla())


@final
class JitRun:
    """A jitted function for each set of sizes."""

    def __init__(self, part: GraphPart) -> None:
        self.part, self.jax = part, load_required("jax", purpose=PURPOSE)
        self.jitted: dict[Sizes, Callable[..., Sequence[object]]] = {}

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        key = tuple(sizes)
        with self.jax.enable_x64(True), self.jax.default_device(self.jax.local_devices(backend="cpu")[0]):
            run = self.jitted.get(key)
            if run is None:
                numbers = dict(zip(self.part.symbols, key, strict=True))
                run = self.jitted[key] = self.jax.jit(lambda *arrays: self.evaluate(arrays, numbers))
            results = run(*[self.jax.numpy.asarray(tensor.detach().contiguous().numpy()) for tensor in tensors])
            return [torch.from_numpy(self.jax.device_get(result).copy()) for result in results]

    def evaluate(self, arrays: Sequence[object], numbers: dict[Symbol, int]) -> list[object]:
        """The outputs, of arrays that JAX traces."""
        part, jax = self.part, self.jax
        values: dict[Node, object] = dict(zip(part.graph.inputs, arrays, strict=True))

        def concrete(value: Attr, inputs: Sequence[object]) -> object:
            if isinstance(value, tuple):
                return tuple([concrete(item, inputs) for item in value])
            if isinstance(value, Arg):
                return inputs[value.index]
            return evaluate(value, numbers) if isinstance(value, Expr) else value

        for node in part.graph.nodes:
            inputs = [values[value] for value in node.inputs]
            if node.op.name == "constant_tensor":
                values[node] = jax.numpy.asarray(part.constants[node.attrs["key"]].numpy())
            elif "target" in node.attrs:
                args = [concrete(value, inputs) for value in node.attrs["args"]]
                named = {name: concrete(value, inputs) for name, value in node.attrs["kwargs"]}
                values[node] = LIBRARY[node.attrs["target"]](jax, *args, **named)
            else:
                attrs = {name: concrete(value, inputs) for name, value in node.attrs.items()}
                found: XlaRule = index if node.op.name == "index" else XLA_RULES[node.op.name]
                values[node] = found(jax, *inputs, **attrs)
        return [values[output.value] for output in part.graph.outputs]
