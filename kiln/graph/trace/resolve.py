"""Which handler records an ATen overload: found from the tables of rules and the op's schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch._ops import OpOverload

from kiln.graph.ir.node import Node
from kiln.graph.ops import DECOMPOSITIONS, INPLACE, LIBRARY, MUTATIONS, VIEWS
from kiln.graph.ops.breaks import UnsupportedMutation
from kiln.graph.ops.emit import Rule
from kiln.graph.ops.sizes import same_sizes
from kiln.graph.trace.fake import QUESTIONS
from kiln.graph.trace.fallback import fallback_handler
from kiln.graph.trace.foreach import foreach_handler
from kiln.graph.trace.mode import Handler, RecordingMode
from kiln.graph.trace.special import SPECIAL
from kiln.graph.trace.storage_view import StorageView
from kiln.tensor.spec import TensorSpec


def resolve(op: OpOverload) -> Handler:
    """The handler of `op`; raises a `TraceBreak` where there is none."""
    name = str(op)
    if handler := SPECIAL.get(name):
        return handler
    if question := QUESTIONS.get(name):
        return lambda mode, op, args, kwargs: question(*args, **kwargs)
    if rule := VIEWS.get(name):
        return view_handler(rule)
    if rule := MUTATIONS.get(name):
        return mutation_handler(rule)
    if rule := functional_rule(name):
        return functional_handler(rule)
    if op._schema.is_mutable and (handler := mutable_handler(op, name)):
        return handler
    if op._can_decompose():
        return composite_handler
    if handler := foreach_handler(op, functional_rule):
        return handler
    if rule := VIEWS.get(name.replace("_copy.", ".")):
        return view_copy_handler(rule)
    return fallback_handler(op)


def functional_rule(name: str) -> Rule | None:
    """A rule from nodes to nodes: a decomposition, or a step left to ATen."""
    rule: Rule | None = DECOMPOSITIONS.get(name)
    if rule is None and (specs := LIBRARY.get(name)):
        return library_rule(name, specs)
    return rule


def library_rule(name: str, specs: Rule) -> Rule:
    def rule(e: Any, *args: Any, **kwargs: Any) -> Any:
        return e.library(name, args, kwargs, specs(e, *args, **kwargs))

    return rule


def arguments(mode: RecordingMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    return mode.values(args), {key: mode.value(one) for key, one in kwargs.items()} if kwargs else kwargs


def functional_handler(rule: Rule) -> Handler:
    def handler(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values, named = arguments(mode, args, kwargs)
        return mode.wrap(rule(mode.emit, *values, **named))

    return handler


def walk(mode: RecordingMode, view: StorageView, steps: Any) -> torch.Tensor:
    """The fake at the end of some view steps."""
    for step in steps:
        view = mode.memory.step_view(view, step)
    return mode.fake(view)


def view_copy_handler(rule: Rule) -> Handler:
    """`view_copy` and its kin: the view, contiguous and in memory of its own."""

    def handler(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = mode.value(args[0])
        values, named = arguments(mode, args[1:], kwargs)
        steps = rule(mode.emit, source.tensor, *values, **named)
        made = [copied_steps(mode, source, one) for one in steps] if isinstance(steps, list) else None
        return mode.wrap(copied_steps(mode, source, steps) if made is None else made)

    return handler


def copied_steps(mode: RecordingMode, node: Node, steps: Any) -> Node:
    for name, attrs in steps:
        node = mode.emit.node(name, node, **attrs)
    return mode.emit.node("clone", node, strides=None)


def view_handler(rule: Rule) -> Handler:
    def handler(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        view = mode.view_of(args[0])
        values, named = arguments(mode, args[1:], kwargs)
        steps = rule(mode.emit, view.spec, *values, **named)
        if isinstance(steps, list):
            return [walk(mode, view, one) for one in steps]
        return walk(mode, view, steps)

    return handler


def mutation_handler(rule: Rule) -> Handler:
    def handler(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values, named = arguments(mode, args, kwargs)
        effects = rule(mode.emit, *values, **named)
        for key, value in effects.writes.items():
            target = args[key] if isinstance(key, int) else kwargs[key]
            mode.write(target, fitted(mode, value, mode.view_of(target).spec, op), op)
        return mode.wrap(effects.results)

    return handler


def composite_handler(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Composite kernels arrive whole where autograd is off (inference mode): run them under the mode again."""
    with mode:
        return op.decompose(*args, **kwargs)


# In-view and out= overloads from their functional ones.


@final
@dataclass(frozen=True, slots=True)
class MutableRule:
    """How a mutable overload is recorded: the functional one, and where its results go."""

    functional: str
    written: list[str]
    in_place: bool


def mutable_rule(op: OpOverload, name: str) -> MutableRule | None:
    """The functional overload behind an in-place or `out=` one, if it has a rule."""
    base, overload = name.rsplit(".", 1)
    written = [arg.name for arg in op._schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
    if base.endswith("_") and not base.endswith("__") and written == ["self"]:
        near = INPLACE.get(name) or f"{base[:-1]}.{overload}"
        if functional_rule(near):
            return MutableRule(near, written, True)
        other = functional_overload(getattr(torch.ops.aten, base[5:-1], None), op, [])
        return MutableRule(other, written, True) if other and functional_rule(other) else None
    if all(arg.kwarg_only for arg in op._schema.arguments if arg.name in written):
        other = functional_overload(op.overloadpacket, op, written)
        return MutableRule(other, written, False) if other and functional_rule(other) else None
    return None


def mutable_handler(op: OpOverload, name: str) -> Handler | None:
    found = mutable_rule(op, name)
    rule = functional_rule(found.functional) if found else None
    if found is None or rule is None:
        return None
    if found.in_place:
        return inplace_handler(rule)
    return out_handler(rule, found.written, found.functional in FACTORIES)


FACTORY_ARGUMENTS = ["dtype", "layout", "device", "pin_memory"]
FACTORIES = frozenset(
    f"aten.{name}"
    for name in (
        "arange.default", "arange.start", "arange.start_step", "zeros.default", "ones.default", "full.default",
        "rand.default", "randn.default", "randint.default", "randint.low", "eye.default", "eye.m", "linspace.default",
    )
)  # fmt: skip
"""Functions of no tensor: their `out=` overload takes dtype and device from `out`."""


def functional_overload(packet: Any, op: OpOverload, written: list[str]) -> str | None:
    """The overload that takes the same arguments (but those of a factory) and returns its result."""
    if packet is None:
        return None
    taken = [(arg.name, str(arg.type)) for arg in op._schema.arguments if arg.name not in written]
    for overload in packet.overloads():
        other = getattr(packet, overload)
        if other._schema.is_mutable:
            continue
        arguments = [(arg.name, str(arg.type)) for arg in other._schema.arguments]
        if arguments == taken or (
            arguments[: len(taken)] == taken and [name for name, _ in arguments[len(taken) :]] == FACTORY_ARGUMENTS
        ):
            return str(other)
    return None


def inplace_handler(rule: Rule) -> Handler:
    def handler(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        spec = mode.view_of(args[0]).spec
        values, named = arguments(mode, args, kwargs)
        mode.write(args[0], fitted(mode, rule(mode.emit, *values, **named), spec, op), op)
        return args[0]

    return handler


def out_handler(rule: Rule, written: list[str], factory: bool) -> Handler:
    def handler(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outs = [kwargs[name] for name in written]
        named = {key: mode.value(one) for key, one in kwargs.items() if key not in written}
        if factory:
            named |= {"dtype": outs[0].dtype, "device": outs[0].device}
        result = rule(mode.emit, *[mode.value(one) for one in args], **named)
        for out, value in zip(outs, result if isinstance(result, tuple | list) else (result,), strict=True):
            spec = mode.view_of(out).spec
            if not same_sizes(mode.emit, spec.sizes, value.tensor.sizes):
                raise UnsupportedMutation(
                    op=str(op), reason=f"`out` has sizes {spec.sizes}, the result {value.tensor.sizes}"
                )
            mode.write(out, fitted(mode, value, spec, op), op)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return handler


def fitted(mode: RecordingMode, value: Node, spec: TensorSpec, op: OpOverload) -> Node:
    """The result of an op as new content of a tensor of `spec`."""
    have = value.tensor
    if not same_sizes(mode.emit, have.sizes, spec.sizes):
        raise RuntimeError(f"output with shape {list(spec.sizes)} doesn't match the broadcast shape {list(have.sizes)}")
    if have.dtype is not spec.dtype:
        if not torch.can_cast(have.dtype, spec.dtype):
            raise RuntimeError(f"result type {have.dtype} can't be cast to the desired output type {spec.dtype}")
        value = mode.emit.convert(value, spec.dtype)
    return value
