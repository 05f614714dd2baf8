"""The sizes of a program's arguments: which symbols they bind, and whether the constraints hold.

x: f32[batch, 16], y: f32[2*batch, 16], batch in 1..64, batch % 8 == 0
on x of 16 x 16, y of 32 x 16         {"batch": 16}
on x of 12 x 16                       WrongProgramInput: batch % 8 == 0 does not hold for batch = 12
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import final

import torch

from kiln.programs.call.errors import DamagedProgram, WrongProgramInput
from kiln.programs.call.fields import LARGEST, Fields, Json
from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.symbolic import Int, Relation, ShapeEnv, ShapeGuard, Symbol, evaluate, parse_relation, symbol
from kiln.tensor.spec import ScalarSpec, TensorSpec, contiguous_strides

Values = dict[Symbol, int]
END = 1 << 63
"""No size is so large: a range that ends above has no end."""


@final
@dataclass(frozen=True, slots=True)
class SymbolRange:
    """A symbol and the ends of its range, included."""

    name: str
    low: int
    high: int | None = None
    example: int | None = field(default=None, compare=False)
    """Its number in the call that was exported; a file does not have it."""

    def text(self) -> str:
        return f"{self.low} <= {self.name}" + ("" if self.high is None else f" <= {self.high}")


@final
@dataclass(frozen=True, slots=True)
class ShapeRules:
    """What the sizes of the arguments must satisfy."""

    ranges: tuple[SymbolRange, ...] = ()
    constraints: tuple[ShapeGuard, ...] = ()

    def lines(self) -> list[str]:
        return [*[within.text() for within in self.ranges], *[constraint.text() for constraint in self.constraints]]

    def bind(self, names: Sequence[str], specs: Sequence[TensorSpec | ScalarSpec], values: Sequence[object]) -> Values:
        """The symbols for these arguments. Raises WrongProgramInput with the argument, the size and the constraint."""
        bound: Values = {}
        for name, spec, value in zip(names, specs, values, strict=True):
            check_kind(name, spec, value)
            for size, number in zip(sizes_of(spec), numbers_of(value), strict=True):
                if isinstance(size, Symbol):
                    bound.setdefault(size, number)
        for name, spec, value in zip(names, specs, values, strict=True):
            for axis, (size, number) in enumerate(zip(sizes_of(spec), numbers_of(value), strict=True)):
                expected = size if isinstance(size, int) else evaluate(size, bound)
                if expected != number:
                    shown = f"{size} = {expected}" if not isinstance(size, int) else f"{size}"
                    place = f"dimension {axis} of `{name}`" if isinstance(spec, TensorSpec) else f"`{name}`"
                    raise WrongProgramInput(problem=f"{place} is {number}", reason=f"it must be {shown}")
        self.check(bound)
        return bound

    def check(self, bound: Values) -> None:
        for within in self.ranges:
            number = bound.get(symbol(within.name))
            if number is not None and not (within.low <= number and (within.high is None or number <= within.high)):
                raise WrongProgramInput(problem=f"{within.name} is {number}", reason=f"its range is {within.text()}")
        for constraint in self.constraints:
            if not constraint.relation.evaluate(bound):
                used = ", ".join(
                    f"{name} = {bound[name]}" for name in sorted(constraint.relation.free_symbols(), key=str)
                )
                raise WrongProgramInput(problem=f"{used}", reason=f"the program needs {constraint.text()}")

    def to_json(self) -> dict[str, Json]:
        """The fields that `rules_from_fields` takes."""
        return {
            "ranges": [{"name": each.name, "low": each.low, "high": each.high} for each in self.ranges],
            "constraints": [_constraint_to_json(guard) for guard in self.constraints],
        }


def rules_from_fields(fields: Fields) -> ShapeRules:
    """Inverse of `ShapeRules.to_json`. Raises DamagedProgram."""
    return ShapeRules(
        tuple([_range(item) for item in fields.items("ranges")]),
        tuple([_constraint(item) for item in fields.items("constraints")]),
    )


def _range(data: Json) -> SymbolRange:
    fields = Fields(data, "range")
    made = SymbolRange(fields.text("name"), fields.integer("low", LARGEST), fields.optional_integer("high", END))
    fields.finish()
    return made


def _constraint_to_json(guard: ShapeGuard) -> Json:
    at = guard.location
    place: Json = None if at is None else {"file": at.file, "line": at.line, "function": at.function}
    return {"relation": str(guard.relation), "at": place}


def _constraint(data: Json) -> ShapeGuard:
    fields = Fields(data, "constraint")
    relation, at = parse_relation(fields.text("relation")), fields.take("at")
    fields.finish()
    if not isinstance(relation, Relation):
        raise DamagedProgram(problem=f"the constraint `{relation}` says nothing")
    if at is None:
        return ShapeGuard(relation)
    place = Fields(at, "place of a constraint")
    location = Location(place.text("file"), place.integer("line", 1 << 31), place.text("function"))
    place.finish()
    return ShapeGuard(relation, location)


def rules_of(env: ShapeEnv, used: frozenset[Symbol]) -> ShapeRules:
    """Ranges of the symbols in use, and the guards that say more than a range."""
    ranges = []
    for made in env.symbols():
        within = env.range_of(made)
        if made in used and env.has_hint(made):
            high = within.hi if within.hi is not None and within.hi < END else None
            ranges.append(SymbolRange(made.name, within.lo or 0, high, env.hint(made)))
    stated = [guard for guard in env.guards if not is_bound(guard)]
    return ShapeRules(tuple(ranges), tuple(stated))


def is_bound(guard: ShapeGuard) -> bool:
    """Whether it only bounds one symbol."""
    relation = guard.relation
    symbols = list(relation.free_symbols())
    if relation.kind != "le" or len(symbols) != 1:
        return False
    rest = [relation.difference - symbols[0], relation.difference + symbols[0]]
    return any(isinstance(part, int) for part in rest)


def check_kind(name: str, spec: TensorSpec | ScalarSpec, value: object) -> None:
    """Raise unless `value` is a tensor (or an integer) of the kind of `spec`; sizes are checked elsewhere."""
    if isinstance(spec, ScalarSpec):
        if type(value) is not spec.kind:
            raise WrongProgramInput(problem=f"`{name}` is a {type(value).__name__}", reason=f"it must be an {spec}")
        return
    if not isinstance(value, torch.Tensor):
        raise WrongProgramInput(problem=f"`{name}` is a {type(value).__name__}", reason=f"it must be a tensor {spec}")
    found = [value.dtype, value.device, value.dim()]
    if found != [spec.dtype, spec.device, spec.rank] or value.layout is not torch.strided:
        raise WrongProgramInput(
            problem=f"`{name}` is a tensor of {value.dtype} on {value.device} with {value.dim()} dimensions",
            reason=f"it must be {spec}",
        )


def sizes_of(spec: TensorSpec | ScalarSpec) -> Sequence[Int]:
    if isinstance(spec, TensorSpec):
        return spec.sizes
    return () if spec.value is None else (spec.value,)


def numbers_of(value: object) -> Sequence[int]:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)  # type: ignore[return-value]


def in_layout(value: torch.Tensor, spec: TensorSpec, bound: Values) -> torch.Tensor:
    """`value`, or its copy in the strides of `spec`."""
    sizes = tuple(value.shape)
    strides = tuple([number if isinstance(number, int) else evaluate(number, bound) for number in spec.strides])
    pairs = zip(strides, value.stride(), sizes, strict=True)
    if not value.numel() or all(wanted == found or size == 1 for wanted, found, size in pairs):
        return value
    if strides == contiguous_strides(sizes):
        return value.contiguous()
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device).copy_(value)
