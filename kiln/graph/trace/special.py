"""Handlers of ATen ops that act on storage views: aliases, given contents, changes of metadata, values.

x.detach()      another fake of the same storage view
x.t_()          the fake moves to the view after `permute`
x.item()        the constant that x is computed from, or an unbacked symbol
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

import torch
from torch._ops import OpOverload

from kiln.graph.ir.node import Attr, Node
from kiln.graph.ops import DECOMPOSITIONS, VIEWS
from kiln.graph.ops.breaks import DataDependentScalar, UnsupportedMutation, UnsupportedOp
from kiln.graph.ops.pointwise import truth
from kiln.graph.ops.registry import ViewSteps
from kiln.graph.ops.sizes import same_sizes
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Cells
from kiln.graph.trace.constant_value import PURE_KINDS, constant_value
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.fallback import fallback_handler
from kiln.graph.trace.mode import Args, Conjugate, Handler, Kwargs, RecordingMode, real_in
from kiln.graph.trace.shared_memory import by_storage, refuse_shared_memory
from kiln.graph.trace.storage_view import StorageView, new_storage, root_of
from kiln.plan.errors import SINGULAR
from kiln.plan.host_operators import CLOCK, dtype_of
from kiln.symbolic import Int, rel_le
from kiln.symbolic.node import to_sym
from kiln.tensor.spec import ScalarSpec, TensorSpec

special = SPECIAL = Cells[Handler]("special")
"""By the name of the overload, without `aten.`."""


@special("detach.default", "alias.default", "lift_fresh.default", "lift.default")
def alias(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    return mode.fake(mode.view_of(args[0]))


@special("_conj.default")
def conjugate(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    if isinstance(args[0], torch.Tensor) and not args[0].is_complex():
        raise UnsupportedOp(op=str(op), reason="of a real tensor, eager makes a view that cannot be read")
    made = mode.wrap(DECOMPOSITIONS["aten._conj.default"](mode.emit, mode.value(args[0])))
    origin = mode.emit.origin
    if isinstance(args[0], torch.Tensor) and isinstance(made, FakeTensor) and not (origin and origin.backward):
        view, new = mode.view_of(args[0]), made.storage_view
        same = (view.spec.strides, view.spec.offset) == (new.spec.strides, new.spec.offset)
        versions = view.storage.version, new.storage.version
        mode.conjugates.append(Conjugate(view.storage, new.storage, versions, same))
    return made


@special("copy_.default")
def copy_(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    view, other = mode.view_of(args[0]), mode.view_of(args[1])
    source, spec = mode.memory.read(other), view.spec
    refuse_shared_memory(mode, op, args[0], by_storage(mode, args[1:2]), pointwise=True)
    value = mode.emit.convert(source, spec.dtype)
    if not same_sizes(mode.emit, value.tensor.sizes, spec.sizes):
        value = mode.emit.node("expand", value, sizes=spec.sizes)
    mode.write(args[0], value, op)
    return args[0]


@special("fill_.Scalar", "fill_.Tensor", "zero_.default")
def fill_(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    spec = mode.view_of(args[0]).spec
    value = mode.value(args[1]) if len(args) > 1 else 0
    filled = mode.emit.full(cast(Node | float, value), spec.sizes, spec.dtype, spec.device)
    mode.write(args[0], filled, op, uniform=True)
    return args[0]


def metadata_change(name: str) -> Handler:
    """`x.t_()` and the like, through the view op `name`."""

    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        fake = cast(FakeTensor, args[0])
        if fake.is_input:
            raise UnsupportedMutation(op=str(op), reason="it changes the sizes or strides of an input")
        view = fake.storage_view
        if fake.requires_grad and root_of(view.storage).node.op.name == "input":
            raise UnsupportedMutation(op=str(op), reason="it changes a view of an input, which may be one of a leaf")
        values, named = mode.arguments(args[1:], kwargs)
        for step in cast(ViewSteps, VIEWS[name](mode.emit, view.spec, *values, **named)):
            view = mode.memory.step_view(view, step)
        mode.mutations += 1
        move(mode, fake, view)
        return fake

    return handler


def move(mode: RecordingMode, fake: FakeTensor, view: StorageView) -> None:
    """Make `fake` a fake of another view; its geometry in C++ is set below the Python dispatch key."""
    spec, symbols = view.spec, mode.symbols
    sizes, strides, offset = symbols.hints(spec.sizes), symbols.hints(spec.strides), symbols.hint(spec.offset)
    with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        torch.ops.aten.as_strided_.default(fake, sizes, strides, offset)
    fake.storage_view = view


for _name, _view in {
    "t_.default": "t.default", "transpose_.default": "transpose.int", "unsqueeze_.default": "unsqueeze.default",
    "squeeze_.default": "squeeze.default", "squeeze_.dim": "squeeze.dim", "squeeze_.dims": "squeeze.dims",
    "as_strided_.default": "as_strided.default",
}.items():  # fmt: skip
    SPECIAL[_name] = metadata_change(f"aten.{_view}")


@special(
    "set_.source_Tensor", "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.default",
    "resize_.default", "resize_as_.default",
)  # fmt: skip
def storage_change(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    raise UnsupportedMutation(op=str(op), reason="it changes the storage of a tensor")


@special("ormqr.default")
def ormqr(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    if torch.is_grad_enabled() and cast(torch.Tensor, args[0]).requires_grad:
        reason = "its gradient has other strides when a dispatch mode records it than in eager"
        raise UnsupportedOp(op=str(op), reason=reason)
    return fallback_handler(op)(mode, op, args, kwargs)


@special("_assert_async.msg", "_assert_async.default")
def assert_async(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    message = cast(str, args[1]) if len(args) > 1 else "an assertion on a tensor failed"
    message += " " * message.endswith(SINGULAR)  # which stands for an error of torch.linalg
    mode.emit.node("assert", truth(mode.emit, mode.node_of(args[0])), message=message)
    return None


@special("_linalg_check_errors.default")
def linalg_check_errors(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    emit, info = mode.emit, mode.node_of(args[0])
    succeeded = emit.pointwise("eq", info, 0)
    if info.tensor.rank:
        succeeded = emit.node("all", succeeded, axes=tuple(range(info.tensor.rank)))
    emit.node(
        "assert", succeeded, message=f"{args[1]}: the input matrix is singular or not positive-definite{SINGULAR}"
    )
    return None


@special("is_same_size.default")
def is_same_size(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    return same_sizes(mode.emit, mode.view_of(args[0]).spec.sizes, mode.view_of(args[1]).spec.sizes)


@special("_has_same_storage_numel.default")
def has_same_storage_numel(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Whether two storages have as many elements; forward-mode differentiation may then share a layout."""
    first, second = [storage_numel(mode.view_of(arg)) for arg in args]
    return first == second


def storage_numel(view: StorageView) -> Int:
    """How many elements the storage of `view` has."""
    return root_of(view.storage).spec.storage_elements()


@special("_new_zeros_with_same_feature_meta.default")
def zeros_with_layout_of(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Zeros with dtype and device of the first argument, and the layout of the second in a storage of its size."""
    if kwargs.get("self_num_batch_dims"):
        raise UnsupportedOp(op=str(op), reason="its result has batch dimensions of its own")
    spec, view = mode.view_of(args[0]).spec, mode.view_of(args[1])
    other, count = view.spec, storage_numel(view)
    layout: dict[str, Attr] = {"sizes": other.sizes, "strides": other.strides, "offset": other.offset}
    whole = new_storage(mode.emit.full(0, (count,), spec.dtype, spec.device))
    return mode.fake(mode.memory.step_view(whole, ("as_strided", layout)))


@special("sym_constrain_range.default", "sym_constrain_range_for_size.default")
def constrain_range(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """`torch._check_is_size` and the like: facts about a size."""
    size, symbols = cast(Int, mode.value(args[0])), mode.symbols
    low = cast(int | None, kwargs.get("min", 0 if "for_size" in str(op) else None))
    high = cast(int | None, kwargs.get("max"))
    if low is not None:
        symbols.env.assume(rel_le(low, size), symbols.location)
    if high is not None:
        symbols.env.assume(rel_le(size, high), symbols.location)
    return None


@special("_local_scalar_dense.default", "item.default", "is_nonzero.default")
def local_scalar(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    node = mode.node_of(args[0])
    value = constant_value(node, mode.constants.tensors)
    if value is not None:
        return value.item()
    dtype = node.tensor.dtype
    if dtype.is_floating_point:
        return to_sym(real_in(mode, node), mode.symbols.env, mode.symbols.where)
    if dtype is torch.bool or dtype.is_complex:
        raise DataDependentScalar(op="item")
    key = "item", computation(node)
    found = mode.counts.get(key)
    if found is None:
        found = known_sum(mode, node)
    if found is not None:
        return mode.symbols.sym(found)
    made = unbacked_integer(mode, node, smallest(mode, node))
    mode.counts[key] = cast(Int, mode.value(made))
    return made


@special("equal.default")
def equal_tensors(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Of constants only: ATen asks it of such in checks of its own (`quantile` in torch 2.11)."""
    known = [constant_value(mode.node_of(arg), mode.constants.tensors) for arg in args]
    if any(value is None for value in known):
        raise DataDependentScalar(op="equal")
    return torch.equal(*cast(list[torch.Tensor], known))


@special(CLOCK)
def clock(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    values, named = mode.arguments(args, kwargs)
    spec = TensorSpec(dtype_of(str(args[0])), (), ())
    return mode.wrap(mode.emit.library(str(op), values, named, spec, opaque=True))


def known_sum(mode: RecordingMode, node: Node) -> Int | None:
    """The number in `x + 2`, if the one in `x` has a symbol: so `a[x : x + 2]` has two elements."""
    if node.op.name not in ("add", "sub") or node.tensor.dtype is not torch.int64:
        return None
    base, other = node.inputs
    found, step = mode.counts.get(("item", computation(base))), constant_value(other, mode.constants.tensors)
    if found is None or step is None:
        return None
    return found + int(step) if node.op.name == "add" else found - int(step)


def smallest(mode: RecordingMode, node: Node) -> int | None:
    """What an integer is at least that is the larger of two (`clamp(min=0)`), if one is a constant."""
    bounds = [constant_value(given, mode.constants.tensors) for given in node.inputs if node.op.name == "maximum"]
    return max([int(bound) for bound in bounds if bound is not None], default=None)


MOST_STEPS = 8
"""How far back the computations of two values are compared."""


def computation(node: Node, steps: int = MOST_STEPS) -> Hashable:
    """Equal for nodes that compute the same from the same values, such as `x > 0` and `x > 0`."""
    if steps == 0 or node.op.name == "empty" or (node.op.kind not in PURE_KINDS and node.op.name != "constant"):
        return node
    inputs = tuple([computation(value, steps - 1) for value in node.inputs])
    return node.op.name, inputs, repr(node.attrs)


def unbacked_integer(mode: RecordingMode, node: Node, low: int | None = None, high: int | None = None) -> object:
    """The integer in a tensor as an unbacked symbol; an effect node reads it at run time.

    `low` and `high` are what is known of it, besides its dtype.
    """
    limits = torch.iinfo(node.tensor.dtype)
    low, high = limits.min if low is None else low, limits.max if high is None else high
    symbol = mode.repeated.pop(0) if mode.repeated else mode.symbols.env.create_unbacked(lo=low, hi=high)
    mode.symbolic = True
    mode.emit.add(PRIMS["local_scalar"], (node,), {"kind": "int", "checks": ()}, ScalarSpec(int, symbol))
    return mode.symbols.sym(symbol)
