"""Recurrent cells and layers for symbolic sizes: the C++ of torch reads sizes as plain integers.

    gru_cell(x: f32[s0, 4], h: f32[s0, 5], ...)      =>    two products, their chunks, sigmoid and tanh
    gru(x: f32[s0, 7, 4], h, weights, ...)           =>    a product for all steps, a cell for each of the 7
    lstm(x: f32[s0, 7, 4], (h, c), weights, ...)     =>    on a CPU one call of oneDNN per layer and direction

On a GPU all layers are one call of cuDNN, as in eager, whatever the sizes; a call each where dropout is between them.
The order of operations is that of torch. The number of steps is part of the graph, but where the interpreter makes a
loop of them (`capture/interpreter/recurrent_polyfills.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import dropout

from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.trace.log import Target
from kiln.graph.trace.packed_sequences import on_packed, pack_padded, pad_packed
from kiln.graph.trace.products import linear

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, State, Tensor, Tensor | None], State]
"""From the product of the input, the state and the weights of the state to the next state; its first part is the
result."""


def lstm_step(gates: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    hidden, cell = state
    parts = (linear(hidden, weight, bias) + gates).chunk(4, -1)
    cell = parts[1].sigmoid() * cell + parts[0].sigmoid() * parts[2].tanh()
    return parts[3].sigmoid() * cell.tanh(), cell


def gru_step(gates: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    (hidden,) = state
    inside, outside = linear(hidden, weight, bias).chunk(3, -1), gates.chunk(3, -1)
    reset, update = (inside[0] + outside[0]).sigmoid(), (inside[1] + outside[1]).sigmoid()
    new = (outside[2] + inside[2] * reset).tanh()
    return ((hidden - new) * update + new,)


def tanh_step(gates: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    return ((linear(state[0], weight, bias) + gates).tanh(),)


def relu_step(gates: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    return ((linear(state[0], weight, bias) + gates).relu(),)


def cell_of(step: Cell) -> Callable[..., Tensor]:
    def cell(
        input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Tensor:
        return step(linear(input, w_ih, b_ih), (hx,), w_hh, b_hh)[0]

    return cell


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> State:
    return lstm_step(linear(input, w_ih, b_ih), tuple(hx), w_hh, b_hh)


def weights_of(params: Sequence[Tensor], has_biases: bool, number: int) -> list[Tensor | None]:
    """Input weight, hidden weight and the two biases of a layer in a direction."""
    count = 4 if has_biases else 2
    found: list[Tensor | None] = list(params[number * count : (number + 1) * count])
    return found if has_biases else [*found, None, None]


def run_direction(step: Cell, x: Tensor, state: State, weights: Sequence[Tensor | None], reverse: bool) -> list[Tensor]:
    """All steps of one layer in one direction: the results `[steps, batch, hidden]`, then the last state."""
    w_ih, w_hh, b_ih, b_hh = weights
    assert w_ih is not None and w_hh is not None
    gates = linear(x, w_ih, b_ih).unbind(0)
    results = []
    for part in reversed(gates) if reverse else gates:
        state = step(part, state, w_hh, b_hh)
        results.append(state[0])
    return [torch.stack(results[::-1] if reverse else results), *state]


Direction = Callable[[Tensor, State, Sequence[Tensor | None], bool], list[Tensor]]


class RecurrentOptions(NamedTuple):
    """The arguments of `torch.lstm` and its kin behind the weights."""

    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool


Run = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor], RecurrentOptions], tuple[Tensor, ...]]
"""From `[steps, batch, features]`, the states and the weights of all layers to the results of the last layer, then the
last states of all layers and directions."""


def each_direction(
    run: Direction, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], given: RecurrentOptions
) -> tuple[Tensor, ...]:
    directions = 2 if given.bidirectional else 1
    last: list[list[Tensor]] = [[] for _ in states]
    for layer in range(given.num_layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            state = tuple([part[number] for part in states])
            made = run(x, state, weights_of(params, given.has_biases, number), direction == 1)
            outputs.append(made[0])
            for parts, part in zip(last, made[1:], strict=True):
                parts.append(part)
        x = torch.cat(outputs, -1) if given.bidirectional else outputs[0]
        if given.dropout and given.train and layer < given.num_layers - 1:
            x = dropout(x, given.dropout, True)
    return (x, *[torch.stack(parts) for parts in last])


def unrolled(step: Cell) -> Run:
    return partial(each_direction, partial(run_direction, step))


LSTM = 2
"""The number of the kind of layer in oneDNN."""


def is_on_onednn(x: Tensor) -> bool:
    """Whether eager calls oneDNN, which divides by the number of rows."""
    takes = x.device.type == "cpu" and x.dtype is torch.float32 and bool(torch.backends.mkldnn.enabled)
    return takes and all([size != 0 for size in x.shape])


def by_onednn(
    x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], given: RecurrentOptions
) -> tuple[Tensor, ...]:
    def run(x: Tensor, state: State, weights: Sequence[Tensor | None], reverse: bool) -> list[Tensor]:
        w_ih, w_hh, b_ih, b_hh = weights
        assert w_ih is not None and w_hh is not None
        zeros = w_ih.new_zeros(w_ih.size(0)) if b_ih is None else b_ih
        made = torch.ops.aten.mkldnn_rnn_layer.default(
            *(x.contiguous(), w_ih, w_hh, zeros, zeros if b_hh is None else b_hh),
            *(state[0], state[1], reverse, [], LSTM, state[0].size(-1), given.num_layers),
            *(given.has_biases, given.bidirectional, False, given.train),
        )
        return list(made[:3])

    return each_direction(run, x, states, params, given)


MODES: Mapping[Callable[..., State], int] = {torch.rnn_relu: 0, torch.rnn_tanh: 1, torch.lstm: 2, torch.gru: 3}
"""The numbers of the kinds of layers in cuDNN."""


def is_on_cudnn(x: Tensor) -> bool:
    library = torch.backends.cudnn
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    return x.device.type == "cuda" and x.dtype in dtypes and bool(library.enabled) and library.is_available()


def lowered(x: Tensor) -> Tensor:
    """As autocast casts the arguments of `_cudnn_rnn`: to float16, whatever its own dtype is."""
    return x if x.dtype is torch.float64 else x.to(torch.float16)


def by_cudnn(
    mode: int, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], given: RecurrentOptions
) -> tuple[Tensor, ...]:
    if torch.is_autocast_enabled("cuda"):
        x, states, params = lowered(x), list(map(lowered, states)), list(map(lowered, params))
    stride, directions = 4 if given.has_biases else 2, 2 if given.bidirectional else 1
    together = 1 if given.dropout and given.train else given.num_layers
    last: list[list[Tensor]] = [[] for _ in states]
    with torch.autocast("cuda", enabled=False):
        for layer in range(0, given.num_layers, together):
            first, end = layer * directions, (layer + together) * directions
            hx, *cx = [part[first:end] for part in states]
            x, *made = torch.ops.aten._cudnn_rnn.default(
                dropout(x, given.dropout, True) if layer else x,
                *(params[first * stride : end * stride], stride, None),
                *(hx, cx[0] if cx else None, mode, hx.size(2), 0, together),
                *(False, 0.0, given.train, given.bidirectional, [], None),
            )
            for parts, part in zip(last, made, strict=False):
                parts.append(part)
    return (x, *[parts[0] if len(parts) == 1 else torch.cat(parts) for parts in last])


def packed_layers(original: Callable[..., State], data: Tensor, batch_sizes: object, *rest: object) -> State:
    """`original` on a packed sequence: by `kiln_packed` on a CPU, without projections."""
    hx, params, *options = cast("tuple[Tensor | Sequence[Tensor], Sequence[Tensor], *tuple[object, ...]]", rest)
    states = [hx] if isinstance(hx, Tensor) else hx
    plain = data.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    if not plain or len(options) != len(RecurrentOptions._fields) - 1 or states[0].size(-1) != states[-1].size(-1):
        reason = "on packed sequences, layers on CPUs without autocast and projections are known"
        raise UnsupportedOp(op=original.__name__, reason=reason)
    given = RecurrentOptions(*[*options, False])  # type: ignore[arg-type]
    mode, sizes = MODES[original], cast(Tensor, batch_sizes)
    drops = given.dropout and given.train and given.num_layers > 1
    if drops or (torch.is_grad_enabled() and any([tensor.requires_grad for tensor in (data, *states, *params)])):
        return each_direction(on_packed(sizes, mode, linear), data, states, params, given)
    kind = mode, given.has_biases, given.num_layers, given.bidirectional
    return tuple(torch.ops.kiln_packed.layers(data, sizes, list(states), list(params), *kind))


def layers_of(original: Callable[..., State], other: Callable[[Tensor], Run | None]) -> Callable[..., State]:
    """`original` by cuDNN where eager takes it, else by what `other` has for the input.

    Projections, packed sequences on a GPU and inputs for which it has nothing are left to `original`.
    """

    def layers(input: Tensor, hx: Tensor | Sequence[Tensor], params: Sequence[Tensor], *options: object) -> State:
        if isinstance(params, Tensor) or (original is torch.lstm and isinstance(hx, Tensor)):
            return packed_layers(original, input, hx, params, *options)
        states = [hx] if isinstance(hx, Tensor) else hx
        run: Run | None = None
        if len(options) == len(RecurrentOptions._fields) and states[0].size(-1) == states[-1].size(-1):
            run = partial(by_cudnn, MODES[original]) if is_on_cudnn(input) else other(input)
        if run is None:
            return original(input, hx, params, *options)
        given = RecurrentOptions(*options)  # type: ignore[arg-type]
        output, *last = run(input.transpose(0, 1) if given.batch_first else input, states, params, given)
        return (output.transpose(0, 1) if given.batch_first else output, *last)

    return layers


ALWAYS: Mapping[Target, Callable[..., object]] = {
    **{kind: layers_of(kind, lambda x: None) for kind in MODES},
    torch._pack_padded_sequence: pack_padded,
    torch._pad_packed_sequence: pad_packed,
}
"""Recorded as these whatever their sizes."""
RECURRENT: Mapping[Target, Callable[..., object]] = {
    torch.lstm_cell: lstm_cell,
    torch.gru_cell: cell_of(gru_step),
    torch.rnn_tanh_cell: cell_of(tanh_step),
    torch.rnn_relu_cell: cell_of(relu_step),
    torch.gru: layers_of(torch.gru, lambda x: unrolled(gru_step)),
    torch.rnn_tanh: layers_of(torch.rnn_tanh, lambda x: unrolled(tanh_step)),
    torch.rnn_relu: layers_of(torch.rnn_relu, lambda x: unrolled(relu_step)),
    torch.lstm: layers_of(torch.lstm, lambda x: by_onednn if is_on_onednn(x) else unrolled(lstm_step)),
}
"""Functions of torch, and the same for symbolic sizes."""
