"""Old ways to make tensors: `Variable`, `torch.FloatTensor` and its kin, and types of results called as classes.

Variable(x)                    x.detach()
torch.FloatTensor([1, 2])      torch.tensor([1, 2], dtype=torch.float32, device="cpu")
torch.FloatTensor(2, 3)        torch.empty((2, 3), dtype=torch.float32, device="cpu")
"""

from __future__ import annotations

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.capture.interpreter.variables.sequence import Sequence, Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, record

LEGACY = {
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16,
    torch.BFloat16Tensor: torch.bfloat16,
    torch.ByteTensor: torch.uint8,
    torch.CharTensor: torch.int8,
    torch.ShortTensor: torch.int16,
    torch.IntTensor: torch.int32,
    torch.LongTensor: torch.int64,
    torch.BoolTensor: torch.bool,
}
"""Constructors of CPU tensors by dtype."""


@handles(torch.autograd.Variable)
def variable(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """A detached alias of a tensor."""
    given = dict(zip(("data", "requires_grad"), args, strict=False)) | kwargs
    data, needs_grad = given.get("data"), given.get("requires_grad")
    if not isinstance(data, Tensor) or given.keys() - {"data", "requires_grad"} or len(args) > 2:
        raise UnsupportedCall(function="Variable", why="it is called with other arguments than a tensor")
    made = record(s, "detach", [data], {})
    if needs_grad is not None and needs_grad.constant(s):
        return record(s, "requires_grad_", [made], {})
    return made


def legacy_constructor(cls: type, dtype: torch.dtype) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        options = {"dtype": s.const(dtype), "device": s.const(torch.device("cpu"))}
        first = args[0] if args else None
        if kwargs or isinstance(first, Tensor):
            raise UnsupportedCall(function=f"torch.{cls.__name__}", why="it is called with a tensor or with keywords")
        if first is None or all(issubclass(arg.python_type(), int) for arg in args):
            return record(s, torch.empty, [Tuple(list(args)) if args else s.const((0,))], options)
        if first.python_type() is torch.Size:
            return record(s, torch.empty, [first], options)
        if isinstance(first, Sequence) and len(args) == 1:
            return s.wrap(torch.tensor, None).call(s, [first], options)
        raise UnsupportedCall(function=f"torch.{cls.__name__}", why="it is called with other arguments than numbers")

    return handler


for _cls, _dtype in LEGACY.items():
    handles(_cls)(legacy_constructor(_cls, _dtype))
