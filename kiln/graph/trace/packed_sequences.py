"""Packed sequences: packing and unpacking look rows up, and a layer on one is a step per layer and direction.

    lengths [3, 1], two steps of padding behind them     batch_sizes [2, 1, 1], places [0, 1, 2, 4]
    torch._pack_padded_sequence(x, lengths)              x.flatten(0, 1)[places]
    torch._pad_packed_sequence(data, batch_sizes)        zeros(steps * batch).index_copy(0, places, data)
    torch.lstm(data, batch_sizes, hx, ...)               kiln_packed.layers; with gradients, kiln_packed.layer for each

How many elements there are, and how many steps the longest has, the host reads, as for masks. The places of one packed
sequence are counted once, however often it is unpacked. The log keeps the calls of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.trace.data_dependent import item_of, positions
from kiln.graph.trace.mode import Args, Kwargs, RecordingMode
from kiln.graph.trace.mutating import OWN_FAKES
from kiln.graph.trace.special import computation, special
from kiln.plan import packed_operators as packed
from kiln.plan.errors import BEYOND
from kiln.symbolic import Int

UNSORTED = (
    "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass"
    " `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement if you do not"
    " need ONNX exportability."
)
NOT_POSITIVE = "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
TOO_LONG = f"a length is larger than the number of steps of the padded sequence{BEYOND}"


@special(packed.BATCH_SIZES)
def batch_sizes_of(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """How many sequences have an element at each step; all have one at the first, which later reads of it know."""
    lengths, batch = args
    assert isinstance(lengths, Tensor)
    with mode:
        longest = lengths[0]
    read = "item", computation(mode.node_of(longest))
    if read not in mode.counts:
        mode.counts[read] = item_of(mode, mode.node_of(longest), None, 1)
    with mode:
        steps = torch.arange(mode.symbols.sym(mode.counts[read]), device="cpu")  # type: ignore[arg-type]
        made = (steps[:, None] < lengths).sum(1)
        first = made[0]
    mode.counts["item", computation(mode.node_of(first))] = cast(Int, mode.value(batch))
    return made


@special(packed.PLACES)
def places_of(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """The rows of (steps * batch) that hold an element."""
    batch_sizes, batch = args
    assert isinstance(batch_sizes, Tensor)
    with mode:
        holds = (torch.arange(batch, device="cpu") < batch_sizes[:, None]).flatten()  # type: ignore[call-overload]
    found = mode.wrap(positions(mode, mode.node_of(holds)))
    assert isinstance(found, Tensor)
    with mode:
        return found[:, 0]


def pack_padded(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """torch._pack_padded_sequence; what it refuses is an assertion of the region, with its message."""
    batch, steps = (input.size(0), input.size(1)) if batch_first else (input.size(1), input.size(0))
    if lengths.dim() != 1 or lengths.dtype is not torch.int64 or lengths.device.type != "cpu" or input.dim() < 2:
        return torch._pack_padded_sequence(input, lengths, batch_first)
    if lengths.size(0) != batch:
        raise RuntimeError(f"Expected `len(lengths)` to be equal to batch_size, but got {lengths.size(0)}")
    torch._assert_async((lengths[1:] <= lengths[:-1]).all(), UNSORTED)
    torch._assert_async(lengths[-1] > 0, NOT_POSITIVE)
    torch._assert_async(lengths[0] <= steps, TOO_LONG)
    batch_sizes = torch.ops.kiln_packed.batch_sizes(lengths, batch)
    places = torch.ops.kiln_packed.places(batch_sizes, batch)
    if batch_first:
        places = places % batch * steps + places // batch
    return input.flatten(0, 1).index_select(0, places.to(input.device)), batch_sizes


def pad_packed(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """torch._pad_packed_sequence; `total_length` is at least the number of steps."""
    batch = cast(int, batch_sizes[0].item())
    places = torch.ops.kiln_packed.places(batch_sizes, batch)
    padded = data.new_full((total_length * batch, *data.shape[1:]), padding_value)
    padded = padded.index_copy(0, places.to(data.device), data).unflatten(0, (total_length, batch))
    lengths = (batch_sizes > torch.arange(batch, device="cpu")[:, None]).sum(1)
    return padded.transpose(0, 1) if batch_first else padded, lengths


def shapes_of_layers(
    data: Tensor, batch_sizes: Tensor, states: list[Tensor], weights: list[Tensor],
    mode: int, has_biases: bool, count: int, bidirectional: bool,
) -> list[Tensor]:  # fmt: skip
    hidden = states[0].size(-1) * (1 + bidirectional)
    return [data.new_empty((data.size(0), hidden)), *[data.new_empty(state.shape) for state in states]]


def shapes_of_layer(
    gates: Tensor, batch_sizes: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, c: Tensor,
    mode: int, reverse: bool,
) -> list[Tensor]:  # fmt: skip
    count, hidden = gates.size(0), h.size(1)
    kept = (count, packed.KEPT[mode] * hidden), (count, hidden), (count if mode == packed.LSTM else 0, hidden)
    return [gates.new_empty(sizes) for sizes in ((count, hidden), h.shape, c.shape, *kept)]


def shapes_of_backward(
    d_output: Tensor, d_h: Tensor, d_c: Tensor, active: Tensor, h_before: Tensor, c_before: Tensor,
    batch_sizes: Tensor, weight: Tensor, has_bias: bool, mode: int, reverse: bool,
) -> list[Tensor]:  # fmt: skip
    gates = weight.size(0)
    return [
        d_output.new_empty(sizes)
        for sizes in ((d_output.size(0), gates), weight.shape, (gates if has_bias else 0,), d_h.shape, d_c.shape)
    ]


SHAPES: Mapping[str, Callable[..., list[Tensor]]] = {
    "layers": shapes_of_layers,
    "layer": shapes_of_layer,
    "layer_backward": shapes_of_backward,
}
OWN_FAKES.update({f"{packed.NAMESPACE}::{name}": shapes for name, shapes in SHAPES.items()})


class SavedLayer(Protocol):
    """What the backward needs."""

    kept: list[Tensor]
    given: tuple[Tensor, Tensor, bool, int, bool]


class PackedLayer(torch.autograd.Function):
    """A layer in one direction: result and last states, differentiated once."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: SavedLayer, gates: Tensor, batch_sizes: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, c: Tensor,
        mode: int, reverse: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        made = torch.ops.kiln_packed.layer(gates, batch_sizes, weight, bias, h, c, mode, reverse)
        ctx.kept, ctx.given = made[3:], (batch_sizes, weight, bias is not None, mode, reverse)
        return tuple(made[:3])

    @staticmethod
    def backward(ctx: SavedLayer, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if torch.is_grad_enabled():
            raise UnsupportedOp(op="kiln_packed.layer", reason="layers on packed sequences are differentiated once")
        made = torch.ops.kiln_packed.layer_backward(*gradients, *ctx.kept, *ctx.given)
        d_gates, d_weight, d_bias, d_h, d_c = made
        return d_gates, None, d_weight, d_bias if ctx.given[2] else None, d_h, d_c, None, None


Direction = Callable[[Tensor, tuple[Tensor, ...], Sequence[Tensor | None], bool], list[Tensor]]


def on_packed(batch_sizes: Tensor, mode: int, linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Direction:
    """One layer in one direction on packed elements, as `recurrent_layers` runs it for all layers."""

    def run(x: Tensor, state: tuple[Tensor, ...], weights: Sequence[Tensor | None], reverse: bool) -> list[Tensor]:
        w_ih, w_hh, b_ih, b_hh = weights
        assert w_ih is not None
        cell = state[1] if mode == packed.LSTM else state[0].new_empty((0, state[0].size(1)))
        gates = linear(x, w_ih, b_ih)
        made = PackedLayer.apply(gates, batch_sizes, w_hh, b_hh, state[0], cell, mode, reverse)
        return list(cast("tuple[Tensor, ...]", made)[: 1 + len(state)])

    return run
