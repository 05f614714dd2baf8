"""Calls that an `ExportedProgram` has in place of operators that only torch's own kernels know.

    _scaled_dot_product_flash_attention_for_cpu(q, k, v)      =>    scaled_dot_product_attention(q, k, v)
    mkldnn_rnn_layer(x, w, v, b, c, h0, c0, ...)              =>    lstm.input(x, [h0, c0], [w, v, b, c], ...)

Readers such as `torch.onnx.export` know the operators on the right, for which torch takes the kernels on the left.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.fx.node import Argument

FxNode = torch.fx.Node
Call = Callable[..., FxNode]
"""Adds a call of an overload to the graph: `call(torch.ops.aten.neg.default, x)`."""
Given = Mapping[str, Argument]
"""Arguments by name, with the defaults."""
Write = Callable[[Call, Given], Sequence[FxNode]]
ATEN = torch.ops.aten
LSTM_MODE = 2
"""As oneDNN numbers kinds of recurrent layers."""


def public_results(node: FxNode, call: Call, copied: Callable[[Argument], Argument]) -> Mapping[FxNode, FxNode] | None:
    """The results of `node`, whose arguments are `copied`, by public operators; None where it stays as it is."""
    count, write = FORMS.get(node.target, (0, attention))
    numbers = {user: user.args[1] for user in node.users if user.target is operator.getitem}
    kept = [number for number in numbers.values() if isinstance(number, int) and number < count]
    if not kept or len(kept) != len(node.users):
        return None
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    given = {argument.name: argument.default_value for argument in schema}
    given |= dict(zip(given, node.args, strict=False)) | node.kwargs
    results = write(call, {name: copied(value) for name, value in given.items()})
    return {user: results[number] for user, number in zip(numbers, kept, strict=True)} if results else None


def attention(call: Call, given: Given) -> Sequence[FxNode]:
    heads = [given[name] for name in ("query", "key", "value")]
    counts = [head.meta["val"].shape[1] for head in heads if isinstance(head, FxNode)]
    shared = counts[0] != counts[1]
    rest = [given[name] for name in ("attn_mask", "dropout_p", "is_causal")]
    target = ATEN.scaled_dot_product_attention.default
    return [call(target, *heads, *rest, scale=given["scale"], enable_gqa=shared)]


def lstm_layer(call: Call, given: Given) -> Sequence[FxNode]:
    """One layer in one direction: backwards is forwards from the end. Its states are matrices."""
    x, turn, state = given["input"], [0], given["hx_"]
    if given["mode"] != LSTM_MODE or not isinstance(state, FxNode) or state.meta["val"].dim() != 2:
        return ()
    if given["reverse"]:
        x = call(ATEN.flip.default, x, turn)
    states = [call(ATEN.unsqueeze.default, given[name], 0) for name in ("hx_", "cx_")]
    weights = [given[f"weight{number}"] for number in range(4)]
    made = call(ATEN.lstm.input, x, states, weights, True, 1, 0.0, False, False, False)
    y, h, c = [call(operator.getitem, made, number) for number in range(3)]
    if given["reverse"]:
        y = call(ATEN.flip.default, y, turn)
    return [y, *[call(ATEN.squeeze.dim, state, 0) for state in (h, c)]]


FORMS: Mapping[object, tuple[int, Write]] = {
    ATEN._scaled_dot_product_flash_attention_for_cpu.default: (1, attention),
    ATEN.mkldnn_rnn_layer.default: (3, lstm_layer),
}
"""The first results that there are, and what writes them."""
