"""Shape rules of creation, structure, effects and nested graphs.

iota(length=8, start=0, step=1, dtype=i64, device=cpu)   =  i64[8]
item(results, index=1)                                   =  the spec of result 1
cond(b8[], ..., true=graph, false=graph)                 =  the specs of the outputs of `true`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from kiln.graph.prims.meta.column import META, MetaRule
from kiln.graph.prims.meta.layout import Sizes
from kiln.symbolic import Int
from kiln.tensor.spec import ScalarSpec, SizeOracle, Spec, TensorSpec, contiguous_strides


class HasSpec(Protocol):
    @property
    def spec(self) -> Spec: ...


class HasValue(Protocol):
    @property
    def value(self) -> HasSpec: ...


class HasOutputs(Protocol):
    """A nested graph, as far as its shape rule needs it."""

    @property
    def outputs(self) -> Sequence[HasValue]: ...


@META("empty")
def empty_meta(
    oracle: SizeOracle, *, sizes: Sizes, strides: Sizes | None, dtype: torch.dtype, device: torch.device
) -> TensorSpec:
    return TensorSpec(dtype, sizes, contiguous_strides(sizes) if strides is None else strides, 0, device)


@META("random_seed")
def random_seed_meta(oracle: SizeOracle, *, device: torch.device) -> TensorSpec:
    return TensorSpec(torch.int64, (), (), 0, device)


@META("random")
def random_meta(
    oracle: SizeOracle, *inputs: TensorSpec, sizes: Sizes, dtype: torch.dtype, device: torch.device, **attrs: object
) -> TensorSpec:
    return TensorSpec(dtype, sizes, contiguous_strides(sizes), 0, device)


@META("item")
def item_meta(oracle: SizeOracle, results: tuple[TensorSpec | ScalarSpec | None, ...], *, index: int) -> Spec:
    part = results[index]
    if part is None:
        raise ValueError(f"result {index} is not a tensor")
    return part


@META("wait", "materialised")
def first_meta(oracle: SizeOracle, x: TensorSpec, *others: TensorSpec) -> Spec:
    return x


def output_specs(graph: HasOutputs) -> Spec:
    return tuple([output.value.spec for output in graph.outputs])  # type: ignore[misc]


@META("scan")
def scan_meta(oracle: SizeOracle, *inputs: Spec, body: HasOutputs, carried: int, rows: int) -> Spec:
    """The carried values, then the other outputs of the body stacked."""
    made, first = output_specs(body), inputs[carried]
    assert isinstance(made, tuple) and isinstance(first, TensorSpec)
    return (
        *made[:carried],
        *[stacked(spec, first.sizes[0]) for spec in made[carried:] if isinstance(spec, TensorSpec)],
    )


def stacked(row: TensorSpec, count: Int) -> TensorSpec:
    return row.with_sizes((count, *row.sizes))


# fmt: off
SPECS: dict[str, MetaRule] = {
    "constant":      lambda oracle, value, dtype, device: TensorSpec(dtype, (), (), 0, device),
    "scalar_tensor": lambda oracle, x, dtype, device: TensorSpec(dtype, (), (), 0, device),
    "full":          lambda oracle, x, sizes: x.with_sizes(sizes),
    "iota":          lambda oracle, length, start, step, dtype, device: TensorSpec(dtype, (length,), (1,), 0, device),
    "assert":        lambda oracle, x, message: (),
    "cond":          lambda oracle, *inputs, true, false, exist: output_specs(true),
    "while_loop":    lambda oracle, *inputs, test, body: output_specs(body),
    "region":        lambda oracle, *inputs, body, tag: output_specs(body),
}
# fmt: on
for _name, _spec in SPECS.items():
    META[_name] = _spec
