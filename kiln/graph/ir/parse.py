"""Parses the text of a graph; see `text.py` for the grammar.

    parse_graph('graph(%0: f32[4] "x"):\\n    %1: f32[4] = neg(%0)\\n    return %1')

Arguments are Python expressions once names of values, graphs and devices are replaced by identifiers, so Python's own
parser reads them. Raises `GraphSyntaxError` with the number of the line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Literal

import torch

from kiln.graph.ir.errors import GraphSyntaxError
from kiln.graph.ir.graph import Alias, Graph, Output, Write
from kiln.graph.ir.node import Arg, Attr, Node, Origin
from kiln.graph.prims.rows import PRIMS
from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.symbolic import Int, parse_int
from kiln.symbolic.parse import read_int
from kiln.tensor.dtypes import DTYPES_BY_NAME
from kiln.tensor.spec import CPU, ScalarSpec, Spec, TensorSpec, contiguous_strides

HEAD = re.compile(r"(?:@\d+ = )?graph ?(?P<name>\w*)\((?P<inputs>.*)\):$")
INPUT = re.compile(r'%(?P<value>\d+): (?P<spec>.+?) (?P<name>"(?:[^"\\]|\\.)*")(?:, |$)')
NODE = re.compile(r"%(?P<value>\d+): (?P<spec>.+?) = (?P<call>(?:[a-z]+ )?[\w.]+\(.*)$")
WRITE = re.compile(r"write %(\d+) <- %(\d+)(?: versions=(\d+))?$")
OUTPUT = re.compile(
    r"%(?P<value>\d+)(?: is (?P<same>input|output) (?P<same_index>\d+)"
    r"| views (?P<of>input|output) (?P<index>\d+) as (?P<view>\w+\[[^\]]*\]))?(?P<grad> requires_grad)?"
    r"(?: versions=(?P<versions>\d+))?(?:, |$)"
)
ORIGIN = re.compile(
    r"(?P<call>.+?) \[(?P<number>\d+)\](?: at (?P<file>.+?):(?P<line>\d+)(?:, in (?P<function>.+?))?)?"
    r"(?P<backward> \(backward\))?$"
)
SPEC = re.compile(r"(?P<dtype>\w+)\[(?P<inside>[^\]]*)\]$")
TOKEN = re.compile(  # `%4` is a value, but in `s0%4` and `(s0 + 1)%4` a remainder
    r'"(?:[^"\\]|\\.)*"|(?<![\w)])%(?P<value>\d+)|@(?P<graph>\d+)|(?P<device>cpu|(?:cuda|meta|mps|xpu)(?::\d+)?)\b'
)


@dataclass
class _Line:
    number: int
    depth: int
    text: str
    comment: str = ""


@dataclass
class _LineReader:
    """The lines that remain."""

    lines: list[_Line]
    at: int = 0
    current: _Line = field(default_factory=lambda: _Line(0, 0, ""))

    def peek(self) -> _Line | None:
        return self.lines[self.at] if self.at < len(self.lines) else None

    def next(self) -> _Line:
        if self.at >= len(self.lines):
            raise self.error("the text ends inside a graph")
        self.current = self.lines[self.at]
        self.at += 1
        return self.current

    def error(self, problem: str) -> GraphSyntaxError:
        return GraphSyntaxError(line=self.current.number, problem=f"{problem}: {self.current.text!r}")


def parse_graph(text: str) -> Graph:
    """The graph of `text`."""
    reader = _LineReader(list(_split_lines(text)))
    graph = _read_graph(reader)
    if reader.peek() is not None:
        reader.next()
        raise reader.error("text after the graph")
    return graph


def _split_lines(text: str) -> Iterator[_Line]:
    for number, raw in enumerate(text.split("\n"), 1):
        body, comment = _split_comment(raw)
        stripped = body.strip()
        if stripped:
            yield _Line(number, len(body) - len(body.lstrip()), stripped, comment.strip())


def _split_comment(line: str) -> tuple[str, str]:
    """Splits at the first `#` outside of a string."""
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|#', line):
        if match[0] == "#":
            return line[: match.start()], line[match.end() :]
    return line, ""


def _read_graph(reader: _LineReader) -> Graph:
    head = HEAD.match(reader.next().text)
    if head is None:
        raise reader.error("expected `graph(...):`")
    values: dict[str, Node] = {}
    inputs: list[Node] = []
    for match in _matches(reader, INPUT, head["inputs"]):
        attrs = {"index": len(inputs), "name": ast.literal_eval(match["name"])}
        node = Node(PRIMS["input"], (), attrs, _read_spec(reader, match["spec"]))
        inputs.append(node)
        values[match["value"]] = node
    nodes: list[Node] = []
    writes: list[Write] = []
    while not reader.next().text.startswith("return"):
        if write := WRITE.match(reader.current.text):
            target, value = (_value(reader, values, name) for name in (write[1], write[2]))
            writes.append(Write(target, value, int(write[3] or 1)))
        else:
            nodes.append(_read_node(reader, values))
    outputs = _read_outputs(reader, values)
    return Graph(tuple(inputs), nodes, outputs, tuple(writes), head["name"] or "graph")


def _matches(reader: _LineReader, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    start = 0
    while start < len(text):
        match = pattern.match(text, start)
        if match is None:
            raise reader.error(f"cannot read {text[start:]!r}")
        yield match
        start = match.end()


def _value(reader: _LineReader, values: dict[str, Node], number: str) -> Node:
    if number not in values:
        raise reader.error(f"there is no value %{number}")
    return values[number]


def _read_outputs(reader: _LineReader, values: dict[str, Node]) -> tuple[Output, ...]:
    outputs = []
    for match in _matches(reader, OUTPUT, reader.current.text.removeprefix("return").strip()):
        alias = None
        if match["same"]:
            alias = Alias(_alias_of(match["same"]), int(match["same_index"]))
        elif match["of"]:
            view = _read_spec(reader, match["view"])
            assert isinstance(view, TensorSpec)
            alias = Alias(_alias_of(match["of"]), int(match["index"]), view)
        value, versions = _value(reader, values, match["value"]), int(match["versions"] or 0)
        outputs.append(Output(value, alias, bool(match["grad"]), versions))
    return tuple(outputs)


def _alias_of(text: str) -> Literal["input", "output"]:
    return "input" if text == "input" else "output"


def _read_node(reader: _LineReader, values: dict[str, Node]) -> Node:
    line = reader.current
    match = NODE.match(line.text)
    if match is None:
        raise reader.error("expected `%n: spec = op(...)`")
    spec = _read_spec(reader, match["spec"])
    nested = _read_nested(reader, line)
    node = _CallReader(reader, values, nested).read(match["call"], spec, _read_origin(line.comment))
    values[match["value"]] = node
    return node


def _read_nested(reader: _LineReader, line: _Line) -> list[Graph]:
    graphs = []
    while (following := reader.peek()) and following.depth > line.depth and following.text.startswith("@"):
        graphs.append(_read_graph(reader))
    reader.current = line
    return graphs


def _read_origin(comment: str) -> Origin | None:
    match = ORIGIN.match(comment)
    if match is None:
        return None
    location = Location(match["file"], int(match["line"]), match["function"] or "") if match["file"] else None
    return Origin(match["call"], int(match["number"]), location, bool(match["backward"]))


# Specs.


def _read_spec(reader: _LineReader, text: str) -> Spec:
    text = text.strip()
    if text.startswith("("):
        return tuple(
            None if part == "none" else _read_single(reader, part) for part in split_outside(text[1:-1]) if part
        )
    return _read_single(reader, text)


SCALARS: dict[str, type[int] | type[float] | type[bool]] = {"int": int, "float": float, "bool": bool}


def _read_single(reader: _LineReader, text: str) -> TensorSpec | ScalarSpec:
    kind, _, rest = text.partition("(")
    if kind in SCALARS:
        return ScalarSpec(SCALARS[kind], parse_int(rest[:-1]) if rest else None)
    match = SPEC.match(text)
    if match is None or match["dtype"] not in DTYPES_BY_NAME:
        raise reader.error(f"not a spec: {text!r}")
    inside, _, device = match["inside"].partition("@")
    inside, _, offset = f" {inside}".partition(" at ")
    sizes_text, _, strides_text = inside.partition("|")
    sizes = tuple(map(parse_int, split_outside(sizes_text)))
    strides = tuple(map(parse_int, split_outside(strides_text))) if strides_text else contiguous_strides(sizes)
    return TensorSpec(
        DTYPES_BY_NAME[match["dtype"]],
        sizes,
        strides,
        parse_int(offset) if offset else 0,
        torch.device(device.strip()) if device else CPU,
    )


def split_outside(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


# Calls.


@dataclass
class _CallReader:
    """Reads `op(%0, axes=(1,))` and its attribute values."""

    reader: _LineReader
    values: dict[str, Node]
    nested: list[Graph]
    inputs: list[Node] = field(default_factory=list)

    def read(self, text: str, spec: Spec, origin: Origin | None) -> Node:
        prefix, target, call = self.split(text)
        if prefix or "." in target:
            args = tuple([self.template(arg) for arg in call.args])
            kwargs = tuple([(str(keyword.arg), self.template(keyword.value)) for keyword in call.keywords])
            attrs: dict[str, Attr] = {"target": target, "args": args, "kwargs": kwargs}
            return Node(PRIMS[prefix or "aten"], tuple(self.inputs), attrs, spec, origin)
        if target not in PRIMS:
            raise self.reader.error(f"there is no op {target!r}")
        inputs = [self.node(arg) for arg in call.args]
        attrs = {str(keyword.arg): self.template(keyword.value) for keyword in call.keywords}
        return Node(PRIMS[target], tuple(inputs), attrs, spec, origin)

    def split(self, text: str) -> tuple[str, str, ast.Call]:
        """`opaque lib.op.default(...)` as its op, its target and the call."""
        head, _, rest = text.partition("(")
        prefix, _, target = head.rpartition(" ")
        try:
            call = ast.parse("f(" + TOKEN.sub(_identifier, rest), mode="eval").body
        except SyntaxError as error:
            raise self.reader.error("cannot read the arguments") from error
        assert isinstance(call, ast.Call)
        return prefix, target, call

    def node(self, expression: ast.expr) -> Node:
        if isinstance(expression, ast.Name) and expression.id.startswith("_value_"):
            return _value(self.reader, self.values, expression.id.removeprefix("_value_"))
        raise self.reader.error("expected a value `%n`")

    def template(self, expression: ast.expr) -> Attr:
        match expression:
            case ast.Tuple(elts=parts):
                return tuple([self.template(part) for part in parts])
            case ast.Constant(value=str() | int() | float() | None as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.Name(id=name):
                return self.named(name, expression)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
                return -float("inf")
            case ast.Attribute(value=ast.Name(id="torch"), attr=name) if f"torch.{name}" in TORCH_CONSTANTS:
                return TORCH_CONSTANTS[f"torch.{name}"]
            case ast.Call(func=ast.Name(id="complex"), args=[real, imaginary]):
                return complex(ast.literal_eval(real), ast.literal_eval(imaginary))
        return self.integer(expression)

    def named(self, name: str, expression: ast.expr) -> Attr:
        kind, _, rest = name.removeprefix("_").partition("_")
        if name in NAMED:
            return NAMED[name]
        if name.startswith("_") and kind in PREFIXED:
            return PREFIXED[kind](self, rest)
        return self.integer(expression)

    def integer(self, expression: ast.expr) -> Int:
        try:
            return read_int(expression)
        except ValueError as error:
            raise self.reader.error(str(error)) from error

    def argument(self, number: str) -> Arg:
        node = _value(self.reader, self.values, number)
        self.inputs.append(node)
        return Arg(len(self.inputs) - 1)

    def graph(self, number: str) -> Graph:
        if int(number) >= len(self.nested):
            raise self.reader.error(f"there is no nested graph @{number}")
        return self.nested[int(number)]


def _device(_: _CallReader, name: str) -> torch.device:
    return torch.device(name.replace("_", ":"))


PREFIXED: dict[str, Callable[[_CallReader, str], Attr]] = {
    "value": _CallReader.argument,
    "graph": _CallReader.graph,
    "device": _device,
}
TORCH_CONSTANTS: dict[str, Attr] = {
    str(value): value for value in vars(torch).values() if isinstance(value, torch.layout | torch.memory_format)
}
NAMED: dict[str, Attr] = {**DTYPES_BY_NAME, "inf": float("inf"), "nan": float("nan")}


def _identifier(match: re.Match[str]) -> str:
    """A Python identifier for a token that is not one."""
    for kind in ("value", "graph", "device"):
        if match[kind]:
            return f"_{kind}_" + match[kind].replace(":", "_")
    return match[0]
