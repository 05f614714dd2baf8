"""Packed sequences are made, run through layers and unpacked in Python, a call each: their sizes depend on data.

pack_padded_sequence(x, lengths)      a graph break at the call
lstm(packed)                          a break at `LSTM.forward`; on tensors, `lstm` is in the graph
"""

from __future__ import annotations

from types import FunctionType

from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import Args

PACKING: frozenset[object] = frozenset({pack_padded_sequence, pad_packed_sequence})
RECURRENT: frozenset[object] = frozenset({nn.LSTM.forward, nn.GRU.forward, nn.RNN.forward})


def refuse_packed(function: FunctionType, args: Args) -> None:
    """Break the graph at a call that makes or takes a packed sequence."""
    if function in PACKING or (function in RECURRENT and any(arg.python_type() is PackedSequence for arg in args)):
        raise UnsupportedCall(function=function.__qualname__, why="the sizes of a packed sequence depend on data")
