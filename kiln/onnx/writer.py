"""From a graph to an ONNX model: each node by its rule, sizes by calls on the shapes of inputs.

    %4: f32[s0, 16] = aten.addmm.default(%1, %2, %3)      v0 = Gemm(x2, x3, x1; transB=1)
    %5: f32[s0*16] = view(%4, sizes=(s0*16,))             v1 = Shape(x2; start=0, end=1)
                                                          v2 = Mul(v1, n0)
                                                          v3 = Reshape(v0, v2; allowzero=1)

Rules (`rules.py`, `library_rules.py`) get a `Call`, which appends nodes. Names of values are all that they see.
Branches and loops are If, Loop and Scan, whose graphs read what surrounds them. A model has no checks: those of a
program are left out.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast, final

import torch

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Arg, Attr, Node
from kiln.graph.ir.rewrite import symbols_of
from kiln.graph.prims.table import Kind
from kiln.onnx.call import NO_ATTRS, Attributes
from kiln.onnx.complex_rules import COMPLEX_RULES, ComplexParts, divided, joined
from kiln.onnx.dtypes import ONNX_DTYPES
from kiln.onnx.errors import NoOnnxForm
from kiln.onnx.library_rules import LIBRARY_RULES
from kiln.onnx.model import Attribute, OnnxModel, OnnxNode, OnnxValue
from kiln.onnx.rules import ONNX_RULES
from kiln.plan.overloads import find_overload
from kiln.symbolic import Expr, FloorDiv, Int, Max, Min, Mod, Symbol
from kiln.symbolic.values import Given, Real
from kiln.tensor.spec import ScalarSpec, TensorSpec

OPSET = 18
COMPARISONS = frozenset({
    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "Xor", "IsNaN", "IsInf",
})  # fmt: skip
INDICES = frozenset({"Shape", "ArgMax", "ArgMin"})
DECIDED_BY_SECOND = frozenset({"Where"})
REAL_OPS = {
    "float": "Identity", "add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div", "neg": "Neg", "abs": "Abs",
    "min": "Min", "max": "Max", "sqrt": "Sqrt", "exp": "Exp", "log": "Log", "pow": "Pow", "sin": "Sin", "cos": "Cos",
}  # fmt: skip
Results = str | tuple[str, ...]
"""What a node gives; the parts of a complex tensor are a `ComplexParts`."""


@final
class OnnxWriter:
    """A model being written. `values`: the names of what nodes compute, of several results a tuple."""

    def __init__(self, constants: Mapping[str, torch.Tensor]) -> None:
        self.constants = constants
        self.nodes: list[OnnxNode] = []
        self.values: dict[Node, Results] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self.numbers: dict[str, torch.Tensor] = {}
        self.sizes: dict[Expr | Real, str] = {}
        self.shapes: dict[Symbol, tuple[str, int]] = {}
        """Where a symbol can be read: an input, and its axis."""
        self._known: dict[tuple[torch.dtype, tuple[int, ...], tuple[object, ...]], str] = {}

    def input(self, node: Node, name: str) -> OnnxValue:
        """The next argument of the model."""
        self.values[node] = loaded(self, node, name)
        for axis, size in enumerate(node.tensor.sizes):
            if isinstance(size, Symbol):
                self.shapes.setdefault(size, (name, axis))
        return self.named(name, node.tensor)

    def result(self, name: str, value: Node) -> OnnxValue:
        """`value` under a name of its own."""
        found = self.values[value]
        whole = joined(Call(self, value), found) if isinstance(found, ComplexParts) else str(found)
        self.nodes.append(OnnxNode("Identity", (whole,), (name,), {}, value.tensor.dtype))
        return self.named(name, value.tensor)

    def size_input(self, symbol: Symbol) -> OnnxValue:
        """An argument for a symbol that no input has as a size: a vector of one number."""
        self.sizes[symbol] = symbol.name
        self.dtypes[symbol.name] = torch.int64
        return OnnxValue(symbol.name, torch.int64, (1,))

    def weight(self, name: str, tensor: torch.Tensor) -> str:
        if tensor.dtype not in ONNX_DTYPES:
            raise NoOnnxForm(op="a tensor", reason=f"ONNX has no elements of {tensor.dtype}")
        tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        self.weights[name], self.dtypes[name] = tensor, tensor.dtype
        return name

    def write(self, node: Node) -> None:
        """Append the calls of a node. Raises NoOnnxForm."""
        match node.op.name:
            case "item":
                self.values[node] = self.values[node.inputs[0]][node.attrs["index"]]
            case "assert" | "aten" if not node.spec:
                pass  # a check
            case "local_scalar":
                assert isinstance(node.spec, ScalarSpec)
                self.learn(node.spec.value, str(self.values[node.inputs[0]]))
            case "region":
                self.values[node] = self.inlined(node.attrs["body"], self.names_of(node))
            case "cond" | "while_loop" | "scan":
                self.values[node] = self.control_flow(node)
            case "constant_tensor":
                key = str(node.attrs["key"])
                self.values[node] = loaded(self, node, self.weight(f"constant.{key[:16]}", self.constants[key]))
            case "aten" if not node.inputs and is_settled(node):
                with torch.no_grad():
                    made = cast(torch.Tensor, interpret(Graph((), [node], (Output(node),)), []).outputs[0])
                self.values[node] = loaded(self, node, self.weight(self.fresh("made"), made))
            case _:
                self.values[node] = Call(self, node).made()

    def names_of(self, node: Node) -> list[str]:
        if any([isinstance(self.values[value], ComplexParts) for value in node.inputs]):
            raise NoOnnxForm(op=node.op.name, reason="it takes complex numbers")
        return [str(self.values[value]) for value in node.inputs]

    # Nested graphs.

    def inlined(self, graph: Graph, names: Sequence[str]) -> tuple[str, ...]:
        """Append the calls of `graph` on `names`. Returns its results."""
        for node, name in zip(graph.inputs, names, strict=True):
            self.input(node, name)
        for node in graph.nodes:
            self.write(node)
        return tuple([str(self.values[output.value]) for output in graph.outputs])

    def control_flow(self, node: Node) -> tuple[str, ...]:
        names, attrs, specs = self.names_of(node), node.attrs, [value.tensor for value in node.inputs]
        match node.op.name:
            case "cond":
                graphs = {f"{key}_branch": attrs[place] for key, place in (("then", "true"), ("else", "false"))}
                bodies: dict[str, Attribute] = {key: self.body(graph, names[1:], []) for key, graph in graphs.items()}
                made = self.add("If", names[:1], bodies, torch.bool, len(attrs["true"].outputs))
            case "while_loop":
                count = len(attrs["body"].outputs)
                (first,) = self.inlined(attrs["test"], names)
                loop = self.body(attrs["body"], names[count:], specs[:count], attrs["test"])
                made = self.add("Loop", ["", first, *names[:count]], {"body": loop}, torch.bool, count)
            case _:
                end = attrs["carried"] + attrs["rows"]
                rows = [replace(spec, sizes=spec.sizes[1:]) for spec in specs[attrs["carried"] : end]]
                turn = self.body(attrs["body"], names[end:], [*specs[: attrs["carried"]], *rows])
                scan: dict[str, Attribute] = {"body": turn, "num_scan_inputs": attrs["rows"]}
                made = self.add("Scan", names[:end], scan, torch.bool, len(attrs["body"].outputs))
        results = node.spec if isinstance(node.spec, tuple) else (node.spec,)
        self.dtypes.update({name: spec.dtype for name, spec in zip(made, results, strict=True)})  # type: ignore[union-attr]
        return made

    def body(
        self, graph: Graph, outside: Sequence[str], specs: Sequence[TensorSpec], test: Graph | None = None
    ) -> OnnxModel:
        """`graph` on values of `specs`, its arguments, and on names from outside. `test`: whether a loop goes on."""
        inner = copy.copy(self)
        inner.nodes, inner.values, inner.sizes, inner.shapes = [], {}, {**self.sizes}, {**self.shapes}
        taken = [inner.named(self.fresh("a"), spec) for spec in specs]
        inner.inlined(graph, [*[value.name for value in taken], *outside])
        given = [inner.result(self.fresh("r"), output.value) for output in graph.outputs]
        if test is not None:
            inner.inlined(test, [*[value.name for value in given], *outside])
            turn, on = [
                OnnxValue(self.fresh(kind), dtype, ()) for kind, dtype in (("n", torch.int64), ("c", torch.bool))
            ]
            taken, given = [turn, on, *taken], [inner.result(self.fresh("r"), test.outputs[0].value), *given]
        return replace(inner.model(graph.name, taken, given), inputs=tuple(taken), weights={}, numbers={})

    def fresh(self, prefix: str) -> str:
        name = f"{prefix}.{len(self.dtypes)}"
        self.dtypes[name] = torch.bool
        return name

    def named(self, name: str, spec: TensorSpec) -> OnnxValue:
        """A value of `spec`."""
        pair = (2,) if spec.dtype.is_complex else ()
        dtype = self.dtypes[name] = real_spec(spec).dtype
        return OnnxValue(name, dtype, (*[size if isinstance(size, int) else str(size) for size in spec.sizes], *pair))

    def add(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attribute], dtype: torch.dtype, count: int = 1
    ) -> tuple[str, ...]:
        """Append a call whose results are of `dtype`."""
        outputs = tuple([f"v{len(self.dtypes) + number}" for number in range(count)])
        self.dtypes.update(dict.fromkeys(outputs, dtype))
        named = [name for name in inputs if name]
        decides = named[1 if op in DECIDED_BY_SECOND else 0] if named else ""
        kernel = self.dtypes.get(decides, dtype)
        self.nodes.append(OnnxNode(op, tuple(inputs), outputs, attrs, kernel))
        return outputs

    def number(self, values: object, dtype: torch.dtype) -> str:
        """A small tensor, once for equal ones."""
        tensor = torch.tensor(values, dtype=dtype, device="cpu")
        key = (dtype, tuple(tensor.shape), tuple(map(repr, tensor.flatten().tolist())))
        if key not in self._known:
            name = self._known[key] = f"n{len(self.numbers)}"
            self.numbers[name], self.dtypes[name] = tensor, dtype
        return self._known[key]

    # Sizes, as vectors of int64.

    def vector(self, sizes: Sequence[Int]) -> str:
        """All of them in one vector."""
        if not any([isinstance(size, Expr) for size in sizes]):
            return self.number(list(sizes), torch.int64)
        parts = [self.size(size) for size in sizes]
        return parts[0] if len(parts) == 1 else self.add("Concat", parts, {"axis": 0}, torch.int64)[0]

    def learn(self, value: object, name: str) -> None:
        """The tensor `name` of one number is `value`."""
        if isinstance(value, Expr | Real):
            dtype = torch.float64 if isinstance(value, Real) else torch.int64
            flat = self.add("Reshape", [name, self.number([1], torch.int64)], {}, self.dtypes[name])[0]
            self.sizes[value] = self.add("Cast", [flat], {"to": ONNX_DTYPES[dtype]}, dtype)[0]

    def size(self, value: Int | float | Real) -> str:
        """A vector of one number."""
        if not isinstance(value, Expr | Real):
            return self.number([value], torch.float64 if isinstance(value, float) else torch.int64)
        found = self.sizes.get(value)
        if found is None:
            found = self.sizes[value] = self._computed(value)
        return found

    def _computed(self, value: Expr | Real) -> str:
        match value:
            case Real():
                if value.op not in REAL_OPS:
                    raise NoOnnxForm(op=str(value), reason="a number of the host is computed so")
                parts = [self.size(part) for part in value.args if not isinstance(part, Given)]
                real = [
                    self.add("Cast", [part], {"to": ONNX_DTYPES[torch.float64]}, torch.float64)[0] for part in parts
                ]
                return self.add(REAL_OPS[value.op], real, {}, torch.float64)[0]
            case Symbol():
                if value not in self.shapes:
                    raise NoOnnxForm(op=str(value), reason="no input has this size")
                name, axis = self.shapes[value]
                return self.add("Shape", [name], {"start": axis, "end": axis + 1}, torch.int64)[0]
            case FloorDiv():
                whole = self._fold("Sub", [self.size(value.dividend), self.size(value.dividend % value.divisor)])
                return self._fold("Div", [whole, self.size(value.divisor)])
            case Mod():
                return self._fold("Mod", [self.size(value.dividend), self.size(value.divisor)])
            case Min() | Max():
                return self._fold(type(value).__name__, [self.size(part) for part in value.args])
        terms = []
        for monomial, coefficient in value.terms:
            factors: list[Int] = [*monomial] if coefficient == 1 and monomial else [*monomial, coefficient]
            terms.append(self._fold("Mul", [self.size(factor) for factor in factors]))
        return self._fold("Add", terms)

    def _fold(self, op: str, names: Sequence[str]) -> str:
        result, *rest = names
        for other in rest:
            result = self.add(op, [result, other], {}, torch.int64)[0]
        return result

    def model(self, name: str, inputs: Sequence[OnnxValue], outputs: Sequence[OnnxValue]) -> OnnxModel:
        """What is written, without calls that nothing reads."""
        needed = {value.name for value in outputs}
        kept = []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.outputs):
                kept.append(node)
                needed.update(node.reads())
        weights = {key: tensor for key, tensor in self.weights.items() if key in needed}
        numbers = {key: tensor for key, tensor in self.numbers.items() if key in needed}
        arguments = tuple([value for value in inputs if value.name in needed or value.name not in self.sizes.values()])
        return OnnxModel(name, OPSET, arguments, tuple(outputs), weights, numbers, tuple(reversed(kept)))


@final
class Call:
    """One node, for its rule: appends ONNX nodes, whose results have the dtype of the first input unless told."""

    __slots__ = ("node", "spec", "writer")

    def __init__(self, writer: OnnxWriter, node: Node) -> None:
        self.writer, self.node = writer, node
        spec = node.spec[0] if isinstance(node.spec, tuple) and node.spec else node.spec
        if not isinstance(spec, TensorSpec) or any([isinstance(value.spec, ScalarSpec) for value in node.inputs]):
            raise self.refused("it takes or gives a number of the host")
        self.spec = real_spec(spec)

    def made(self) -> Results:
        """Run the rule of the node."""
        node = self.node
        parts = specs_of((node, *node.inputs))
        for part in parts:
            if isinstance(part, TensorSpec) and part.dtype not in ONNX_DTYPES:
                raise self.refused(f"no elements of {part.dtype}")
        is_complex = any([isinstance(part, TensorSpec) and part.dtype.is_complex for part in parts])
        is_call = "target" in node.attrs
        name = node.attrs["target"].removeprefix("aten.") if is_call else node.op.name
        rule = (COMPLEX_RULES if is_complex else LIBRARY_RULES if is_call else ONNX_RULES).get(name)
        if rule is None:
            raise self.refused(f"no ONNX form{' for complex numbers' if is_complex else ''}")
        inputs = [self.writer.values[value] for value in node.inputs]
        if not is_call:
            return rule(self, *inputs, **node.attrs)
        args = [self.filled(value, inputs) for value in node.attrs["args"]]
        return rule(self, *args, **{key: self.filled(value, inputs) for key, value in node.attrs["kwargs"]})

    def filled(self, template: Attr, inputs: Sequence[Results]) -> object:
        """An argument of a call, with names for tensors."""
        if isinstance(template, tuple):
            return tuple([self.filled(part, inputs) for part in template])
        return inputs[template.index] if isinstance(template, Arg) else template

    def refused(self, reason: str) -> NoOnnxForm:
        return NoOnnxForm(op=str(self.node.attrs.get("target", self.node.op.name)), reason=reason)

    def input(self, place: int = 0) -> TensorSpec:
        templates = (*self.node.attrs.get("args", ()), *[value for _, value in self.node.attrs.get("kwargs", ())])
        given = [self.node.inputs[arg.index] for arg in args_in(templates)] or self.node.inputs
        return real_spec(given[place].tensor)

    def __call__(
        self, op: str, *inputs: str, dtype: torch.dtype | None = None, attrs: Attributes = NO_ATTRS, **more: Attribute
    ) -> str:
        return self.many(op, *inputs, count=1, dtype=dtype, attrs={**attrs, **more})[0]

    def many(
        self, op: str, *inputs: str, count: int, dtype: torch.dtype | None = None, attrs: Attributes = NO_ATTRS,
        **more: Attribute,
    ) -> tuple[str, ...]:  # fmt: skip
        known = self.writer.dtypes
        if op in COMPARISONS:
            dtype = torch.bool
        elif op in INDICES:
            dtype = torch.int64
        elif dtype is None:
            dtype = known[inputs[1 if op in DECIDED_BY_SECOND else 0]]
        return self.writer.add(op, inputs, {**attrs, **more}, dtype, count)

    def cast(self, x: str, dtype: torch.dtype) -> str:
        if self.writer.dtypes[x] is dtype:
            return x
        return self("Cast", x, dtype=dtype, to=ONNX_DTYPES[dtype])

    def number(self, value: object, dtype: torch.dtype | None = None) -> str:
        """A small tensor of the dtype of the first input, unless told."""
        return self.writer.number(value, dtype or self.input().dtype)

    def ints(self, values: Sequence[Int]) -> str:
        """A vector of int64."""
        return self.writer.vector(values)

    def scalar(self, value: Int | Real) -> str:
        """An int64 of rank 0, of a real number a float64."""
        if not isinstance(value, Expr | Real):
            return self.writer.number(value, torch.int64)
        return self("Squeeze", self.writer.size(value), self.ints((0,)))


def loaded(writer: OnnxWriter, node: Node, name: str) -> Results:
    """The value of a node under a name that it has got: if it is complex, its parts."""
    writer.dtypes[name] = real_spec(node.tensor).dtype
    return divided(Call(writer, node), name) if node.tensor.dtype.is_complex else name


def args_in(template: Attr) -> list[Arg]:
    """The tensors among arguments in their order; one may be there twice."""
    if isinstance(template, tuple):
        return [arg for part in template for arg in args_in(part)]
    return [template] if isinstance(template, Arg) else []


def specs_of(nodes: Sequence[Node]) -> list[object]:
    """Of all results."""
    return [part for node in nodes for part in (node.spec if isinstance(node.spec, tuple) else (node.spec,))]


def real_spec(spec: TensorSpec) -> TensorSpec:
    """Of the parts, if it is complex."""
    return replace(spec, dtype=spec.dtype.to_real()) if spec.dtype.is_complex else spec


def to_onnx(
    graph: Graph,
    constants: Mapping[str, torch.Tensor],
    names: Sequence[str],
    weights: Mapping[str, torch.Tensor] | None = None,
    symbols: Sequence[Symbol] = (),
    outputs: Sequence[str] = (),
) -> OnnxModel:
    """The model of `graph`.

    Args:
        names: of its inputs, which are tensors; those with a tensor in `weights` are weights of the model, and where
            the graph writes to them inputs, too, which may be left out: the weight is what they begin with.
        symbols: those that no input has as a size: they become the last inputs, vectors of one number.
        outputs: names of the results.

    Raises NoOnnxForm.
    """
    writer, inputs = OnnxWriter(constants), []
    given, changed = weights or {}, {write.target for write in graph.writes}
    for node, name in zip(graph.inputs, names, strict=True):
        value = writer.input(node, name)
        if name in given:
            writer.weight(name, given[name])
        if name not in given or node in changed:
            inputs.append(value)
    inputs += [writer.size_input(symbol) for symbol in symbols]
    for node in graph.nodes:
        writer.write(node)
    results = []
    for number, output in enumerate(graph.outputs):
        results.append(writer.result(outputs[number] if outputs else f"out{number}", output.value))
    named = dict(zip(graph.inputs, names, strict=True))
    results += [writer.result(f"{named[write.target]}.next", write.value) for write in graph.writes]
    return writer.model(graph.name, inputs, results)


def is_settled(node: Node) -> bool:
    """Whether a call without tensors gives one tensor, the same one each time."""
    is_one = isinstance(node.spec, TensorSpec) and not symbols_of((node,))
    return is_one and torch.Tag.nondeterministic_seeded not in find_overload(node.attrs["target"]).tags


def calls_of_node(node: Node) -> list[OnnxNode]:
    """What one node becomes, for a backend that is asked whether it takes it. Raises NoOnnxForm."""
    writer = OnnxWriter({})
    if any([isinstance(part, TensorSpec) and part.dtype.is_complex for part in specs_of((node, *node.inputs))]):
        raise NoOnnxForm(op=node.op.name, reason="Kiln keeps complex numbers")
    for number, value in enumerate(dict.fromkeys(node.inputs)):
        writer.input(value, f"x{number}")
    if node.op.name == "constant_tensor":
        return []
    if node.op.kind in (Kind.NESTED, Kind.EFFECT):
        raise NoOnnxForm(op=node.op.name, reason="Kiln keeps branches, loops and numbers of the host")
    symbols = symbols_of((node, *node.inputs))
    writer.sizes.update((symbol, symbol.name) for symbol in symbols)
    writer.dtypes.update((symbol.name, torch.int64) for symbol in symbols)
    writer.write(node)
    return writer.nodes
