"""`torch.cond` and its kin with tensors that decide: nested graphs of the region.

    torch.cond(x.sum() > 0, double, negate, (x,))

Both branches are interpreted; their torch calls leave the log, which gets one call of a `ControlFlow` instead. What
cannot be in a nested graph (a graph break, an exception, a side effect) is interpreted again as plain Python, which
takes one branch: `control_flow.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import final

import torch
import torch.fx.traceback
import torch.nn.attention.flex_attention
from torch._ops import OpOverload

import kiln.capture.interpreter.attention_polyfill as attention_polyfill
import kiln.capture.interpreter.control_flow as control_flow
from kiln.capture.interpreter.breaks import GraphBreak, PastStep, Raised, UnsupportedCall
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Kwargs,
    SiteHandler,
    Value,
    handles_at_site,
)
from kiln.capture.interpreter.data_values import ValueNeeded, past_step
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.nested_calls import (
    Flat,
    captured_by,
    flat,
    interpreted,
    is_single,
    operator_of,
    rebuilt,
    record,
)
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, from_torch
from kiln.graph.ops.breaks import TraceBreak
from kiln.graph.prims.meta import equal
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import ControlFlow
from kiln.graph.trace.nested_graphs import NotNested, input_node
from kiln.graph.trace.nested_logs import WritesArgument, is_differentiated
from kiln.runtime.control_flow import run_cond, run_scan, run_while
from kiln.support.records import dataclass
from kiln.symbolic import Relation, to_sym
from kiln.tensor.spec import TensorSpec


def arguments(args: Args, kwargs: Kwargs, names: Sequence[str]) -> list[Value]:
    """Bound arguments in order; those at the end that are not given are missing."""
    return [*args, *[kwargs[name] for name in names[len(args) :] if name in kwargs]]


@final
@dataclass(eq=False)
class OperatorCalls:
    """The calls of operators that exceptions left: a break there can let plain Python raise them."""

    left: list[tuple[Value, PastStep]] = field(default_factory=list)


def interpret(s: CaptureState, replacement: Callable[..., object], args: Args, kwargs: Kwargs, site: CallSite) -> Value:
    """Call Python code in place of an operator."""
    step = past_step(running_frame(s))
    try:
        return s.wrap(replacement, None).call(s, args, kwargs, site)
    except Raised as raised:
        s.part(OperatorCalls).left.append((raised.value, step))
        raise


def stop_at_operator(s: CaptureState, raised: Raised, stops: dict[tuple[int, int], GraphBreak]) -> bool:
    """For an exception that leaves the frame and came out of an operator: break in front of the call of that.

    If the whole frame ran eager, torch's compiler would raise an error of its own.
    """
    for value, step in s.part(OperatorCalls).left:
        if value is raised.value and (step.number, step.step) not in stops:
            why = "a function that it calls raises an exception"
            stop = UnsupportedCall(function="a control flow operator", why=why).before(step)
            stops[step.number, step.step] = stop
            return True
    return False


def in_place_of(replacement: Callable[..., object]) -> SiteHandler:
    """Python code that is interpreted instead."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        return interpret(s, replacement, args, kwargs, site)

    return handler


def nested_or_plain(s: CaptureState, nest: Callable[[], Value], plain: Callable[[], Value]) -> Value:
    """`nest()`, unless this attempt or an earlier one found that it cannot be a nested graph: then `plain()`."""
    frame = program_frame(s)
    here = (frame.code, frame.at), past_step(frame)
    if here[0] in s.needed or s.function_modes:
        return plain()
    try:
        return nest()
    except (NotNested, TraceBreak):
        raise ValueNeeded(*here) from None


def program_frame(s: CaptureState) -> SymbolicFrame:
    """The frame of the program that calls the operator."""
    frame = running_frame(s)
    while frame.code.co_filename == control_flow.__file__ and frame.parent is not None:
        frame = frame.parent
    return frame


def record_operator(s: CaptureState, target: ControlFlow, args: Sequence[FakeTensor]) -> list[Value]:
    """Raises as torch where a function changes a tensor in place and gradients are on."""
    try:
        return record(s, target, args)
    except WritesArgument:
        if not torch.is_grad_enabled():
            raise
        text = f"torch.{target.kind}: a function changes a tensor from outside in place, which has no gradient"
        raise s.error(RuntimeError, text) from None


COND = ("pred", "true_fn", "false_fn", "operands")


@handles_at_site(torch.cond)
def cond(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
    return nested_cond_or_plain(s, args, kwargs, partial(interpret, s, control_flow.cond, args, kwargs, site))


@handles_at_site(torch.ops.higher_order.cond)
def cond_operator(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
    return nested_cond_or_plain(s, args, kwargs, partial(interpret, s, control_flow.cond_operator, args, kwargs, site))


def nested_cond_or_plain(s: CaptureState, args: Args, kwargs: Kwargs, plain: Callable[[], Value]) -> Value:
    given = arguments(args, kwargs, COND)
    if len(given) < len(COND):
        given.append(Tuple([]))
    condition, true, false, operands = given
    if isinstance(condition, Symbolic) and s.policy.whole:
        condition = truth_of_sizes(s, condition)
    if not isinstance(condition, Tensor) or not isinstance(operands, Tuple | List) or not is_single(condition):
        return plain()
    if not all(isinstance(leaf, Tensor | Symbolic) for leaf in flat(s, operands).leaves):
        return plain()
    return nested_or_plain(s, partial(nested_cond, s, condition, (true, false), operands.items(s)), plain)


def truth_of_sizes(s: CaptureState, condition: Symbolic) -> Value:
    """What sizes decide, as a tensor: a program that leaves the process has both branches, not one for these sizes."""
    relation = condition.node.node.value
    if not isinstance(relation, Relation) or s.recorder.env.known(relation) is not None:
        return condition
    call = partial(s.recorder.call, stack=running_frame(s).locations())
    difference = to_sym(relation.difference, s.recorder.env)
    number = call(torch.scalar_tensor, (difference,), {"dtype": torch.int64})
    return from_torch(s, call(getattr(torch.Tensor, relation.kind), (number, 0), {}))


def nested_cond(s: CaptureState, condition: Tensor, branches: Sequence[Value], operands: list[Value]) -> Value:
    done = [interpreted(s, branch, operands) for branch in branches]
    true, false = [branch.result for branch in done]
    if true.containers != false.containers:
        raise s.error(RuntimeError, "torch.cond: the branches return other containers, or another number of results")
    for left, right in zip(true.tensors, false.tensors, strict=True):
        a, b = left.fake.storage_view.spec, right.fake.storage_view.spec
        if a.dtype is not b.dtype or a.rank != b.rank or a.device != b.device:
            raise s.error(RuntimeError, f"torch.cond: the branches return other tensors: {a} and {b}")
    if true.constants != false.constants:
        raise NotNested("the branches return other constants")
    sides = [branch.side for branch in done]
    captured = captured_by(sides, ())
    target = operator_of("cond", sides, captured, run_cond)
    return rebuilt(true, record_operator(s, target, [condition.fake, *captured]))


@handles_at_site(torch._higher_order_ops.while_loop, torch.ops.higher_order.while_loop)
def while_loop(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
    given = arguments(args, kwargs, ("cond_fn", "body_fn", "carried_inputs"))
    plain = partial(interpret, s, control_flow.while_loop, given, {}, site)
    if len(given) < 3 or not isinstance(given[2], Tuple | List):
        return plain()
    carried, more = flat(s, Tuple(given[2].items(s))), given[3].items(s) if len(given) > 3 else []  # type: ignore[attr-defined]
    if not carried.leaves or not all_tensors(carried):
        return plain()
    return nested_or_plain(s, partial(nested_while, s, given[:2], carried, more, site), plain)


def nested_while(
    s: CaptureState, functions: Sequence[Value], carried: Flat, more: Sequence[Value], site: CallSite
) -> Value:
    """`more` are arguments of each turn."""
    states = [placeholder(s, tensor.fake.storage_view.spec) for tensor in carried.tensors]
    given = rebuilt(carried, states)
    assert isinstance(given, Tuple)
    done = [interpreted(s, function, [*given.items(s), *more]) for function in functions]
    answer, found = done[0].result, done[1].result
    if not all_tensors(answer) or len(answer.leaves) != 1:
        raise NotNested("its condition is no tensor")
    spec = answer.tensors[0].fake.storage_view.spec
    if spec.dtype is not torch.bool or spec.rank:
        raise s.error(RuntimeError, f"cond_fn must return a boolean scalar tensor or a boolean but got {spec}")
    require_like(s, "body_fn output and carried_inputs", found.leaves, carried.leaves)
    fakes = [state.fake for state in states]
    sides = [function.side for function in done]
    captured = captured_by(sides, fakes)
    if is_differentiated([*[tensor.fake for tensor in carried.tensors], *captured]):
        loop = s.wrap(control_flow.differentiable_loop, None)
        return loop.call(s, [*functions, rebuilt(carried, carried.tensors), Tuple([*more])], {}, site)
    target = operator_of("while_loop", sides, [*fakes, *captured], run_while, carried=len(fakes))
    return rebuilt(carried, record_operator(s, target, [*[tensor.fake for tensor in carried.tensors], *captured]))


@handles_at_site(control_flow.is_free)
def is_free(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
    rows = args[0]
    assert isinstance(rows, Tensor)
    whole = s.recorder.env.taken is not None  # a call that is compiled may have a variant for each length
    return Constant(whole and not isinstance(rows.fake.storage_view.spec.sizes[0], int))


@handles_at_site(control_flow.scanned)
def scanned(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
    function, init, xs = args[0], flat(s, args[1]), flat(s, args[2])
    plain = partial(s.wrap(control_flow.unrolled, None).call, s, args, kwargs, site)
    if not all_tensors(init) or not all_tensors(xs):
        return plain()
    return nested_or_plain(s, partial(nested_scan, s, function, init, xs), plain)


def nested_scan(s: CaptureState, function: Value, init: Flat, xs: Flat) -> Value:
    states = [placeholder(s, tensor.fake.storage_view.spec) for tensor in init.tensors]
    whole = [tensor.fake.storage_view.spec for tensor in xs.tensors]
    rows = [placeholder(s, spec.with_sizes(spec.sizes[1:])) for spec in whole]
    done = interpreted(s, function, [rebuilt(init, states), rebuilt(xs, rows)])
    pair = done.parts
    if len(pair) != 2 or not all_tensors(done.result):
        raise NotNested("it does not return carried values and a row")
    require_like(s, "init and carry", pair[0].leaves, init.leaves)
    fakes = [value.fake for value in (*states, *rows)]
    captured = captured_by([done.side], fakes)
    target = operator_of("scan", [done.side], [*fakes, *captured], run_scan, carried=len(states), rows=len(rows))
    given = [tensor.fake for tensor in (*init.tensors, *xs.tensors)]
    results = record_operator(s, target, [*given, *captured])
    return Tuple([rebuilt(init, results[: len(states)]), rebuilt(pair[1], results[len(states) :])])


def placeholder(s: CaptureState, spec: TensorSpec) -> Tensor:
    """A tensor of which a turn of a loop knows nothing but its layout."""
    node = input_node(0, "turn", spec.with_sizes(spec.sizes))
    return Tensor(s.recorder.fake_of(node))


def all_tensors(value: Flat) -> bool:
    return all(isinstance(leaf, Tensor) and type(leaf.fake) is FakeTensor for leaf in value.leaves)


def require_like(s: CaptureState, what: str, found: Sequence[Value], wanted: Sequence[Value]) -> None:
    """What a turn returns is what the next one takes."""
    if len(found) != len(wanted):
        raise s.error(
            RuntimeError, f"Expected {what} to have same number of outputs but got {len(found)} and {len(wanted)}"
        )
    for left, right in zip(found, wanted, strict=True):
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            raise NotNested("a carried value is no tensor")
        a, b = left.fake.storage_view.spec, right.fake.storage_view.spec
        if a.dtype is not b.dtype or a.device != b.device or not same_sizes(s, a, b):
            raise s.error(RuntimeError, f"Expected {what} to have same metadata but found {a} and {b}")


def same_sizes(s: CaptureState, a: TensorSpec, b: TensorSpec) -> bool:
    """Guarded where that depends on the sizes of this call."""
    return a.rank == b.rank and all(map(partial(equal, s.recorder.symbols), a.sizes, b.sizes))


@handles_at_site(torch.ops.higher_order.auto_functionalized)
def auto_functionalized(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
    operator = args[0].real()
    if not isinstance(operator, OpOverload):
        raise UnsupportedCall(function="auto_functionalized", why="it is not known which operator it calls")
    arguments = operator._schema.arguments
    names = tuple([each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write])
    return interpret(s, control_flow.auto_functionalized, [s.wrap(names, None), *args], kwargs, site)


for _original, _replacement in (
    (torch._higher_order_ops.map, control_flow.mapped),
    (torch.ops.higher_order.map_impl, control_flow.map_operator),
    (torch.ops.higher_order.wrap_with_set_grad_enabled, control_flow.with_grad_mode),
    (torch.ops.higher_order.wrap_with_autocast, control_flow.with_autocast),
    (torch._higher_order_ops.scan, control_flow.scan),
    (torch.ops.higher_order.scan, control_flow.scan_operator),
    (torch._higher_order_ops.associative_scan, control_flow.associative_scan),
    (torch.nn.attention.flex_attention.flex_attention, attention_polyfill.flex_attention),
    (torch.nn.attention.flex_attention.create_mask, attention_polyfill.create_mask),
    (torch.fx.traceback.annotate, attention_polyfill.annotate),
):
    handles_at_site(_original)(in_place_of(_replacement))
