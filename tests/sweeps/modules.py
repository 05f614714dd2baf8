"""torch's databases of modules and optimizers, compiled and in eager.

    python -m tests.sweeps modules --device cuda --samples 1
    python -m tests.sweeps optimizers --only Adam,SGD

A case is a module in one dtype and in training or evaluation, with its gradients; or an optimizer in one dtype and
implementation ("foreach", "fused"), as `step` and as a whole training step. Errors are a case of their own.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from kiln_bench.databases import database
from tests.sweeps.compare import leaves, scale_of
from tests.sweeps.operators import in_a_child
from tests.sweeps.runner import Finding, Note
from tests.sweeps.samples import SEED, copy_of, doubled, dtype_name, seed, spread, tangent_of
from tests.sweeps.trial import Compile, Trial, error_outcome, leave, outcome, tensors_in

STEPS = 3
"""How often an optimizer is called: its first step makes its state."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@dataclass(frozen=True)
class DatabaseCase:
    """An entry of a database in one form; without a dtype, its errors."""

    info: Any
    dtype: torch.dtype | None
    form: str = ""


class ModuleSweep:
    """Each module in each dtype, training and evaluating."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.samples = str(arguments.device), int(arguments.samples)
        self.only = frozenset(filter(None, arguments.only.split(",")))

    @functools.cached_property
    def cases(self) -> list[DatabaseCase]:
        found = []
        for info in database("common_modules").module_db:
            if not self.only or self.only & {info.name, info.name.rpartition(".")[2]}:
                dtypes = sorted(info.supported_dtypes(self.device.partition(":")[0]), key=str)
                found += [DatabaseCase(info, dtype, form) for dtype in dtypes for form in ("train", "eval")]
                found += [DatabaseCase(info, None)] * (info.module_error_inputs_func is not None)
        return found

    def total(self) -> int:
        return len(self.cases) if self.device == "cpu" else int(in_a_child(lambda: len(self.cases)))

    def run(self, number: int, note: Note) -> list[Finding]:
        case = self.cases[number]
        note("eager", case.info.name)
        if case.dtype is None:
            return [found for trial in self.errors(case.info) for found in error_outcome(trial, Exception, note)]
        return [found for trial in self.trials(case, case.dtype) for found in outcome(trial, note)]

    def trials(self, case: DatabaseCase, dtype: torch.dtype) -> Iterator[Trial]:
        seed()
        training = case.form == "train"
        try:
            made = case.info.module_inputs_func(
                case.info, device=self.device, dtype=dtype, requires_grad=True, training=training
            )
        except Exception:  # an input that this machine cannot make
            return
        for number, entry in spread([entry for entry in made if entry.forward_input is not None], self.samples):
            run = functools.partial(run_module, case.info.module_cls, entry, self.device, dtype, training)
            yield Trial(
                case.info.name, f"modules {dtype_name(dtype)} {case.form}",
                f"{number}: {entry.constructor_input.args} {entry.constructor_input.kwargs} {entry.desc}", self.device,
                functools.partial(run, copy_of),
                lambda run=run: None if dtype is torch.float64 else run(doubled, leave, SEED),
                scale=scale_of(tensors_in(leaves((entry.forward_input.args, entry.forward_input.kwargs)))), repeat=1,
            )  # fmt: skip

    def errors(self, info: Any) -> Iterator[Trial]:
        made = info.module_error_inputs_func(
            info, device=self.device, dtype=torch.float32, requires_grad=False, training=False
        )
        for number, entry in enumerate(made):
            run = functools.partial(
                run_module, info.module_cls, entry.module_error_input, self.device, torch.float32, False, copy_of
            )
            yield Trial(info.name, "errors", f"{number}: {entry.error_regex}", self.device, run, repeat=1)


def run_module(
    cls: type[nn.Module], entry: Any, device: str, dtype: torch.dtype, training: bool,
    convert: Callable[[Any], Any], wrap: Compile, start: int,
) -> Any:  # fmt: skip
    """Two calls of a new module: results, gradients of inputs and parameters, buffers."""
    seed()
    module = cls(*entry.constructor_input.args, **entry.constructor_input.kwargs).to(device).to(dtype).train(training)
    if convert is doubled:
        module = module.double()
    call = wrap(module)
    found = []
    for _ in range(2):
        args, kwargs = tree_map(convert, (entry.forward_input.args, entry.forward_input.kwargs))
        seed(start)
        result = call(*args, **kwargs)
        sources = [leaf for leaf in tensors_in(leaves((args, kwargs))) if leaf.requires_grad]
        sources += [p for p in module.parameters() if p.requires_grad and not nn.parameter.is_lazy(p)]
        ends = [end for end in tensors_in(leaves(result)) if end.requires_grad]
        gradients: tuple[Tensor | None, ...] = ()
        if ends and sources:
            gradients = torch.autograd.grad(ends, sources, [tangent_of(end) for end in ends], allow_unused=True)
        found.append((result, gradients, [copy_of(buffer) for buffer in module.buffers()]))
    return found


class OptimizerSweep:
    """Each optimizer in each implementation."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.samples = str(arguments.device), int(arguments.samples)
        self.only = frozenset(filter(None, arguments.only.split(",")))

    @functools.cached_property
    def cases(self) -> list[DatabaseCase]:
        found = []
        for info in database("common_optimizers").optim_db:
            if self.only and info.optim_cls.__name__ not in self.only:
                continue
            forms = ["plain", *({"foreach", "fused"} & set(info.supported_impls))]
            forms = [
                form for form in forms if form != "fused" or self.device.partition(":")[0] in info.supports_fused_on
            ]
            found += [DatabaseCase(info, dtype, form) for dtype in DTYPES for form in sorted(forms)]
            found += [DatabaseCase(info, None)] * (info.optim_error_inputs_func is not None)
        return found

    def total(self) -> int:
        return len(self.cases) if self.device == "cpu" else int(in_a_child(lambda: len(self.cases)))

    def run(self, number: int, note: Note) -> list[Finding]:
        case = self.cases[number]
        note("eager", case.info.optim_cls.__name__)
        if case.dtype is None:
            return [found for trial in self.errors(case.info) for found in error_outcome(trial, Exception, note)]
        return [found for trial in self.trials(case) for found in outcome(trial, note)]

    def trials(self, case: DatabaseCase) -> Iterator[Trial]:
        made = case.info.optim_inputs_func(device=self.device)
        for number, entry in spread(made, self.samples):
            settings = entry.kwargs | ({} if case.form == "plain" else {case.form: True})
            for whole in (False, True):
                if whole and (case.info.only_supports_sparse_grads or case.info.step_requires_closure):
                    continue
                run = functools.partial(run_optimizer, case.info, settings, self.device, whole)
                yield Trial(
                    case.info.optim_cls.__name__,
                    f"optimizers {dtype_name(case.dtype or torch.float32)} {case.form}{' whole step' * whole}",
                    f"{number}: {settings} {entry.desc}", self.device, functools.partial(run, case.dtype),
                    functools.partial(run, torch.float64, leave, SEED), scale=1.0, repeat=1, rounding=True,
                )  # fmt: skip

    def errors(self, info: Any) -> Iterator[Trial]:
        for number, entry in enumerate(info.optim_error_inputs_func(device=self.device, dtype=torch.float32)):
            settings = entry.optimizer_error_input

            def run(wrap: Compile, start: int, settings: Any = settings) -> Any:
                params = settings.params if settings.params is not None else parameters(torch.float32, self.device)
                return wrap(lambda: info.optim_cls(params, **settings.kwargs).state_dict())()

            yield Trial(info.optim_cls.__name__, "errors", f"{number}: {settings.desc}", self.device, run, repeat=1)


def parameters(dtype: torch.dtype, device: str) -> list[nn.Parameter]:
    """Two matrices, the same in each run and up to rounding in each dtype."""
    generator = torch.Generator().manual_seed(SEED)
    numbers = [torch.randn(shape, generator=generator).bfloat16() for shape in ((4, 3), (3, 5))]
    return [nn.Parameter(tensor.to(device, dtype)) for tensor in numbers]


def run_optimizer(
    info: Any, settings: dict[str, Any], device: str, whole: bool, dtype: torch.dtype, wrap: Compile, start: int
) -> Any:
    """Some steps: the parameters after each, and the state at the end."""
    params = parameters(dtype, device)
    settings = {name: copy_of(value) for name, value in settings.items()}
    optimizer = info.optim_cls(params, **settings)
    x = (torch.arange(8.0).reshape(2, 4) / 8).to(device, dtype)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = ((x @ params[0] @ params[1]) ** 2).sum()
        value.backward()
        return value

    def step() -> Any:
        return optimizer.step(loss) if info.step_requires_closure else optimizer.step()

    def train() -> Any:
        value = loss()
        optimizer.step()
        return value.detach()

    call = wrap(train if whole else step)
    found = []
    for turn in range(STEPS):
        if not whole:
            set_gradients(params, turn, info.only_supports_sparse_grads)
        found.append((call(), [copy_of(p.detach()) for p in params]))
    state = [optimizer.state[p].get(name) for p in params for name in sorted(optimizer.state[p])]
    return found, tensors_in(leaves(state))


def set_gradients(params: list[nn.Parameter], turn: int, sparse: bool) -> None:
    generator = torch.Generator().manual_seed(SEED + turn)
    for param in params:
        gradient = torch.randn(param.shape, generator=generator).bfloat16().to(param.device, param.dtype)
        param.grad = gradient.to_sparse() if sparse else gradient
