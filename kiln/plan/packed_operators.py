"""Recurrent layers on a packed sequence as operators of a plan, for CPUs.

kiln_packed.layers(data, batch_sizes, states, weights, mode, ...)              [output, h, c] of eager's own layers

With gradients, a layer in one direction:

kiln_packed.layer(gates, batch_sizes, weight, bias, h, c, mode, reverse)       [output, h, c, *kept]
kiln_packed.layer_backward(d_output, d_h, d_c, *kept, ...)    [d_gates, d_weight, d_bias, d_h, d_c]

`gates` is the product of the input and its weight for all elements, (elements, gates * hidden). Step `t` takes the next
`batch_sizes[t]` rows of it, and the first rows of the states: sequences are sorted, the longest first. Without a cell
`c` is empty. The forward keeps its activations and the states in front of each step. The backward multiplies for all
elements at once what does not depend on later steps: a step is two products of numbers and one of matrices.

`mode` is the number of the kind of layer, as in cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

NAMESPACE = "kiln_packed"
RELU, TANH, LSTM, GRU = range(4)
OPTIONS = "int mode, bool reverse"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
LIBRARY.define(
    "layers(Tensor data, Tensor batch_sizes, Tensor[] states, Tensor[] weights, int mode, bool has_biases, int count,"
    " bool bidirectional) -> Tensor[]"
)
LIBRARY.define(
    f"layer(Tensor gates, Tensor batch_sizes, Tensor weight, Tensor? bias, Tensor h, Tensor c, {OPTIONS}) -> Tensor[]"
)
LIBRARY.define(
    "layer_backward(Tensor d_output, Tensor d_h, Tensor d_c, Tensor active, Tensor h_before, Tensor c_before,"
    f" Tensor batch_sizes, Tensor weight, bool has_bias, {OPTIONS}) -> Tensor[]"
)
LIBRARY.define("batch_sizes(Tensor lengths, SymInt batch) -> Tensor")
LIBRARY.define("places(Tensor batch_sizes, SymInt batch) -> Tensor")
BATCH_SIZES, PLACES = f"{NAMESPACE}.batch_sizes.default", f"{NAMESPACE}.places.default"
"""Recorded as other operators (`graph/trace/packed_sequences.py`)."""
KEPT = {RELU: 1, TANH: 1, LSTM: 4, GRU: 4}
"""How many numbers per hidden unit and element the forward of a kind keeps as `active`."""


FUNCTIONS: Mapping[int, Callable[..., tuple[Tensor, ...]]] = {
    RELU: torch.rnn_relu,
    TANH: torch.rnn_tanh,
    LSTM: torch.lstm,
    GRU: torch.gru,
}


def layers(
    data: Tensor, batch_sizes: Tensor, states: list[Tensor], weights: list[Tensor],
    mode: int, has_biases: bool, count: int, bidirectional: bool,
) -> list[Tensor]:  # fmt: skip
    state = states if mode == LSTM else states[0]
    return list(FUNCTIONS[mode](data, batch_sizes, state, weights, has_biases, count, 0.0, False, bidirectional))


def in_order(steps: int, reverse: bool) -> Sequence[int]:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def layer(
    gates: Tensor, batch_sizes: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, c: Tensor,
    mode: int, reverse: bool,
) -> list[Tensor]:  # fmt: skip
    sizes, (count, hidden), turned = batch_sizes.tolist(), (gates.size(0), h.size(1)), weight.t()
    h, c = h.clone(memory_format=torch.contiguous_format), c.clone(memory_format=torch.contiguous_format)
    output, active = gates.new_empty(count, hidden), gates.new_empty(count, KEPT[mode] * hidden)
    h_before, c_before = gates.new_empty(count, hidden), gates.new_empty(count if mode == LSTM else 0, hidden)
    given, made, kept, before = [tensor.split(sizes) for tensor in (gates, output, active, h_before)]
    cells_before = c_before.split(sizes) if mode == LSTM else ()
    for step in in_order(len(sizes), reverse):
        rows, new, now = h[: sizes[step]], made[step], kept[step]
        before[step].copy_(rows)
        if mode == GRU:
            gru_step(given[step], rows, turned, bias, now, new)
        else:
            multiplied(rows, turned, bias, now).add_(given[step])
        if mode == LSTM:
            cells = c[: sizes[step]]
            cells_before[step].copy_(cells)
            lstm_step(now, cells, new)
        elif mode == TANH:
            new.copy_(now.tanh_())
        elif mode == RELU:
            new.copy_(now.relu_())
        rows.copy_(new)
    return [output, h, c, active, h_before, c_before]


def multiplied(rows: Tensor, turned: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    return torch.mm(rows, turned, out=out) if bias is None else torch.addmm(bias, rows, turned, out=out)


def lstm_step(gates: Tensor, cells: Tensor, new: Tensor) -> None:
    """Turn the gates into input, forget, cell and output; update `cells` in place, write the result to `new`."""
    hidden = new.size(1)
    gates[:, : 2 * hidden].sigmoid_()
    gates[:, 2 * hidden : 3 * hidden].tanh_()
    gates[:, 3 * hidden :].sigmoid_()
    enter, stay, value, leave = gates.chunk(4, 1)
    torch.mul(torch.tanh(cells.mul_(stay).addcmul_(enter, value)), leave, out=new)


def gru_step(gates: Tensor, rows: Tensor, turned: Tensor, bias: Tensor | None, kept: Tensor, new: Tensor) -> None:
    """Write reset, update, the new value and the part of it from the state to `kept`, the result to `new`."""
    hidden = new.size(1)
    inside = rows @ turned if bias is None else torch.addmm(bias, rows, turned)
    both, value, part = kept.split((2 * hidden, hidden, hidden), 1)
    torch.add(inside[:, : 2 * hidden], gates[:, : 2 * hidden], out=both).sigmoid_()
    part.copy_(inside[:, 2 * hidden :])
    torch.addcmul(gates[:, 2 * hidden :], part, both[:, :hidden], out=value).tanh_()
    torch.addcmul(value, rows - value, both[:, hidden:], out=new)


def layer_backward(
    d_output: Tensor, d_h: Tensor, d_c: Tensor, active: Tensor, h_before: Tensor, c_before: Tensor,
    batch_sizes: Tensor, weight: Tensor, has_bias: bool, mode: int, reverse: bool,
) -> list[Tensor]:  # fmt: skip
    sizes, count = batch_sizes.tolist(), h_before.size(0)
    d_h, d_c = d_h.clone(memory_format=torch.contiguous_format), d_c.clone(memory_format=torch.contiguous_format)
    arrived = d_output.clone(memory_format=torch.contiguous_format)
    """The gradients of the results of all steps, when those of later steps have been added."""
    d_gates = active.new_empty(count, weight.size(0))
    if mode == LSTM:
        order = in_order(len(sizes), not reverse)
        lstm_backward(arrived.split(sizes), d_h, d_c, active, c_before, weight, d_gates, order)
        d_inside = d_gates
    elif mode == GRU:
        d_inside = gru_backward(arrived, sizes, d_h, active, h_before, weight, d_gates, not reverse)
    else:
        slopes = (1 - active * active if mode == TANH else (active > 0).to(active.dtype)).split(sizes)
        gradients, made = arrived.split(sizes), d_gates.split(sizes)
        for step in in_order(len(sizes), not reverse):
            rows = d_h[: sizes[step]]
            torch.mul(rows.add_(gradients[step]), slopes[step], out=made[step])
            torch.mm(made[step], weight, out=rows)
        d_inside = d_gates
    d_bias = d_inside.sum(0) if has_bias else d_inside.new_empty(0)
    return [d_gates, d_inside.t() @ h_before, d_bias, d_h, d_c]


def lstm_backward(
    gradients: Sequence[Tensor], d_h: Tensor, d_c: Tensor, active: Tensor, c_before: Tensor, weight: Tensor,
    d_gates: Tensor, order: Sequence[int],
) -> None:  # fmt: skip
    """Fill `d_gates`; leave the gradients of the first states in `d_h` and `d_c`."""
    sizes = [part.size(0) for part in gradients]
    enter, stay, value, leave = active.chunk(4, 1)
    squashed = (stay * c_before + enter * value).tanh_()
    through = leave * (1 - squashed * squashed)
    by_cell = torch.stack(
        (value * enter * (1 - enter), c_before * stay * (1 - stay), enter * (1 - value * value)), 1
    ).split(sizes)
    by_result = (squashed * leave * (1 - leave)).split(sizes)
    parts, whole = d_gates.view(d_gates.size(0), 4, -1).split(sizes), d_gates.split(sizes)
    through, stay = through.split(sizes), stay.split(sizes)
    for step in order:
        rows, cells = d_h[: sizes[step]], d_c[: sizes[step]]
        cells.addcmul_(rows.add_(gradients[step]), through[step])
        torch.mul(cells[:, None], by_cell[step], out=parts[step][:, :3])
        torch.mul(rows, by_result[step], out=parts[step][:, 3])
        cells.mul_(stay[step])
        torch.mm(whole[step], weight, out=rows)


def gru_backward(
    arrived: Tensor, sizes: list[int], d_h: Tensor, active: Tensor, h_before: Tensor, weight: Tensor, d_gates: Tensor,
    reverse: bool,
) -> Tensor:  # fmt: skip
    """Fill `d_gates`; return the gradients of the product with the state, leave those of the first state in `d_h`."""
    count, hidden = h_before.shape
    reset, update, value, part = active.chunk(4, 1)
    by_value = (1 - update) * (1 - value * value)
    by_reset = by_value * part * reset * (1 - reset)
    by_update = (h_before - value) * update * (1 - update)
    factors = torch.stack((by_reset, by_update, by_value * reset), 1).split(sizes)
    d_inside = active.new_empty(count, 3, hidden)
    parts, whole = d_inside.split(sizes), d_inside.view(count, -1).split(sizes)
    gradients, updates = arrived.split(sizes), update.split(sizes)
    for step in in_order(len(sizes), reverse):
        rows = d_h[: sizes[step]]
        arrive = gradients[step].add_(rows)
        torch.mul(arrive[:, None], factors[step], out=parts[step])
        torch.mul(arrive, updates[step], out=rows).addmm_(whole[step], weight)
    together = d_inside.view(count, -1)
    d_gates[:, : 2 * hidden] = together[:, : 2 * hidden]
    torch.mul(arrived, by_value, out=d_gates[:, 2 * hidden :])
    return together


LIBRARY.impl("layers", layers, "CPU")
LIBRARY.impl("layer", layer, "CPU")
LIBRARY.impl("layer_backward", layer_backward, "CPU")
