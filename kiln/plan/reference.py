"""The plan, one step at a time, in Python: the reference for the native executor and the debugger's view.

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

from kiln.plan.errors import CheckFailed, InputMismatch, status_error
from kiln.plan.overloads import find_overload
from kiln.plan.plan import (
    Allocate,
    Branch,
    CallAten,
    Check,
    Constant,
    Copy,
    Free,
    HostRead,
    Kernel,
    Launch,
    Plan,
    PlanOutput,
    RandomSeed,
    Ref,
    Step,
    View,
)
from kiln.plan.random import draw_seed
from kiln.plan.text import step_text
from kiln.plan.verify import slot_specs, verify_plan
from kiln.symbolic import Expr, Int, evaluate
from kiln.tensor.spec import TensorSpec

SCRATCH_ALIGNMENT = 64

DeviceLaunch = Callable[[Kernel, Sequence[torch.Tensor], Sequence[int], Sequence[float], Sequence[int]], None]
"""(kernel, tensors, ints, floats, grid): what runs a kernel of a GPU."""


class KernelFunctions(Protocol):
    """Compiled C++ kernels by symbol: `Libraries`."""

    def function(self, symbol: str) -> Any: ...
    def scratch_bytes(self, symbol: str) -> int: ...


class PythonExecutor:
    """Callable that runs `plan` step by step; `constants` are the plan's constant tensors, in order.

    `launch` runs kernels of a GPU: `launch_kernel` of the native executor, or an interpreter of them.
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

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        return self.run(inputs)

    def start(self, inputs: Sequence[Any]) -> PlanRun:
        return PlanRun(self, inputs)

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        run = self.start(inputs)
        while run.step() is not None:
            pass
        return run.results()


class PlanRun:
    """One call: the values of all slots and symbols, and the number of the next step."""

    def __init__(self, executor: PythonExecutor, inputs: Sequence[Any]) -> None:
        self.executor = executor
        self.plan = executor.plan
        self.inputs = tuple(inputs)
        self.values: list[Any] = [*inputs, *[None] * (self.plan.num_slots - len(inputs))]
        self.symbols: dict[str, int] = {}
        self.place = 0
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
            wanted = torch.Tensor if declared.spec is not None else SCALAR_TYPES[str(declared.scalar)]
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
        if self.place == len(self.plan.steps):
            return None
        step = self.plan.steps[self.place]
        with below_autograd():
            STEP_ACTIONS[type(step)](self, step)
        self.place += 1
        return step

    def results(self) -> tuple[Any, ...]:
        """The outputs, after the last step."""
        for slot in self.plan.mutated:
            if not self.values[slot].is_inference():
                torch.autograd.graph.increment_version(self.values[slot])
        done: list[Any] = []
        for output in self.plan.outputs:
            done.append(self.result(output, done))
        return tuple(done)

    def result(self, output: PlanOutput, done: Sequence[Any]) -> Any:
        if output.alias_input is not None:
            return self.rebuild(self.inputs[output.alias_input], output.view, self.plan.inputs[output.alias_input].spec)
        if output.alias_output is not None:
            slot = self.plan.outputs[output.alias_output].slot
            base_spec = None if slot is None else self.executor.specs.get(slot)
            return self.rebuild(done[output.alias_output], output.view, base_spec)
        if output.slot is not None:
            return self.values[output.slot]
        return self.number(output.value) if isinstance(output.value, Expr) else output.value

    def rebuild(self, base: Any, view: TensorSpec | None, base_spec: TensorSpec | None) -> Any:
        """`base` itself, or the view of it; autograd sees the view when it is on."""
        if view is None:
            return base
        offset = base.storage_offset() + self.number(view.offset - (base_spec.offset if base_spec is not None else 0))
        return base.as_strided(self.numbers(view.sizes), self.numbers(view.strides), offset)

    def empty(self, spec: TensorSpec) -> torch.Tensor:
        """Fresh memory in the layout of `spec`."""
        flat = torch.empty(self.number(spec.storage_elements()), dtype=spec.dtype, device=spec.device)
        return flat.as_strided(self.numbers(spec.sizes), self.numbers(spec.strides), self.number(spec.offset))

    def over_storage(self, of: torch.Tensor, spec: TensorSpec, offset: int) -> torch.Tensor:
        """A tensor over the storage of `of`; torch raises where it does not fit in."""
        made = torch.empty(0, dtype=spec.dtype, device=of.device)
        return made.set_(of.untyped_storage(), offset, self.numbers(spec.sizes), self.numbers(spec.strides))

    def argument(self, value: Any) -> Any:
        """The value of an argument template of an ATen step."""
        if isinstance(value, Ref):
            return self.values[value.slot]
        if isinstance(value, Expr):
            return self.number(value)
        if isinstance(value, tuple | list):
            return [self.argument(item) for item in value]
        return value


def below_autograd() -> Any:
    """Kernels only: no graph is recorded and no autocast applied, whatever the caller's modes are."""
    return torch._C._ExcludeDispatchKeyGuard(_EXCLUDED)


_EXCLUDED = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
for _name in ("AutogradFunctionality", "AutocastCPU", "AutocastCUDA"):
    _EXCLUDED = _EXCLUDED | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _name))

SCALAR_TYPES: Mapping[str, type] = {"int": int, "float": float, "bool": bool}
BINDING_VALUE: Mapping[str, Callable[[Any, int], int]] = {
    "size": lambda tensor, dim: tensor.size(dim),
    "stride": lambda tensor, dim: tensor.stride(dim),
    "offset": lambda tensor, dim: tensor.storage_offset(),
    "scalar": lambda value, dim: int(value),
}


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.device)


def _allocate(run: PlanRun, step: Allocate) -> None:
    is_input = step.reuse is not None and step.reuse < len(run.inputs)
    reused = run.values[step.reuse] if step.reuse is not None and not is_input else None  # the caller holds inputs
    if step.reuse is not None:
        run.values[step.reuse] = None
    needed = run.number(step.spec.storage_elements()) * step.spec.dtype.itemsize
    if reused is not None and reused.untyped_storage().nbytes() >= needed:
        run.values[step.out] = run.over_storage(reused, step.spec, run.number(step.spec.offset))
    else:
        run.values[step.out] = run.empty(step.spec)


def _launch(run: PlanRun, step: Launch) -> None:
    floats = [float(run.argument(value)) for value in step.floats]
    kernel = run.executor.kernels[step.kernel]
    if kernel.language == "triton":
        grid = run.numbers(step.grid)
        if 0 not in grid:
            assert run.executor.launch is not None, "a plan with kernels of a GPU needs something that launches them"
            given = [run.values[slot] for slot in step.tensors]
            run.executor.launch(kernel, given, run.numbers(step.ints), floats, grid)
        return
    tensors = [run.values[slot].data_ptr() for slot in step.tensors]
    status = ctypes.c_int64(0)
    scratch_bytes = run.number(step.scratch_bytes) + run.executor.libraries.scratch_bytes(step.kernel)
    memory = ctypes.create_string_buffer(scratch_bytes + SCRATCH_ALIGNMENT)
    scratch = -(-ctypes.addressof(memory) // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
    run.executor.libraries.function(step.kernel)(
        (ctypes.c_void_p * len(tensors))(*tensors),
        (ctypes.c_int64 * len(step.ints))(*run.numbers(step.ints)),
        (ctypes.c_double * len(floats))(*floats),
        0,
        run.number(step.units),
        scratch,
        ctypes.byref(status),
    )
    if status.value:
        raise status_error(status.value, step.origin or step_text(step))


def _call(run: PlanRun, step: CallAten) -> None:
    args = [run.argument(arg) for arg in step.args]
    kwargs = {name: run.argument(value) for name, value in step.kwargs}
    overload = find_overload(step.target)
    made = overload(*args, **kwargs)
    results = made if isinstance(made, tuple | list) else (made,)
    fresh = all(one.alias_info is None for one in overload._schema.returns)
    storages = [_storage(one) for one in (*args, *kwargs.values(), *results) if isinstance(one, torch.Tensor)]
    for slot, spec, result in zip(step.outs, step.specs, results, strict=False):
        if slot is not None:
            shared = fresh and isinstance(result, torch.Tensor) and storages.count(_storage(result)) > 1
            run.values[slot] = result if spec is None else _as_planned(run, result, spec, shared)


def _storage(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _as_planned(run: PlanRun, result: Any, spec: TensorSpec, shared: bool) -> Any:
    """The result of a call; a copy where it is not as planned, or `shared` with an argument or another result."""
    if run.fits(result, spec) and not shared:
        return result
    planned = run.empty(spec)
    planned.copy_(result)
    return planned


def _view(run: PlanRun, step: View) -> None:
    base, base_spec = run.values[step.base], run.executor.specs.get(step.base)
    planned = 0 if base_spec is None else base_spec.offset * base_spec.dtype.itemsize // step.spec.dtype.itemsize
    shift = run.number(step.spec.offset - planned)
    start = base.storage_offset() * base.element_size() // step.spec.dtype.itemsize
    run.values[step.out] = run.over_storage(base, step.spec, start + shift)


def _copy(run: PlanRun, step: Copy) -> None:
    run.values[step.target].copy_(run.values[step.source])


def _constant(run: PlanRun, step: Constant) -> None:
    run.values[step.out] = run.executor.constants[step.index]


def _host_read(run: PlanRun, step: HostRead) -> None:
    value = SCALAR_TYPES[step.kind](run.values[step.source].item())
    if step.kind != "float":
        run.symbols[step.symbol] = int(value)
    for binding in run.plan.symbols:
        if binding.name == step.symbol and binding.slot >= 0:
            run.values[binding.slot] = value


def _check(run: PlanRun, step: Check) -> None:
    if step.relation is not None and not step.relation.evaluate(run.symbols):
        raise CheckFailed(where=step.message)
    if step.condition is not None and not run.values[step.condition].item():
        raise CheckFailed(where=step.message)


def _random_seed(run: PlanRun, step: RandomSeed) -> None:
    run.values[step.out] = draw_seed(step.device, run.number(step.increment))


def _free(run: PlanRun, step: Free) -> None:
    for slot in step.slots:
        run.values[slot] = None


def _branch(run: PlanRun, step: Branch) -> None:
    plan = step.if_true if run.values[step.condition].item() else step.if_false
    inner = PythonExecutor(plan, run.executor.libraries, run.executor.constants, run.executor.launch)
    for slot, value in zip(step.outs, inner.run([run.values[slot] for slot in step.args]), strict=True):
        run.values[slot] = value


STEP_ACTIONS: Mapping[type, Callable[[PlanRun, Any], None]] = {
    Allocate: _allocate,
    Launch: _launch,
    CallAten: _call,
    View: _view,
    Copy: _copy,
    Constant: _constant,
    HostRead: _host_read,
    Check: _check,
    RandomSeed: _random_seed,
    Free: _free,
    Branch: _branch,
}
