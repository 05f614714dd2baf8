"""Old ways to make tensors: `Variable`, `torch.FloatTensor` and its kin, and types of results called as classes.

Variable(x)                    x.detach()
torch.FloatTensor([1, 2])      torch.tensor([1, 2], dtype=torch.float32, device="cpu")
torch.FloatTensor(2, 3)        torch.empty((2, 3), dtype=torch.float32, device="cpu")
torch.Tensor(x)                torch.ops.aten.alias(x)

`torch.Tensor` makes tensors of the default dtype, which is guarded for every frame.
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


def is_size(value: Value) -> bool:
    kind = value.python_type()
    return issubclass(kind, int) and not issubclass(kind, bool)


def legacy_constructor(cls: type, dtype: torch.dtype | None) -> Handler:
    """`dtype` None: the default one, and that of a tensor which is given."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        made = dtype or torch.get_default_dtype()
        options = {"dtype": s.const(made), "device": s.const(torch.device("cpu"))}
        first = args[0] if args else None
        if kwargs or (isinstance(first, Tensor) and dtype is not None):
            raise UnsupportedCall(function=f"torch.{cls.__name__}", why="it is called with a tensor or with keywords")
        if isinstance(first, Tensor) and len(args) == 1:
            return record(s, torch.ops.aten.alias.default, [first], {})
        if first is None or all([is_size(arg) for arg in args]):
            return record(s, torch.empty, [Tuple(list(args)) if args else s.const((0,))], options)
        if first.python_type() is torch.Size:
            return record(s, torch.empty, [first], options)
        if isinstance(first, Sequence) and len(args) == 1:
            return s.wrap(torch.tensor, None).call(s, [first], options)
        raise UnsupportedCall(function=f"torch.{cls.__name__}", why="it is called with other arguments than numbers")

    return handler


for _cls, _dtype in LEGACY.items():
    handles(_cls)(legacy_constructor(_cls, _dtype))
handles(torch.Tensor)(legacy_constructor(torch.Tensor, None))
