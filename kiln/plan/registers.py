"""Size expressions of a plan as a program over numbered registers.

    symbols: s0 = %0.size(0)        register 0 = s0, registers 1, 2, 3 = 8, 1, 0 (constants)
    sizes (s0, 8), units 8*s0       mul r4 = r0 r1;  mov r5 = r0   (5 and 6 hold the vector s0, 8)

Constants are in the register file from the start; what depends on inputs is computed on entry to a call, what depends
on a number read from data right after its `HostReadStep`. A vector (sizes, strides, kernel arguments) is a run of
neighbouring registers named by the first, so nothing is copied at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from kiln.plan.program_format import OperationKind
from kiln.symbolic import Expr, FloorDiv, Int, Max, Min, Mod, Symbol

OPERATIONS = {FloorDiv: OperationKind.FLOOR_DIV, Mod: OperationKind.MOD, Min: OperationKind.MIN, Max: OperationKind.MAX}


Segment = list[tuple[int, int, int, int]]
"""Operations (op, target, a, b) that run together: on entry, or after one `HostReadStep`."""


@final
class RegisterFile:
    """Assigns registers and collects the operations that fill them."""

    def __init__(self) -> None:
        self.ints: list[int] = []  # initial values
        self.floats: list[float] = []
        self.segments: list[Segment] = [[]]
        self._scalars: dict[Int, tuple[int, int]] = {}  # value to (register, segment that defines it)
        self._vectors: dict[tuple[Int, ...], int] = {}
        self._float_vectors: dict[tuple[str, ...], int] = {}

    def new_int(self, start: int = 0) -> int:
        self.ints.append(start)
        return len(self.ints) - 1

    def new_float(self, start: float = 0.0) -> int:
        self.floats.append(start)
        return len(self.floats) - 1

    def bind(self, symbol: Symbol, register: int) -> None:
        """`symbol` is in `register` from the newest segment on."""
        self._scalars[symbol] = (register, len(self.segments) - 1)

    def start_segment(self) -> int:
        """Number of a new segment, for all that depends on symbols bound from now on."""
        self.segments.append([])
        return len(self.segments) - 1

    def scalar(self, value: Int) -> int:
        """The register of `value`."""
        return self._register(value)[0]

    def vector(self, values: Sequence[Int]) -> int:
        """The first of neighbouring registers with `values`."""
        key = tuple(values)
        if key in self._vectors:
            return self._vectors[key]
        sources = [None if isinstance(value, int) else self._register(value) for value in key]
        start = len(self.ints)
        for value, source in zip(key, sources, strict=True):
            register = self.new_int(value if isinstance(value, int) else 0)
            if source is not None:
                self.segments[source[1]].append((OperationKind.MOV, register, source[0], 0))
        self._vectors[key] = start
        return start

    def float_vector(self, values: Sequence[tuple[str, float | int]]) -> int:
        """The first of neighbouring float registers. Values: ("constant", number), ("float" or "int", register)."""
        key = tuple(f"{kind}:{value!r}" for kind, value in values)
        if key in self._float_vectors:
            return self._float_vectors[key]
        start = len(self.floats)
        for kind, value in values:
            register = self.new_float(float(value) if kind == "constant" else 0.0)
            if kind != "constant":
                operation = OperationKind.FLOAT_MOV if kind == "float" else OperationKind.INT_TO_FLOAT
                self.segments[-1].append((operation, register, int(value), 0))
        self._float_vectors[key] = start
        return start

    def _register(self, value: Int) -> tuple[int, int]:
        found = self._scalars.get(value)
        if found is None:
            found = self._scalars[value] = (self.new_int(value), 0) if isinstance(value, int) else self._compute(value)
        return found

    def _compute(self, value: Expr) -> tuple[int, int]:
        if isinstance(value, FloorDiv | Mod):
            return self._apply(OPERATIONS[type(value)], [value.dividend, value.divisor])
        if isinstance(value, Min | Max):
            return self._apply(OPERATIONS[type(value)], value.args)
        if isinstance(value, Symbol):
            raise KeyError(value.name)
        products = []
        for monomial, coefficient in value.terms:
            factors: list[Int] = [*monomial] if coefficient == 1 else [*monomial, coefficient]
            products.append(self._apply(OperationKind.MUL, factors) if factors else self._register(1))
        return self._fold(OperationKind.ADD, products)

    def _apply(self, operation: int, operands: Sequence[Int]) -> tuple[int, int]:
        return self._fold(operation, [self._register(operand) for operand in operands])

    def _fold(self, operation: int, operands: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """`operation` over the operands from left to right, each result in a register of its own."""
        result = operands[0]
        for operand in operands[1:]:
            segment = max(result[1], operand[1])
            register = self.new_int()
            self.segments[segment].append((operation, register, result[0], operand[0]))
            result = (register, segment)
        return result
