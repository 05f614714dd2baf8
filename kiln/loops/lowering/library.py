"""Calls: what is left to ATen kernels, and effects.

    aten(x, w, target="aten.mm.default", args=(Arg(0), Arg(1)))    =>    b0: f32[4, 8] = extern aten.mm.default(a0, a1)

Arguments are buffers, or the views of buffers that eager would pass. Primitives without loops of their own, and those
on dtypes that loops do not have, become the call that the column `aten` of the graph IR gives for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from kiln.graph.ir.node import Arg, Node, call_of
from kiln.graph.ir.single_call import AtenCall, single_call
from kiln.graph.prims.table import Kind
from kiln.loops.lowering.column import STATEMENT
from kiln.loops.lowering.errors import NoLowering
from kiln.loops.lowering.lower import Lowering, origin_text
from kiln.loops.program.nodes import CHECK, LOCAL_SCALAR, WAIT, Buffer, BufferArg, Extern
from kiln.plan.collective_operators import MESSAGES
from kiln.plan.overloads import find_overload, written_arguments
from kiln.symbolic import Expr
from kiln.tensor.spec import ScalarSpec, TensorSpec

Kwargs = tuple[tuple[str, object], ...]


@STATEMENT("aten", "opaque")
def aten(lowering: Lowering, node: Node) -> None:
    if node.op.kind not in (Kind.LIBRARY, Kind.EFFECT):
        library(lowering, node)
        return
    args, kwargs, target = node.attrs["args"], node.attrs["kwargs"], node.attrs["target"]
    pairs = kwargs.items() if isinstance(kwargs, Mapping) else kwargs
    if written := written_arguments(target):
        mutating(lowering, node, enumerate(args), pairs, written)
        return
    filled = tuple([(name, _filled(lowering, node, value)) for name, value in pairs])
    call(lowering, node, target, [_filled(lowering, node, value) for value in args], filled)


def mutating(
    lowering: Lowering,
    node: Node,
    args: Iterable[tuple[int, object]],
    kwargs: Iterable[tuple[str, object]],
    written: frozenset[int | str],
) -> None:
    """A call that writes to arguments: it gets copies, which are the last of its results."""
    target = node.attrs["target"]
    spec = node.spec
    assert isinstance(spec, tuple)
    count = len(find_overload(target)._schema.returns)
    specs, copies = iter(spec[count:]), list[Buffer]()

    def filled(place: int | str, template: object) -> object:
        if place not in written:
            return _filled(lowering, node, template)
        if isinstance(template, tuple | list):
            return tuple([filled(place, item) for item in template])
        if not isinstance(template, Arg):
            return template
        layout = next(specs)
        assert isinstance(layout, TensorSpec)
        copies.append(lowering.store(layout, node.inputs[template.index]))
        return BufferArg(copies[-1].name)

    given = tuple([filled(place, value) for place, value in args])
    named = tuple([(name, filled(name, value)) for name, value in kwargs])
    outs = tuple([lowering.new_buffer(part) if isinstance(part, TensorSpec) else None for part in spec[:count]])
    lowering.results[node] = (*outs, *copies)
    names = tuple([copy.name for copy in copies])
    lowering.emit(Extern(outs, target, given, named, names, origin=origin_text(node), ordered=node.op.name == "opaque"))


def call(lowering: Lowering, node: Node, target: str, args: Iterable[object], kwargs: Kwargs = ()) -> None:
    spec = node.spec
    outs: tuple[Buffer | None, ...]
    if isinstance(spec, TensorSpec):
        out = lowering.buffers[node] = lowering.new_buffer(spec)
        outs = (out,)
    elif isinstance(spec, tuple):
        outs = tuple([lowering.new_buffer(result) if isinstance(result, TensorSpec) else None for result in spec])
        lowering.results[node] = outs
    else:
        raise NoLowering(op=target, problem=f"its result is {spec}")
    ordered = node.op.name == "opaque"
    lowering.emit(Extern(outs, target, tuple(args), kwargs, origin=origin_text(node), ordered=ordered))


def _filled(lowering: Lowering, node: Node, template: object) -> object:
    """`template` with buffers for `Arg`; scalars of the host become their symbols."""
    if isinstance(template, Arg):
        given = node.inputs[template.index]
        return given.spec.value if isinstance(given.spec, ScalarSpec) else lowering.argument(given)
    if isinstance(template, complex):
        raise NoLowering(op=node.attrs["target"], problem="a plan cannot hold a complex number")
    if isinstance(template, tuple | list):
        return tuple([_filled(lowering, node, item) for item in template])
    return template


@STATEMENT("item")
def item(lowering: Lowering, node: Node) -> None:
    outs, index = lowering.results[node.inputs[0]], node.attrs["index"]
    out = outs[index]
    if out is None:
        raise NoLowering(op="item", problem=f"result {index} of {node.inputs[0].op.name} is no tensor")
    lowering.buffers[node] = out


@STATEMENT("as_strided_scatter")
def as_strided_scatter(lowering: Lowering, node: Node) -> None:
    """ATen's call refuses tensors that require gradients and are not contiguous; views of the plan require none."""
    base, source = [lowering.argument(given) for given in node.inputs]
    plain = lowering.new_buffer(base.spec or node.inputs[0].tensor, base=base.name)
    lowering.emit(Extern((plain,), "kiln.view", (), origin=origin_text(node)))
    made = single_call(node, [BufferArg(plain.name), source])
    assert made is not None
    call(lowering, node, made.target, made.args, made.kwargs)


def library(lowering: Lowering, node: Node) -> None:
    """The only ATen call that computes `node`."""
    if node.op.name == "constant":
        _complex_constant(lowering, node)
        return
    inputs = [lowering.argument(given) for given in node.inputs]
    made = single_call(node, inputs)
    if made is None and node.op.name in CALLS_OF_ANY_DTYPE:
        made = CALLS_OF_ANY_DTYPE[node.op.name](node, inputs)
    if made is None:
        raise NoLowering(op=node.op.name, problem=f"on {node.spec} it has no loops and is not a single ATen call")
    call(lowering, node, made.target, made.args, made.kwargs)


def _complex_constant(lowering: Lowering, node: Node) -> None:
    """Plans hold real numbers only: ATen makes the complex one."""
    spec, number = node.tensor, node.attrs["value"]
    kind = (("dtype", spec.dtype), ("device", spec.device))
    if isinstance(number, Expr):
        call(lowering, node, "aten.full.default", ((), number), kind)
        return
    value = complex(number)
    if not value.imag:
        call(lowering, node, "aten.full.default", ((), value.real), kind)
        return
    part = replace(spec, dtype=spec.dtype.to_real())
    parts = lowering.new_buffer(part), lowering.new_buffer(part)
    for out, number in zip(parts, (value.real, value.imag), strict=True):
        kwargs = (("dtype", part.dtype), ("device", part.device))
        lowering.emit(Extern((out,), "aten.full.default", ((), number), kwargs, origin=origin_text(node)))
    call(lowering, node, "aten.complex.default", [BufferArg(buffer.name) for buffer in parts])


def _pad(node: Node, inputs: list[BufferArg]) -> AtenCall[BufferArg] | None:
    """With a real number that is known."""
    value = node.inputs[1].attrs["value"] if node.inputs[1].op.name == "constant" else None
    if not isinstance(value, int | float | complex) or complex(value).imag:
        return None
    pairs = zip(reversed(node.attrs["low"]), reversed(node.attrs["high"]), strict=True)
    amounts = tuple([amount for pair in pairs for amount in pair])
    return AtenCall("aten.constant_pad_nd.default", (inputs[0], amounts, complex(value).real), ())


CALLS_OF_ANY_DTYPE: Mapping[str, Callable[[Node, list[BufferArg]], AtenCall[BufferArg] | None]] = {
    "clone": lambda node, inputs: AtenCall("aten.clone.default", tuple(inputs), ()),
    "full": lambda node, inputs: AtenCall("aten.repeat.default", (inputs[0], node.tensor.sizes), ()),
    "pad": _pad,
    "reshape": lambda node, inputs: AtenCall("aten._reshape_copy.default", (inputs[0], node.tensor.sizes), ()),
}
"""Primitives that take several calls by the column `aten`, but only one where the executor keeps the planned layout."""


@STATEMENT("assert")
def assert_(lowering: Lowering, node: Node) -> None:
    args = (lowering.argument(node.inputs[0]), node.attrs["message"])
    lowering.emit(Extern((), CHECK, args, origin=origin_text(node)))


@STATEMENT("wait")
def wait(lowering: Lowering, node: Node) -> None:
    """In place: the buffer that the collective writes. Gloo writes all results of a call at each wait for one."""
    source, *held = [lowering.argument(given) for given in node.inputs]
    result = node.inputs[0]
    lowering.buffers[node] = lowering.buffers[result]
    started, written = call_of(result), [source.name]
    if started is not result and started.attrs["target"] != MESSAGES:
        written = [out.name for out in lowering.results[started] if out is not None]
    lowering.emit(Extern((), WAIT, (source, tuple(held)), mutates=tuple(written), origin=origin_text(node)))


@STATEMENT("local_scalar")
def local_scalar(lowering: Lowering, node: Node) -> None:
    spec = node.spec
    if not isinstance(spec, ScalarSpec) or spec.value is None:
        raise NoLowering(op="local_scalar", problem=f"its result {spec} has no symbol")
    args = (lowering.argument(node.inputs[0]), spec.kind.__name__, spec.value, node.attrs["checks"])
    lowering.emit(Extern((), LOCAL_SCALAR, args, origin=origin_text(node)))


@STATEMENT("region")
def region(lowering: Lowering, node: Node) -> None:
    raise NoLowering(op=node.op.name, problem="passes inline regions")
