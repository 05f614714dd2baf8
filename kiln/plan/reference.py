"""Runs a plan step by step in Python: the reference for the native executor, and for debugging.

    run = PythonExecutor(plan, libraries).start([x, weight])
    while (step := run.step()) is not None:     # the step just done
        print(step_text(step), run.values[5])
    run.results()                               # the outputs

Tests compare it with the native executor on the same plans. It is slow and plain on purpose: kernels are called
through ctypes over their whole range, ATen steps by name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from kiln.plan.errors import InputMismatch
from kiln.plan.plan import Kernel, KernelArguments, Plan, PlanOutput, Ref, Step
from kiln.plan.steps.control import NUMBER_TYPES
from kiln.plan.verify import slot_specs, verify_plan
from kiln.symbolic import Expr, Int, evaluate
from kiln.tensor.spec import TensorSpec, eager_strides
from kiln.tensor.strided_view import strided_view

SCRATCH_ALIGNMENT = 64  # as C++ kernels ask (`ALIGN` of loops/codegen/cpp/writer.py)

DeviceLaunch = Callable[[Kernel, Sequence[torch.Tensor], Sequence[int], Sequence[float], Sequence[int]], None]
"""(kernel, tensors, ints, floats, grid): what runs a kernel of a GPU."""


class KernelFunctions(Protocol):
    """Compiled C++ kernels by symbol: `Libraries`."""

    def function(self, symbol: str) -> Any: ...
    def scratch_bytes(self, symbol: str) -> int: ...


class PythonExecutor:
    """Callable that runs `plan` step by step; `constants` are the plan's constant tensors, in order.

    `launch` runs GPU kernels: on the GPU, or by interpreting them.
    """

    def __init__(
        self,
        plan: Plan,
        libraries: KernelFunctions,
        constants: Sequence[torch.Tensor] = (),
        launch: DeviceLaunch | None = None,
    ) -> None:
        verify_plan(plan)
        self.launch = launch
        self.kernels = {kernel.symbol: kernel for kernel in plan.kernels}
        self.plan = plan
        self.libraries = libraries
        self.constants = tuple(constants)
        self.specs = slot_specs(plan)

    def __call__(self, *inputs: object) -> tuple[object, ...]:
        return self.run(inputs)

    def start(self, inputs: Sequence[object]) -> ReferenceRun:
        return ReferenceRun(self, inputs)

    def run(self, inputs: Sequence[object]) -> tuple[object, ...]:
        run = self.start(inputs)
        while run.step() is not None:
            pass
        return run.results()


class ReferenceRun:
    """One call: the values of all slots and symbols, and the number of the next step. Implements `PlanRun`."""

    def __init__(self, executor: PythonExecutor, inputs: Sequence[object]) -> None:
        self.executor = executor
        self.plan, self.specs, self.constants = executor.plan, executor.specs, executor.constants
        self.inputs = tuple(inputs)
        self.values: list[Any] = [*inputs, *[None] * (self.plan.num_slots - len(inputs))]
        self.symbols: dict[str, int] = {}
        self.position = 0
        self.bind_inputs()

    def number(self, value: Int) -> int:
        return evaluate(value, self.symbols) if isinstance(value, Expr) else value

    def numbers(self, values: Sequence[Int]) -> tuple[int, ...]:
        return tuple(self.number(value) for value in values)

    def bind_inputs(self) -> None:
        """Bind the symbols and compare the arguments with the plan."""
        if len(self.inputs) != len(self.plan.inputs):
            problem = f"the plan takes {len(self.plan.inputs)} arguments, not {len(self.inputs)}"
            raise InputMismatch(name="list", plan=self.plan.name, problem=problem)
        for slot, declared in enumerate(self.plan.inputs):
            wanted = torch.Tensor if declared.spec is not None else NUMBER_TYPES[str(declared.scalar)]
            if not isinstance(self.values[slot], wanted):
                problem = f"expected {wanted.__name__}, got {type(self.values[slot]).__name__}"
                raise InputMismatch(name=declared.name, plan=self.plan.name, problem=problem)
        for binding in self.plan.symbols:
            if binding.kind != "unbacked":
                self.symbols[binding.name] = int(BINDING_VALUE[binding.kind](self.values[binding.slot], binding.dim))
        for slot, declared in enumerate(self.plan.inputs):
            if declared.spec is not None and not self.fits(self.values[slot], declared.spec):
                problem = f"expected {self.spec_now(declared.spec)}, got {spec_of(self.values[slot])}"
                raise InputMismatch(name=declared.name, plan=self.plan.name, problem=problem)

    def spec_now(self, spec: TensorSpec) -> str:
        sizes, strides = self.numbers(spec.sizes), self.numbers(spec.strides)
        return str(TensorSpec(spec.dtype, sizes, strides, 0, spec.device))

    def fits(self, tensor: torch.Tensor, spec: TensorSpec) -> bool:
        """Dtype, device, sizes, and the strides that an address depends on."""
        sizes = self.numbers(spec.sizes)
        if tensor.dtype != spec.dtype or tensor.device.type != spec.device.type or tuple(tensor.shape) != sizes:
            return False
        pairs = zip(sizes, tensor.stride(), self.numbers(spec.strides), strict=True)
        return 0 in sizes or all(size == 1 or actual == planned for size, actual, planned in pairs)

    def step(self) -> Step | None:
        """Do the next step and return it; None when all are done."""
        if self.position == len(self.plan.steps):
            return None
        step = self.plan.steps[self.position]
        with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
            step.run(self)
        self.position += 1
        return step

    def results(self) -> tuple[object, ...]:
        """The outputs, after the last step."""
        for slot in self.plan.version_bumps:
            if not self.values[slot].is_inference():
                torch.autograd.graph.increment_version(self.values[slot])
        done: list[object] = []
        for output in self.plan.outputs:
            done.append(self.result(output, done))
        return tuple(done)

    def result(self, output: PlanOutput, done: Sequence[object]) -> object:
        if output.alias_input is not None:
            return self.rebuild(self.inputs[output.alias_input], output.view, self.plan.inputs[output.alias_input].spec)
        if output.alias_output is not None:
            slot = self.plan.outputs[output.alias_output].slot
            base_spec = None if slot is None else self.specs.get(slot)
            return self.rebuild(done[output.alias_output], output.view, base_spec)
        if output.slot is not None:
            return self.values[output.slot]
        return self.number(output.value) if isinstance(output.value, Expr) else output.value

    def rebuild(self, base: Any, view: TensorSpec | None, base_spec: TensorSpec | None) -> object:
        """`base` itself, or the view of it; autograd sees the view when it is on."""
        if view is None:
            return base
        offset = self.shifted(base, view, base_spec)
        strides = self.numbers(eager_strides(view, base_spec))
        return strided_view(base, view.dtype, self.numbers(view.sizes), strides, offset)

    def shifted(self, base: torch.Tensor, view: TensorSpec, base_spec: TensorSpec | None) -> int:
        """The offset of a view over the memory of `base`, which may start elsewhere than planned as `base_spec`."""
        itemsize = view.dtype.itemsize
        planned = 0 if base_spec is None else base_spec.offset * base_spec.dtype.itemsize // itemsize
        return base.storage_offset() * base.element_size() // itemsize + self.number(view.offset - planned)

    def empty(self, spec: TensorSpec) -> torch.Tensor:
        """Fresh memory in the layout of `spec`."""
        flat = torch.empty(self.number(spec.storage_elements()), dtype=spec.dtype, device=spec.device)
        return flat.as_strided(self.numbers(spec.sizes), self.numbers(eager_strides(spec)), self.number(spec.offset))

    def over_storage(
        self, of: torch.Tensor, spec: TensorSpec, offset: int, base: TensorSpec | None = None
    ) -> torch.Tensor:
        """A tensor over the storage of `of`, as a view of `base`; torch raises where it does not fit in."""
        made = torch.empty(0, dtype=spec.dtype, device=of.device)
        strides = self.numbers(eager_strides(spec, base))
        return made.set_(of.untyped_storage(), offset, self.numbers(spec.sizes), strides)

    def as_planned(self, result: torch.Tensor, spec: TensorSpec, shared: bool) -> torch.Tensor:
        """The result of a call; a copy if it is not as planned, or `shared` with an argument or another result."""
        if self.fits(result, spec) and not shared:
            return result
        return self.empty(spec).copy_(result)

    def launch(self, symbol: str, arguments: KernelArguments, units: int, scratch_bytes: int) -> int:
        """Run a kernel over its whole range; its status."""
        kernel, libraries = self.executor.kernels[symbol], self.executor.libraries
        if kernel.language == "triton":
            if 0 not in arguments.grid:
                assert self.executor.launch is not None, "a plan with GPU kernels needs a function that launches them"
                self.executor.launch(kernel, *arguments)
            return 0
        status = ctypes.c_int64(0)
        memory = ctypes.create_string_buffer(scratch_bytes + libraries.scratch_bytes(symbol) + SCRATCH_ALIGNMENT)
        scratch = -(-ctypes.addressof(memory) // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
        libraries.function(symbol)(
            (ctypes.c_void_p * len(arguments.tensors))(*[tensor.data_ptr() for tensor in arguments.tensors]),
            (ctypes.c_int64 * len(arguments.ints))(*arguments.ints),
            (ctypes.c_double * len(arguments.floats))(*arguments.floats),
            0,
            units,
            scratch,
            ctypes.byref(status),
        )
        return status.value

    def nested(self, plan: Plan, args: Sequence[object]) -> tuple[object, ...]:
        executor = self.executor
        return PythonExecutor(plan, executor.libraries, executor.constants, executor.launch).run(args)

    def argument(self, value: object) -> object:
        """An argument of an ATen step with `Ref`s and size expressions replaced by their values."""
        if isinstance(value, Ref):
            return self.values[value.slot]
        if isinstance(value, Expr):
            return self.number(value)
        if isinstance(value, tuple | list):
            return [self.argument(item) for item in value]
        return value


# Kernels only: no graph is recorded and no autocast applied, whatever the modes of the caller are.
_EXCLUDED = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
for _name in ("AutogradFunctionality", "AutocastCPU", "AutocastCUDA"):
    _EXCLUDED = _EXCLUDED | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _name))

BINDING_VALUE: Mapping[str, Callable[[Any, int], int]] = {
    "size": lambda tensor, dim: tensor.size(dim),
    "stride": lambda tensor, dim: tensor.stride(dim),
    "offset": lambda tensor, dim: tensor.storage_offset(),
    "scalar": lambda value, dim: int(value),
}


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.device)
