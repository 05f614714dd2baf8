"""Which sizes of the arguments are symbols: dimensions, and what a program makes of them.

    {"x": {0: kiln.Dim("batch", max=64)}}           x: f32[batch, 16], 0 <= batch <= 64
    {"x": (kiln.Dim.AUTO, None)}                    x: f32[s0, 16], or static if the program fixes it
    {"x": {0: batch}, "y": {0: 2 * batch}}          y: f32[2*batch, 16]
    {"x": {0: 2 * half}, "y": {0: half + 1}}        x: f32[2*half_size - 2, 16], y: f32[half_size, 16]
    {"x": {0: 2 * half}}                            x: f32[half_size, 16], half_size % 2 == 0

`dynamic_shapes.py` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import ClassVar, Literal, final

import torch

from kiln.programs.call.errors import BadDynamicShapes
from kiln.support.records import dataclass
from kiln.symbolic import DimChoice, DimKind, Expr, Int, ShapeEnv, Symbol, evaluate, rel_eq, symbol


@final
@dataclass(frozen=True, slots=True)
class DimHint:
    """A size without a name: a symbol if possible (auto), a symbol (dynamic), or fixed (static)."""

    kind: Literal["auto", "dynamic", "static"]


@final
@dataclass(frozen=True, slots=True)
class DerivedDim:
    """A size that is computed from a named one: `2 * batch + 1` has the step 2 and the offset 1."""

    root: Dim
    step: int
    offset: int

    def size(self, root: Int) -> Int:
        return root * self.step + self.offset

    def __add__(self, other: int) -> DerivedDim:
        return DerivedDim(self.root, self.step, self.offset + other)

    def __sub__(self, other: int) -> DerivedDim:
        return self + -other

    def __mul__(self, other: int) -> DerivedDim:
        return DerivedDim(self.root, self.step * other, self.offset * other)

    __radd__, __rmul__ = __add__, __mul__


@final
@dataclass(frozen=True, slots=True)
class Dim:
    """A named size with its range; the same name is the same size."""

    name: str
    min: int = 0
    max: int | None = None

    AUTO: ClassVar[DimHint] = DimHint("auto")
    DYNAMIC: ClassVar[DimHint] = DimHint("dynamic")
    STATIC: ClassVar[DimHint] = DimHint("static")

    def __add__(self, other: int) -> DerivedDim:
        return DerivedDim(self, 1, other)

    def __sub__(self, other: int) -> DerivedDim:
        return self + -other

    def __mul__(self, other: int) -> DerivedDim:
        return DerivedDim(self, other, 0)

    __radd__, __rmul__ = __add__, __mul__


AnyDim = Dim | DerivedDim | DimHint


@final
class Examples:
    """More calls of the function to be exported: sizes in which they differ from the first call are symbols.

    Each call is a tuple of arguments; its last item may be a dict of keyword arguments given by name with `call`.
    """

    def __init__(self, *calls: tuple[object, ...]) -> None:
        self.calls: list[tuple[tuple[object, ...], dict[str, object]]] = [(args, {}) for args in calls]

    def call(self, *args: object, **kwargs: object) -> Examples:
        """Add a call."""
        self.calls.append((args, kwargs))
        return self


@final
@dataclass
class DimTable:
    """The wishes for the sizes of one call: per tensor (by `id`) and axis, and the named dimensions."""

    wishes: dict[int, dict[int, AnyDim]] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    hints: dict[str, tuple[Dim, int]] = field(default_factory=dict)
    roots: dict[str, tuple[DerivedDim, Symbol]] = field(default_factory=dict)
    """Of a dimension that stands in expressions only: one of them, and the symbol for its size."""

    def add(self, tensor: torch.Tensor, axis: int, dim: AnyDim, place: str) -> None:
        self.wishes.setdefault(id(tensor), {})[axis] = dim
        self.places[id(tensor)] = place
        if not isinstance(dim, Dim):
            return
        size = int(tensor.shape[axis])
        known = self.hints.setdefault(dim.name, (dim, size))
        if known[1] != size:
            raise BadDynamicShapes(place=place, problem=f"`{dim.name}` is {known[1]} elsewhere, and {size} here")
        if size < dim.min or (dim.max is not None and size > dim.max):
            upper = "" if dim.max is None else f" <= {dim.max}"
            raise BadDynamicShapes(place=place, problem=f"the size {size} is outside {dim.min} <= {dim.name}{upper}")

    def solve_roots(self, tensors: Sequence[torch.Tensor]) -> None:
        """Where no size is `half`, the size `2 * half` becomes a symbol, which is even."""
        places = [(tensor, axis) for tensor in tensors for axis in self.wishes.get(id(tensor), {})]
        derived = [(self.wishes[id(tensor)][axis], tensor, axis) for tensor, axis in places]
        found = [(dim, tensor, axis) for dim, tensor, axis in derived if isinstance(dim, DerivedDim)]
        for dim, tensor, axis in sorted(found, key=lambda each: each[0].step):
            root, place, size = dim.root, self.places[id(tensor)], int(tensor.shape[axis])
            if root.name in self.hints or root.name in self.roots:
                continue
            name = f"{root.name}_size"
            if dim.step < 1 or name in self.hints:
                problem = f"`{root.name}` is only used in expressions; give it to a dimension of its own"
                raise BadDynamicShapes(place=place, problem=problem)
            if (size - dim.offset) % dim.step:
                problem = f"the size {size} is not {dim.size(symbol(root.name))} for any number `{root.name}`"
                raise BadDynamicShapes(place=place, problem=problem)
            self.roots[root.name] = dim, symbol(name)
            high = None if root.max is None else root.max * dim.step + dim.offset
            self.add(tensor, axis, Dim(name, max(root.min * dim.step + dim.offset, 0), high), place)

    def env(self, make: Callable[[], ShapeEnv]) -> ShapeEnv:
        """A shape environment with a symbol for each named dimension."""
        env = make()
        for dim, size in self.hints.values():
            env.create_symbol(size, name=dim.name, lo=dim.min, hi=dim.max)
        for derived, made in self.roots.values():
            env.assume(rel_eq((made - derived.offset) % derived.step, 0))
        return env

    def size(self, dim: DerivedDim) -> Int:
        """A derived size as an expression of symbols."""
        if dim.root.name not in self.roots:
            return dim.size(symbol(dim.root.name))
        solved, made = self.roots[dim.root.name]
        rest = made - solved.offset
        if dim.step % solved.step == 0:
            return rest * (dim.step // solved.step) + dim.offset
        return dim.size(rest // solved.step)

    def choose(self, tensor: torch.Tensor) -> tuple[DimChoice, ...]:
        """Static or a symbol, per dimension of a new input of the recording."""
        wishes = self.wishes.get(id(tensor), {})
        return tuple(
            [self._choice(wishes.get(axis, Dim.STATIC), size, tensor) for axis, size in enumerate(tensor.shape)]
        )

    def _choice(self, dim: AnyDim, size: int, tensor: torch.Tensor) -> DimChoice:
        match dim:
            case DimHint(kind="static"):
                return DimChoice(DimKind.STATIC, "static")
            case DimHint():
                return DimChoice(DimKind.SYMBOL, dim.kind)
            case Dim():
                return DimChoice(DimKind.SYMBOL, "named", size=symbol(dim.name))
        value = self.size(dim)
        if not isinstance(value, Expr):
            raise BadDynamicShapes(
                place=self.places[id(tensor)], problem=f"{value} is not an expression of a dimension"
            )
        number = evaluate(value, {symbol(name): hint for name, (_, hint) in self.hints.items()})
        if number != size:
            problem = f"{value} is {number} for these arguments, and the size is {size}"
            raise BadDynamicShapes(place=self.places[id(tensor)], problem=problem)
        return DimChoice(DimKind.SYMBOL, "derived", size=value)

    def require_open(self, env: ShapeEnv) -> None:
        """Raise where the program fixes a named dimension to one size."""
        for name, (_, size) in self.hints.items():
            if isinstance(env.simplify(symbol(name)), int):
                raise BadDynamicShapes(place=name, problem=fixed_problem(env, symbol(name), size))

    def require_dynamic(self, env: ShapeEnv, tensor: torch.Tensor, sizes: Sequence[Int]) -> None:
        """Raise where the program fixes a dimension that was asked to be dynamic."""
        for axis, dim in self.wishes.get(id(tensor), {}).items():
            size = sizes[axis]
            if dim == Dim.DYNAMIC and isinstance(size, Symbol) and isinstance(env.simplify(size), int):
                place = f"{self.places[id(tensor)]}, dimension {axis}"
                raise BadDynamicShapes(place=place, problem=fixed_problem(env, size, int(tensor.shape[axis])))


def fixed_problem(env: ShapeEnv, size: Symbol, number: int) -> str:
    """Which line fixes a size."""
    guard = next((guard for guard in env.guards if size in guard.relation.free_symbols()), None)
    at = f" at {guard.location.text()}" if guard is not None and guard.location else ""
    return f"the program works for the size {number} only (`{guard.relation if guard else ''}`{at})"
