"""Recurrent layers as a loop over the steps, interpreted in place of `torch.gru` and its kin.

    gru(x: f32[s0, 16, 64], h, weights, ...)    =>    gates = linear(x, w_ih, b_ih)        for all steps
                                                      scan(gru_step, h, gates)             a turn for each

Unrolled, a layer is compiled for each number of steps, and that takes as long as they are many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from kiln.graph.trace.products import linear
from kiln.graph.trace.recurrent_layers import (
    Cell,
    RecurrentOptions,
    State,
    each_direction,
    gru_step,
    lstm_step,
    relu_step,
    tanh_step,
)

Turn = Callable[[State, Tensor], tuple[State, Tensor]]


def looped(
    step: Cell, input: Tensor, hx: Tensor | Sequence[Tensor], params: Sequence[Tensor], *options: object
) -> State:
    given = RecurrentOptions(*options)  # type: ignore[arg-type]
    states = [hx] if isinstance(hx, Tensor) else hx
    x = input.transpose(0, 1) if given.batch_first else input
    output, *last = each_direction(partial(direction, step), x, states, params, given)
    return (output.transpose(0, 1) if given.batch_first else output, *last)


gru, rnn_tanh, rnn_relu, lstm = [partial(looped, step) for step in (gru_step, tanh_step, relu_step, lstm_step)]


def direction(step: Cell, x: Tensor, state: State, weights: Sequence[Tensor | None], reverse: bool) -> list[Tensor]:
    """As `run_direction`."""
    w_ih, w_hh, b_ih, b_hh = weights
    assert w_ih is not None and w_hh is not None

    def turn(state: State, gates: Tensor) -> tuple[State, Tensor]:
        made = step(gates, state, w_hh, b_hh)
        return made, made[0].clone()

    gates = linear(x, w_ih, b_ih)
    last, results = turns(turn, state, gates.flip(0) if reverse else gates)
    return [results.flip(0) if reverse else results, *last]


def turns(turn: Turn, state: State, rows: Tensor) -> tuple[State, Tensor]:
    """A scan over the first dimension as a nested graph; a handler stands in for it."""
    raise NotImplementedError
