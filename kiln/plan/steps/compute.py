"""Steps that compute tensors: kernels, ATen operators, collectives, random seeds.

launch k0(%0, %1, %2; s0, 0.5) over s0 by 8
launch k1(%0, %4; 3), (%1, %5; 7) over 1, 2
%3 = aten.mm.default(%2, %1) -> f32[s0, 768]
%4 = seed cpu + 4096
%5 = _c10d_functional.all_reduce.default(%3, 'sum', '0') -> f32[s0, 768]
wait %5 holding %3
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, final

import torch

from kiln.plan.errors import status_error
from kiln.plan.overloads import WAIT_TENSOR, find_overload
from kiln.plan.plan import KernelArguments, PlanEncoder, PlanPrinter, PlanRun, Ref, Slot, Step
from kiln.plan.program_format import ATEN, LAUNCH, RANDOM_SEED, WAIT, Record
from kiln.plan.python_view import layout_python, tuple_python
from kiln.plan.random import draw_seed
from kiln.plan.text import argument_text, slots_text, step_text
from kiln.support.records import dataclass
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class LaunchStep(Step):
    """Run a kernel over `units` indices; `ints` and `floats` are evaluated at run time.

    `rows`: the units of each row of a table, () for a launch of one row. `tensors` and `ints` hold the arguments of the
    first row, then those of the second; rows are independent. Only C++ kernels have rows: those of a GPU have a
    parameter for each tensor of each row.
    """

    kernel: str
    tensors: tuple[Slot, ...]
    ints: tuple[Int, ...]
    floats: tuple[float | Ref | Int, ...]
    units: Int
    grain: Int = 1
    scratch_bytes: Int = 0
    grid: tuple[Int, ...] = ()  # Triton only
    rows: tuple[Int, ...] = ()
    origin: str = ""

    uses, refers = ("tensors",), ("floats",)

    def each_row(self) -> list[tuple[tuple[Slot, ...], tuple[Int, ...], Int]]:
        """Tensors, ints and units of each row."""
        if not self.rows:
            return [(self.tensors, self.ints, self.units)]
        tensors, ints = len(self.tensors) // len(self.rows), len(self.ints) // len(self.rows)
        return [
            (self.tensors[row * tensors : (row + 1) * tensors], self.ints[row * ints : (row + 1) * ints], units)
            for row, units in enumerate(self.rows)
        ]

    def text(self) -> str:
        rows = []
        for tensors, ints, _ in self.each_row():
            numbers = ", ".join([*map(str, ints), *map(argument_text, self.floats)])
            rows.append(f"({slots_text(tensors)}{'; ' + numbers if numbers else ''})")
        text = f"launch {self.kernel}{', '.join(rows)} over {', '.join(map(str, self.rows or (self.units,)))}"
        if self.grain != 1:
            text += f" by {self.grain}"
        if self.scratch_bytes != 0:
            text += f" scratch {self.scratch_bytes}"
        return text + (f" grid ({', '.join(map(str, self.grid))})" if self.grid else "")

    def python(self, printer: PlanPrinter) -> str:
        floats = tuple_python(map(printer.argument, self.floats))
        over = f"grid={tuple_python(self.grid)}" if self.grid else str(self.units)
        if not self.rows:
            return (
                f"launch({self.kernel!r}, {printer.slots(self.tensors)}, {tuple_python(self.ints)}, {floats}, {over})"
            )
        rows = [
            f"({printer.slots(tensors)}, {tuple_python(ints)}, {units})" for tensors, ints, units in self.each_row()
        ]
        call = f"launch({self.kernel!r}, tensors, ints, {floats}, units)"
        return f"for tensors, ints, units in ({', '.join(rows)}): {call}"

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(
            LAUNCH, kernel=self.kernel, tensors=self.tensors, ints=self.ints, floats=self.floats, units=self.units,
            grain=self.grain, scratch=encoder.kernel(self.kernel).scratch_bytes + self.scratch_bytes, grid=self.grid,
            grid_rank=len(self.grid), num_ints=len(self.ints), rows=tuple(accumulate(self.rows)),
            num_rows=len(self.rows), device=encoder.launch_device(self.tensors),
        )  # fmt: skip

    def run(self, run: PlanRun) -> None:
        floats = [float(run.argument(value)) for value in self.floats]
        for slots, ints, units in self.each_row():
            tensors = [run.values[slot] for slot in slots]
            arguments = KernelArguments(tensors, run.numbers(ints), floats, run.numbers(self.grid))
            status = run.launch(self.kernel, arguments, run.number(units), run.number(self.scratch_bytes))
            if status:
                raise status_error(status, self.origin or step_text(self))


@final
@dataclass(frozen=True, slots=True)
class AtenStep(Step):
    """Call the overload `target` ("aten.mm.default").

    Arguments are `Ref`, Int, float, bool, str, dtype, device, layout, memory format, None and tuples of these. Each
    result is compared with its spec (None: no tensor there) and copied into the planned layout on a difference.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outs: tuple[Slot | None, ...]
    specs: tuple[TensorSpec | None, ...]
    origin: str = ""

    refers, defines = ("args", "kwargs"), ("outs",)

    def text(self) -> str:
        args = [argument_text(arg) for arg in self.args]
        args += [f"{name}={argument_text(value)}" for name, value in self.kwargs]
        specs = ", ".join("none" if spec is None else str(spec) for spec in self.specs)
        outs = f"{slots_text(self.outs)} = " if self.writes() else ""
        return f"{outs}{self.target}({', '.join(args)})" + (f" -> {specs}" if specs else "")

    def python(self, printer: PlanPrinter) -> str:
        args = [printer.argument(arg) for arg in self.args]
        args += [f"{name}={printer.argument(value)}" for name, value in self.kwargs]
        call = f"torch.ops.{self.target}({', '.join(args)})"
        if len(self.outs) == 1 and self.outs[0] is not None and self.specs[0] is not None:
            return f"{printer.names[self.outs[0]]} = as_planned({call}, {layout_python(self.specs[0])})"
        outs = ["_" if out is None else printer.names[out] for out in self.outs]
        return f"{', '.join(outs)} = {call}" if outs else call

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(
            ATEN, target=self.target, args=self.args, kwargs=self.kwargs, outs=self.outs, layouts=self.specs
        )  # fmt: skip

    def run(self, run: PlanRun) -> None:
        args = [run.argument(arg) for arg in self.args]
        kwargs = {name: run.argument(value) for name, value in self.kwargs}
        overload = find_overload(self.target)
        made = overload(*args, **kwargs)
        results = made if isinstance(made, tuple | list) else (made,)
        fresh = all(result.alias_info is None for result in overload._schema.returns)
        storages = [_storage(value) for value in (*args, *kwargs.values(), *results) if isinstance(value, torch.Tensor)]
        for slot, spec, result in zip(self.outs, self.specs, results, strict=False):
            if slot is not None:
                shared = fresh and isinstance(result, torch.Tensor) and storages.count(_storage(result)) > 1
                run.values[slot] = result if spec is None else run.as_planned(result, spec, shared)


@final
@dataclass(frozen=True, slots=True)
class WaitStep(Step):
    """Wait until the collective that fills `source` has ended; until then `held`, which it reads, keep their memory."""

    source: Slot
    held: tuple[Slot, ...] = ()

    uses = ("source", "held")

    def text(self) -> str:
        return f"wait %{self.source}" + (f" holding {slots_text(self.held)}" if self.held else "")

    def python(self, printer: PlanPrinter) -> str:
        return f"torch.ops.{WAIT_TENSOR}({printer.names[self.source]})"

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(WAIT, source=self.source)

    def run(self, run: PlanRun) -> None:
        find_overload(WAIT_TENSOR)(run.values[self.source])


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@final
@dataclass(frozen=True, slots=True)
class RandomSeedStep(Step):
    """`out` is an int64[2] tensor (seed, offset) on `device`, drawn from torch's default generator of it."""

    out: Slot
    device: torch.device
    increment: Int

    defines = ("out",)

    def text(self) -> str:
        return f"%{self.out} = seed {self.device} + {self.increment}"

    def python(self, printer: PlanPrinter) -> str:
        return f"{printer.names[self.out]} = seed({str(self.device)!r}, {self.increment})"

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(RANDOM_SEED, out=self.out, device=self.device, increment=self.increment)

    def run(self, run: PlanRun) -> None:
        run.values[self.out] = draw_seed(self.device, run.number(self.increment))
