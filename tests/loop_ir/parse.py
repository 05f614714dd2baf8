"""Reading the text of kernels and programs back: `parse_kernel(kernel_text(k))` equals `k`.

    kernel = parse_kernel('''
        kernel double(x: f32[s0] -> out: f32[s0]; s0) units (i0: s0)
            phase (i1: 4 vector):
                out[i0] = mul(load x[i0], f32(2.0))
    ''')

What a text leaves out is known: the dtype of a load is its buffer's, that of an op follows from its operands.
Needs: one statement per line; indentation only separates for the reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Prim
from kiln.loops.body.body import (
    Check,
    Compute,
    Const,
    Index,
    IndexValue,
    Indirect,
    Load,
    LoopBody,
    Random,
    Test,
)
from kiln.loops.body.builder import BodyBuilder
from kiln.loops.body.indexing import Axis
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Local, Phase, Store
from kiln.loops.program.nodes import Buffer, LoopOutput, LoopProgram, Pointwise, ReduceOp, Reduction, Scan, Scatter
from kiln.symbolic import Symbol, parse_int, parse_relation, symbol
from kiln.tensor.dtypes import DTYPES_BY_NAME
from kiln.tensor.spec import TensorSpec, contiguous_strides

_OPEN, _CLOSE = "([{", ")]}"


def split(text: str, at: str = ",") -> list[str]:
    """Parts of `text` between separators that no bracket holds, without spaces around; [] for an empty text."""
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if depth == 0 and text.startswith(at, place):
            parts.append(text[start:place])
            start = place + len(at)
    parts.append(text[start:])
    return [part.strip() for part in parts] if text.strip() else []


def parse_spec(text: str) -> TensorSpec:
    """`f32[4, s0 | 1, 4 at 8 @cuda:0]`."""
    match = re.fullmatch(r"(\w+)\[([^|@]*?)(?:\|([^@]*?))?(?:(?:^| |(?<=\[))at ([^@]*))?(?:@(.*))?\]", text.strip())
    if match is None:
        raise ValueError(f"not a tensor spec: {text!r}")
    name, sizes_text, layout, offset, device = match.groups()
    sizes = tuple(map(parse_int, split(sizes_text)))
    strides = contiguous_strides(sizes) if layout is None else tuple(map(parse_int, split(layout)))
    start = parse_int(offset) if offset else 0
    return TensorSpec(DTYPES_BY_NAME[name], sizes, strides, start, torch.device((device or "cpu").strip()))


def parse_buffer(text: str) -> Buffer:
    name, _, rest = text.partition(":")
    spec, _, base = rest.partition("] in ")
    return Buffer(name.strip(), parse_spec(spec if not base else spec + "]"), base.strip() or None)


def parse_axes(text: str) -> tuple[tuple[Axis, ...], int | None]:
    """`(i0: 4, i1: s0 vector)`: the axes and which is vectorised."""
    axes, vector = [], None
    for place, part in enumerate(split(text.strip()[1:-1])):
        name, _, size = part.partition(":")
        if size.endswith(" vector"):
            vector, size = place, size.removesuffix(" vector")
        axes.append(Axis(symbol(name.strip()), parse_int(size)))
    return tuple(axes), vector


def parse_number(text: str, dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return text == "true"
    return float(text) if dtype.is_floating_point else int(text)


@final
class BodyParser:
    """Reads the statements of one body; `dtypes` are those of the buffers and locals that it may load."""

    def __init__(self, dtypes: Mapping[str, torch.dtype]) -> None:
        self.dtypes = dtypes
        self.builder = BodyBuilder()
        self.names: dict[str, int] = {}

    def statement(self, line: str) -> None:
        """`v3 = ...` or `j0 = indirect(...)`."""
        name, _, text = line.partition(" = ")
        if text.startswith("indirect("):
            operand, size, *check = split(text.removeprefix("indirect(")[:-1])
            self.names[name] = self.builder.append(
                Indirect(symbol(name), self.value(operand), parse_int(size), *map(Check, check))
            )
        else:
            self.names[name] = self.value(re.sub(r" : \w+$", "", text))

    def value(self, text: str) -> int:
        """The place of an expression."""
        text = text.strip()
        if text in self.names:
            return self.names[text]
        if text.startswith("load "):
            return self._load(text)
        head, _, rest = text.partition("(")
        if not rest.endswith(")"):
            raise ValueError(f"not a value: {text!r}")
        return self._call(head, split(rest[:-1]))

    def index(self, text: str) -> Index:
        return tuple(map(parse_int, split(text)))

    def _load(self, text: str) -> int:
        match = re.match(r"load (\w+)\[", text)
        if match is None:
            raise ValueError(f"not a load: {text!r}")
        close = _closing(text, match.end() - 1)
        condition = text[close + 1 :].strip()
        mask = self.value(condition.removeprefix("if ")) if condition else None
        return self.builder.append(Load(match[1], self.index(text[match.end() : close]), self.dtypes[match[1]], mask))

    def _call(self, head: str, args: list[str]) -> int:
        if head in DTYPES_BY_NAME:
            dtype = DTYPES_BY_NAME[head]
            return self.builder.append(Const(parse_number(args[0], dtype), dtype))
        if head == "index":
            return self.builder.append(IndexValue(parse_int(args[0]), DTYPES_BY_NAME[args[1]]))
        if head == "test":
            relation = parse_relation(args[0])
            return self.builder.append(Const(relation, torch.bool) if isinstance(relation, bool) else Test(relation))
        if head.startswith("random_"):
            counter, dtype = parse_int(args[1]), DTYPES_BY_NAME[args[2]]
            return self.builder.append(Random(head.removeprefix("random_"), self.value(args[0]), counter, dtype))
        return self._compute(PRIMS[head], args)

    def _compute(self, op: Prim, args: list[str]) -> int:
        named = DTYPES_BY_NAME[args.pop()] if op.result == "attr" else None
        operands = tuple(self.value(arg) for arg in args)
        dtype = named or (torch.bool if op.result == "bool" else self.builder.dtype_of(operands[-1]))
        return self.builder.append(Compute(op, operands, dtype))

    def body(self, results: Sequence[int]) -> LoopBody:
        return LoopBody(tuple(self.builder.ops), tuple(results))


def _closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in _OPEN) - (text[place] in _CLOSE)
        if depth == 0:
            return place
    raise ValueError(f"a bracket is not closed: {text!r}")


def _lines(text: str) -> Iterator[str]:
    """Statements without comments and empty lines."""
    for line in text.split("\n"):
        line = line.partition("  # ")[0].strip()
        if line:
            yield line


# --------------------------------------------------------------------------------------- kernels

_KERNEL = re.compile(r"kernel (\w+)(\(.*\)) units (\(.*?\))(?: strip (\d+))?(?: grain (.+))?$")
_EFFECT = re.compile(r"(\w+)\[")


def parse_kernel(text: str) -> KernelIR:
    """The kernel that prints as `text`."""
    first, *rest = _lines(text)
    match = _KERNEL.match(first)
    if match is None:
        raise ValueError(f"not the head of a kernel: {first!r}")
    params_text, _, ints = match[2][1:-1].partition(";")
    read, _, written = params_text.partition("->")
    reads, writes = ([parse_buffer(item) for item in split(part)] for part in (read, written))
    params = (*reads, *writes)
    locals_ = tuple(_parse_local(line) for line in rest if line.startswith("local "))
    dtypes = {param.name: param.spec.dtype for param in params} | {item.name: item.dtype for item in locals_}
    return KernelIR(
        name=match[1],
        units=parse_axes(match[3])[0],
        phases=tuple(_parse_phases(rest, dtypes)),
        locals=locals_,
        params=params,
        writes=frozenset(write.name for write in writes),
        ints=tuple(map(parse_int, split(ints))),
        grain=parse_int(match[5]) if match[5] else 1,
        strip=int(match[4] or 0),
    )


def _parse_local(line: str) -> Local:
    match = re.fullmatch(r"local (\w+)(\(.*\))?: (\w+)", line)
    if match is None:
        raise ValueError(f"not a local: {line!r}")
    return Local(match[1], DTYPES_BY_NAME[match[3]], parse_axes(match[2] or "()")[0])


def _parse_phases(lines: Sequence[str], dtypes: Mapping[str, torch.dtype]) -> Iterator[Phase]:
    starts = [place for place, line in enumerate(lines) if line.startswith("phase ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        axes, vector = parse_axes(lines[start].removeprefix("phase ").removesuffix(":"))
        parser = BodyParser(dtypes)
        results: list[int] = []
        effects: list[Store | Accumulate] = []
        for line in lines[start + 1 : end]:
            if _EFFECT.match(line):
                effects.append(_parse_effect(line, axes, parser, results))
            else:
                parser.statement(line)
        yield Phase(axes, parser.body(results), tuple(effects), vector)


def _target(text: str, parser: BodyParser) -> tuple[str, Index, str]:
    """Name, index and rest of `out[i0, i1] ...`."""
    name, _, _ = text.partition("[")
    close = _closing(text, len(name))
    return name.strip(), parser.index(text[len(name) + 1 : close]), text[close + 1 :].strip()


def _parse_effect(line: str, axes: tuple[Axis, ...], parser: BodyParser, results: list[int]) -> Store | Accumulate:
    target, index, rest = _target(line, parser)
    head = re.match(r"= (\w+) over \(([^)]*)\)", rest)
    if head is None:
        combine, _, value = rest.partition("= ")
        result = _result(parser.value(value), results)
        return Store(target, index, result, ReduceOp(combine.strip()) if combine.strip() else None)
    places = {axis.symbol.name: axis for axis in axes}
    over = tuple(places[name] for name in split(head[2]))
    before, value = split(rest[head.end() :], ": ")
    result = _result(parser.value(value), results)
    running, exp_sum = None, re.fullmatch(r"with (\w+) of exp", before)
    if before and exp_sum is None:
        name, at, _ = _target(before.removeprefix("to "), parser)
        running = Store(name, at, result)
    return Accumulate(target, ReduceOp(head[1]), over, index, result, running, exp_sum[1] if exp_sum else None)


def _result(place: int, results: list[int]) -> int:
    if place not in results:
        results.append(place)
    return results.index(place)


# --------------------------------------------------------------------------------------- programs


def parse_program(text: str) -> LoopProgram:
    """A `LoopProgram` of pointwise, reduction, scan and scatter nodes that prints as `text`."""
    first, *lines = _lines(text)
    inputs: list[Buffer | Symbol] = []
    constants: list[tuple[Buffer, str]] = []
    nodes: list[Pointwise | Reduction | Scan | Scatter] = []
    outputs: tuple[LoopOutput, ...] = ()
    writes: list[tuple[str, str]] = []
    dtypes: dict[str, torch.dtype] = {}
    while lines:
        line = lines.pop(0)
        head, _, rest = line.partition(" = ")
        if line.startswith("return "):
            outputs = tuple(LoopOutput(buffer=name) for name in split(line.removeprefix("return ")))
        elif line.startswith("write "):
            writes.append((head.removeprefix("write "), rest))
        elif rest.startswith("input ") and head.endswith(": size"):
            inputs.append(symbol(head.removesuffix(": size")))
        else:
            buffer = parse_buffer(head)
            dtypes[buffer.name] = buffer.spec.dtype
            if rest.startswith("input "):
                inputs.append(buffer)
            elif rest.startswith("constant "):
                constants.append((buffer, rest.removeprefix("constant ")))
            else:
                nodes.append(_parse_node(buffer, rest, lines, dtypes))
    name = first.removeprefix("loops ")
    return LoopProgram(name, tuple(inputs), tuple(constants), tuple(nodes), outputs, tuple(writes))


def _parse_node(
    out: Buffer, text: str, lines: list[str], dtypes: Mapping[str, torch.dtype]
) -> Pointwise | Reduction | Scan | Scatter:
    head, value = [*split(text, ": "), ""][:2] if not text.endswith(":") else (text[:-1], "")
    parser = BodyParser(dtypes)
    while not value:
        line = lines.pop(0)
        value = line.removeprefix("-> ") if line.startswith("-> ") else ""
        if not value:
            parser.statement(line)
    place = parser.value(value)
    return _node(out, head, parser, parser.body([place]))


def _node(out: Buffer, head: str, parser: BodyParser, body: LoopBody) -> Pointwise | Reduction | Scan | Scatter:
    if match := re.fullmatch(r"pointwise (\(.*\))", head):
        return Pointwise(out, parse_axes(match[1])[0], body)
    if match := re.fullmatch(r"reduction (\w+) over (\(.*\)) keeping (\(.*\))", head):
        return Reduction(out, parse_axes(match[3])[0], parse_axes(match[2])[0], ReduceOp(match[1]), body)
    if match := re.fullmatch(r"scan (\w+) along (\w+) of (\(.*\))", head):
        axes = parse_axes(match[3])[0]
        along = [axis.symbol.name for axis in axes].index(match[2])
        return Scan(out, axes, along, ReduceOp(match[1]), body)
    if match := re.fullmatch(r"scatter(?: (\w+))? into (\w+) at \[(.*)\] of (\(.*\))", head):
        combine = ReduceOp(match[1]) if match[1] else None
        return Scatter(out, match[2], parse_axes(match[4])[0], parser.index(match[3]), combine, body)
    raise ValueError(f"not a loop node: {head!r}")
