"""The primitive op set: one row per op, as data. What a stage knows of an op is a column.

    Prim("where", 3, "y where x (bool) is true, else z", POINTWISE)       a row: what the op is
    @meta("where")                                                        a cell: how its spec is computed

Every ATen op that Kiln understands becomes nodes of these. How an op is lowered, printed as C++ or Triton,
or interpreted is a column that is filled next to the stage that needs it, and tested for gaps.

Conventions
* POINTWISE inputs have equal dtypes (a decomposition inserts `convert`) and broadcast as in NumPy.
* A Python number in an expression is a `constant` node of rank 0.
* Axes are non-negative and sorted; a reduction removes its axes (keepdim is an `unsqueeze`).
* The graph is functional. VIEW ops have the strides of eager's view.
* What is left to a library (matmul, convolution, attention, sort) is `aten`: attribute `target` is
  the overload ("aten.mm.default"), `args`/`kwargs` are templates in which `Arg(i)` stands for input i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Generic, TypeVar, cast, final

from kiln.support.records import dataclass

Cell = TypeVar("Cell")
Filled = TypeVar("Filled")


class Kind(Enum):
    """What an op does with elements; lowering treats all ops of a kind alike."""

    POINTWISE = "each result element from the input elements at the same index"
    REDUCTION = "combines elements along axes"
    SCAN = "running combination along an axis"
    VIEW = "the same memory under other sizes and strides"
    DATA_MOVEMENT = "result elements are input elements, selected by an index expression or by data"
    SCATTER = "input elements are written to positions selected by data"
    CREATE = "elements from attributes alone"
    RANDOM = "another value in each run: the seed of random numbers"
    DRAW = "random numbers, computed from a seed"
    LIBRARY = "left to an ATen kernel"
    STRUCTURE = "bookkeeping: input, constant tensor, item of a tuple, gradient of an autograd function"
    EFFECT = "has an effect besides its result, kept in order: assert, opaque op, host read"
    NESTED = "holds graphs: branch, loop, checkpoint region, repeated block"


@final
@dataclass(frozen=True, slots=True)
class Prim:
    """A primitive op.

    `result`: the dtype of the result: "same" (as the inputs), "bool", "int64" or "attr" (attribute `dtype`).
    `flops`: arithmetic cost per element for the cost model; 0 for data movement.
    """

    name: str
    inputs: int | None  # None: any number
    meaning: str
    kind: Kind
    attrs: tuple[str, ...] = ()
    result: str = "same"
    flops: int = 1
    commutative: bool = False
    floating: bool = False  # defined on floating-point (and complex) inputs only

    @property
    def pure(self) -> bool:
        """Two nodes with equal op, inputs and attributes have equal values."""
        return self.kind not in (Kind.RANDOM, Kind.EFFECT, Kind.NESTED)


class Cells(Generic[Cell]):
    """Functions or values by name, each filled once: by assignment, or as a decorator."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cells: dict[str, Cell] = {}

    def key(self, name: str) -> str:
        return name

    def __call__(self, *names: str) -> Callable[[Filled], Filled]:
        """Decorator: fill the cells of these names."""

        def fill(cell: Filled) -> Filled:
            for name in names:
                self[name] = cast(Cell, cell)
            return cell

        return fill

    def __setitem__(self, name: str, cell: Cell) -> None:
        key = self.key(name)
        if key in self.cells:
            raise KeyError(f"{self.name}: `{key}` is filled already")
        self.cells[key] = cell

    def __getitem__(self, name: str) -> Cell:
        return self.cells[name]

    def get(self, name: str) -> Cell | None:
        return self.cells.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self.cells

    def __iter__(self) -> Iterator[str]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)


class Column(Cells[Cell]):
    """What one stage knows of each op: a cell per row of a table."""

    def __init__(self, table: PrimTable, name: str, required: frozenset[Kind]) -> None:
        super().__init__(name)
        self.table, self.required = table, required

    def key(self, name: str) -> str:
        if name not in self.table:
            raise KeyError(f"{self.name}: no primitive op `{name}` in the table")
        return name

    def gaps(self) -> list[str]:
        """Ops of the required kinds without a cell; a test asserts that there are none."""
        return [op.name for op in self.table if op.kind in self.required and op.name not in self.cells]


class PrimTable:
    """The rows by name, in order, and the columns over them."""

    def __init__(self, *rows: Prim) -> None:
        self.rows = {row.name: row for row in rows}
        if len(self.rows) != len(rows):
            raise ValueError("a primitive op has two rows")
        self.columns: set[str] = set()

    def column(self, name: str, *, required: frozenset[Kind] = frozenset()) -> Column[Cell]:
        """A new column; `required`: the kinds of op that must have a cell."""
        if name in self.columns:
            raise ValueError(f"there already is a column {name}")
        self.columns.add(name)
        return Column(self, name, required)

    def __getitem__(self, name: str) -> Prim:
        return self.rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def __iter__(self) -> Iterator[Prim]:
        return iter(self.rows.values())
