"""The handler of an ATen overload, found from the tables of rules and the op's schema.

resolve(aten.silu.default)      runs the decomposition of silu
resolve(aten.add_.Tensor)       runs the decomposition of aten.add.Tensor, then writes the result to the argument

`EagerKernels` says which decompositions are replaced by calls of eager's kernels.
"""

from __future__ import annotations

from functools import partial, wraps
from typing import cast, final

import torch
from torch._ops import OpOverload, OpOverloadPacket

from kiln.graph.ir.node import Node
from kiln.graph.ops import DECOMPOSITIONS, INPLACE, LIBRARY, MUTATIONS, VIEWS, Emit
from kiln.graph.ops.breaks import UnsupportedMutation, UnsupportedOp
from kiln.graph.ops.domains import NUMBERS, REFUSED, refuse_dtype, refuse_in_place, refuse_numbers, refuse_rare
from kiln.graph.ops.eager_kernels import OWN_KERNELS, EagerKernels
from kiln.graph.ops.registry import Decomposition, MutationRule, Results, SpecRule, ViewRule, ViewSteps
from kiln.graph.ops.sizes import same_sizes
from kiln.graph.trace.data_dependent import MASKS  # noqa: F401  (registers handlers)
from kiln.graph.trace.fake import QUERIES, FakeTensor
from kiln.graph.trace.fallback import fallback_handler, fitted, written_names
from kiln.graph.trace.foreach import foreach_handler
from kiln.graph.trace.mode import Args, Handler, Kwargs, RecordingMode
from kiln.graph.trace.numpy_calls import numpy_call  # noqa: F401  (registers it)
from kiln.graph.trace.shared_memory import by_storage, refuse_shared_memory
from kiln.graph.trace.special import SPECIAL
from kiln.graph.trace.storage_view import StorageView, reaches_outside
from kiln.plan.overloads import is_random
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


def resolve(op: OpOverload, kernels: EagerKernels = OWN_KERNELS) -> Handler:
    """The handler of `op`; raises a `TraceBreak` where there is none."""
    found = handler_of(op, kernels)
    return noting_place(found) if str(op).startswith("aten.as_strided") else found


def noting_place(handler: Handler) -> Handler:
    """A place is counted from where the memory begins, not from where the tensor does."""

    def noting(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        place = kwargs.get("storage_offset", args[-1])
        if isinstance(place, int | torch.SymInt):
            mode.view_of(args[0]).storage.is_addressed = True
        return handler(mode, op, args, kwargs)

    return noting


def handler_of(op: OpOverload, kernels: EagerKernels) -> Handler:
    name = str(op)
    find = partial(functional_rule, kernels=kernels)
    if handler := SPECIAL.get(name.removeprefix("aten.")):
        return handler
    if query := QUERIES.get(name):
        return lambda mode, op, args, kwargs: query(differentiated(op, args[0]), *args[1:], **kwargs)
    if view_rule := VIEWS.get(name):
        return view_handler(view_rule)
    if mutation := MUTATIONS.get(name):
        return mutation_handler(kernels.mutation(name, mutation))
    if rule := find(name):
        return functional_handler(rule)
    if op._schema.is_mutable and (handler := mutable_handler(op, name, kernels)):
        return handler
    if op._can_decompose():
        return composite_handler
    if handler := foreach_handler(op, find):
        return handler
    if view_rule := VIEWS.get(name.replace("_copy.", ".")):
        return view_copy_handler(view_rule)
    return fallback_handler(op)


def differentiated(op: OpOverload, tensor: object) -> FakeTensor:
    """The fake that a transform differentiates: it has the sizes of the wrapper."""
    while isinstance(tensor, torch.Tensor) and torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if type(tensor) is not FakeTensor:
        raise UnsupportedOp(op=str(op), reason="it asks for sizes within `vmap`")
    return tensor


def functional_rule(name: str, kernels: EagerKernels = OWN_KERNELS, *, in_place: bool = False) -> Decomposition | None:
    """A rule from nodes to nodes: a decomposition, or an ATen call. `in_place`: for the in-place form of it."""
    rule = DECOMPOSITIONS.get(name)
    if rule is None:
        specs = LIBRARY.get(name)
        return None if specs is None else library_rule(name, specs, random=kernels.random and is_random(name))
    return refusing_rule(name, kernels.decomposition(name, rule, in_place=in_place))


def refusing_rule(name: str, decomposition: Decomposition) -> Decomposition:
    is_choosy = name in REFUSED or name in NUMBERS

    @wraps(decomposition)
    def rule(e: Emit, *args: Results, **kwargs: Results) -> Results:
        refuse_rare(name, args, kwargs)
        if is_choosy:
            refuse_dtype(name, args, kwargs.get("dtype"))
            refuse_numbers(e, name, args, kwargs)
        return decomposition(e, *args, **kwargs)

    return rule


def library_rule(name: str, specs: SpecRule, *, random: bool = False) -> Decomposition:
    def rule(e: Emit, *args: Results, **kwargs: Results) -> Results:
        return e.library(name, args, kwargs, specs(e, *args, **kwargs), opaque=random)

    return rule


def functional_handler(rule: Decomposition) -> Handler:
    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        if kwargs:
            refuse_placement(op, kwargs)
        values, named = mode.arguments(args, kwargs)
        return mode.wrap(rule(mode.emit, *values, **named))

    return handler


def refuse_placement(op: OpOverload, kwargs: Kwargs) -> None:
    """Rules give strided results in memory that is not pinned."""
    layout, pinned = kwargs.get("layout"), kwargs.get("pin_memory")
    if layout not in (None, torch.strided):
        raise UnsupportedOp(op=str(op), reason=f"its result has the layout {layout}")
    if pinned:
        raise UnsupportedOp(op=str(op), reason="its result is in pinned memory")


def view_after(mode: RecordingMode, view: StorageView, steps: ViewSteps) -> torch.Tensor:
    """The fake after some view steps."""
    for step in steps:
        view = mode.memory.step_view(view, step)
    return mode.fake(view)


def view_copy_handler(rule: ViewRule) -> Handler:
    """`view_copy` and the like: the view as a contiguous copy."""

    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        source = mode.node_of(args[0])
        values, named = mode.arguments(args[1:], kwargs)
        steps = rule(mode.emit, source.tensor, *values, **named)
        if isinstance(steps, list):
            return mode.wrap([copied_view(mode, source, part) for part in steps])
        return mode.wrap(copied_view(mode, source, steps))

    return handler


def copied_view(mode: RecordingMode, node: Node, steps: ViewSteps) -> Node:
    for name, attrs in steps:
        node = mode.emit.node(name, node, **attrs)
    return mode.emit.node("clone", node, strides=None)


def view_handler(rule: ViewRule) -> Handler:
    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        view = mode.view_of(args[0])
        values, named = mode.arguments(args[1:], kwargs)
        steps = rule(mode.emit, view.spec, *values, **named)
        if isinstance(steps, list):
            return [view_after(mode, view, part) for part in steps]
        if view.step is not None and cast(torch.Tensor, args[0]).requires_grad:
            refuse_lost_gradient(view.spec, steps, str(op))
        return view_after(mode, view, steps)

    return handler


def refuse_lost_gradient(spec: TensorSpec, steps: ViewSteps, op: str) -> None:
    """Eager gives no gradient to what `as_strided` reads outside of the view that it is applied to."""
    if any(name == "as_strided" and reaches_outside(attrs, spec) for name, attrs in steps):
        raise UnsupportedOp(op=op, reason="it reads memory outside of a view, which gets no gradient")


def mutation_handler(rule: MutationRule) -> Handler:
    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        values, named = mode.arguments(args, kwargs)
        effects = rule(mode.emit, *values, **named)
        for key, value in effects.writes.items():
            target = args[key] if isinstance(key, int) else kwargs[key]
            mode.write(target, fitted(mode, value, mode.view_of(target).spec), op)
        return mode.wrap(effects.results)

    return handler


def composite_handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Without autograd (inference mode), composite ops arrive whole: run their kernel under the mode again."""
    with mode:
        return cast(object, op.decompose(*args, **kwargs))


# In-place and out= overloads from their functional ones.


@final
@dataclass(frozen=True, slots=True)
class MutableRule:
    """How a mutable overload is recorded: its functional overload, and the arguments that take the results."""

    functional: str
    written: list[str]
    in_place: bool


def mutable_rule(op: OpOverload, name: str) -> MutableRule | None:
    """The functional overload of an in-place or `out=` one, if it has a rule."""
    base, overload = name.rsplit(".", 1)
    written = written_names(op)
    if base.endswith("_") and not base.endswith("__") and written == ["self"]:
        likely = INPLACE.get(name) or f"{base[:-1]}.{overload}"
        if functional_rule(likely):
            return MutableRule(likely, written, True)
        other = functional_overload(getattr(torch.ops.aten, base[5:-1], None), op, [])
        return MutableRule(other, written, True) if other and functional_rule(other) else None
    if all(arg.kwarg_only for arg in op._schema.arguments if arg.name in written):
        other = functional_overload(op.overloadpacket, op, written)
        return MutableRule(other, written, False) if other and functional_rule(other) else None
    return None


def mutable_handler(op: OpOverload, name: str, kernels: EagerKernels) -> Handler | None:
    found = mutable_rule(op, name)
    rule = functional_rule(found.functional, kernels, in_place=found.in_place) if found else None
    if found is None or rule is None:
        return None
    if found.in_place:
        return inplace_handler(found.functional, rule)
    return out_handler(rule, found.written, found.functional in FACTORIES)


FACTORY_ARGUMENTS = ["dtype", "layout", "device", "pin_memory"]
FACTORIES = frozenset(
    f"aten.{name}"
    for name in (
        "arange.default", "arange.start", "arange.start_step", "zeros.default", "ones.default", "full.default",
        "rand.default", "randn.default", "randint.default", "randint.low", "eye.default", "eye.m", "linspace.default",
    )
)  # fmt: skip
"""Functions without tensor arguments: their `out=` overloads take dtype and device from `out`."""


def functional_overload(packet: OpOverloadPacket | None, op: OpOverload, written: list[str]) -> str | None:
    """The overload that takes the same arguments (except those of a factory) and returns the result."""
    if packet is None:
        return None
    taken = [(arg.name, str(arg.type)) for arg in op._schema.arguments if arg.name not in written]
    for overload in packet.overloads():
        other = getattr(packet, overload)
        if other._schema.is_mutable:
            continue
        given = [(arg.name, str(arg.type)) for arg in other._schema.arguments]
        if given == taken or (
            given[: len(taken)] == taken and [name for name, _ in given[len(taken) :]] == FACTORY_ARGUMENTS
        ):
            return str(other)
    return None


def inplace_handler(functional: str, rule: Decomposition) -> Handler:
    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        spec = mode.view_of(args[0]).spec
        refuse_in_place(functional, spec.dtype)
        refuse_shared_memory(mode, op, args[0], by_storage(mode, args[1:]))
        if kwargs.get("dtype") not in (None, spec.dtype):
            raise RuntimeError(
                f"Bad in-place call: input tensor dtype {spec.dtype} and output tensor dtype should match"
            )
        values, named = mode.arguments(args, kwargs)
        mode.write(args[0], fitted(mode, rule(mode.emit, *values, **named), spec), op)
        return args[0]

    return handler


def out_handler(rule: Decomposition, written: list[str], factory: bool) -> Handler:
    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        outs = [cast(torch.Tensor, kwargs[name]) for name in written]
        read = by_storage(mode, args)
        for out in outs:
            refuse_shared_memory(mode, op, out, read)
        values, named = mode.arguments(args, {key: value for key, value in kwargs.items() if key not in written})
        if factory:
            named |= {"dtype": outs[0].dtype, "device": outs[0].device}
        result = rule(mode.emit, *values, **named)
        for out, value in zip(outs, result if isinstance(result, tuple | list) else (result,), strict=True):
            spec = mode.view_of(out).spec
            assert isinstance(value, Node)
            if not same_sizes(mode.emit, spec.sizes, value.tensor.sizes):
                reason = f"`out` has sizes {spec.sizes}, the result {value.tensor.sizes}"
                raise UnsupportedMutation(op=str(op), reason=reason)
            if value.tensor.dtype is not spec.dtype and torch.Tag.pointwise not in op.tags:
                reason = f"`out` is {spec.dtype}, the result {value.tensor.dtype}"
                raise UnsupportedMutation(op=str(op), reason=reason)  # which of them convert, only eager knows
            mode.write(out, fitted(mode, value, spec), op)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return handler
