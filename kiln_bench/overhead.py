"""The overhead of a compiled call, with all guards in place.

A BERT of 12 layers and width 32 is compiled by a backend that returns stored outputs, so only guards, prologue and
epilogue remain. Then, on the same model, each change that a guard must notice is made, and a compiled call must give
what eager gives: the results, their type, and the gradients of all parameters. Its backend keeps outputs as well, and
refuses inputs or a global state that its graph was not captured for, so that a call without guards is caught.

    call           9.0 us, kiln
    call           161.0 us, torch.compile
    target         20 us
    noticed        17 of 17 changes
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import final

import torch
from torch import Tensor, nn

import kiln.api as api
from kiln.support.optional import load_required
from kiln.support.records import dataclass
from kiln_bench.models import tensors_of
from kiln_bench.results import write_data

TARGET_SECONDS = 20e-6


def small_bert(layers: int = 12) -> nn.Module:
    transformers = load_required("transformers", purpose="the overhead benchmark")
    config = transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    model: nn.Module = transformers.BertModel(config).eval()
    return model


def stored_outputs(module: torch.fx.GraphModule, example_inputs: object) -> Callable[..., object]:
    """A backend that runs the graph at the first call, and returns those outputs from then on."""
    stored: list[object] = []

    def run(*inputs: object) -> object:
        if not stored:
            stored.append(module(*inputs))
        return stored[0]

    return run


class StaleEntry(Exception):
    """A graph was entered with inputs, or under a state, that it was not captured for."""


InputLayout = tuple[torch.dtype, torch.Size, tuple[int, ...], torch.device, bool]
Assumed = tuple[bool, bool, torch.dtype, tuple[InputLayout, ...]]


def assumed(inputs: Sequence[Tensor]) -> Assumed:
    """What the plan of a compiled region takes as given."""
    layouts = tuple([(t.dtype, t.shape, t.stride(), t.device, t.requires_grad) for t in inputs])
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype(), layouts


def stored_per_input(module: torch.fx.GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., object]:
    """A backend that runs the graph once for each set of input tensors, and only for what it was captured for."""
    stored: dict[tuple[tuple[int, int], ...], object] = {}
    expected: list[Assumed] = []

    def run(*inputs: Tensor) -> object:
        found = assumed(inputs)
        if not expected:
            expected.append(found)
        if found != expected[0]:
            raise StaleEntry
        key = tuple([(tensor.data_ptr(), tensor._version) for tensor in inputs])
        if key not in stored:
            stored[key] = module(*inputs)
        return stored[key]

    return run


def seconds_per_call(models: Mapping[str, Callable[..., object]], tokens: Tensor, calls: int) -> dict[str, float]:
    """Medians over calls, which an interrupted call does not change; models take turns in batches, in random order."""
    order, taken = random.Random(0), {name: list[float]() for name in models}
    with torch.no_grad():
        for model in models.values():
            for _ in range(20):
                model(tokens)
        for _ in range(10):
            for name in order.sample(list(models), len(models)):
                model = models[name]
                for _ in range(calls // 10):
                    start = time.perf_counter()
                    model(tokens)
                    taken[name].append(time.perf_counter() - start)
    return {name: median(found) for name, found in taken.items()}


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, old)


OUTPUT, DENSE = "encoder.layer.1.output", "encoder.layer.1.output.dense"


def new_parameter(model: nn.Module) -> Restoring:
    dense, old = model.get_submodule(DENSE), model.get_parameter(f"{DENSE}.weight")
    return replaced(dense, "weight", nn.Parameter(torch.zeros_like(old), old.requires_grad))


def new_data(model: nn.Module) -> Restoring:
    weight = model.get_parameter(f"{DENSE}.weight")
    return replaced(weight, "data", torch.zeros_like(weight.data).t().contiguous().t())


def new_buffer(model: nn.Module) -> Restoring:
    embeddings = model.get_submodule("embeddings")
    return replaced(embeddings, "position_ids", embeddings.get_buffer("position_ids").flip(1))


def new_global(model: nn.Module) -> Restoring:
    functional = type(model.get_submodule(OUTPUT)).forward.__globals__["nn"].functional
    linear = functional.linear
    return replaced(functional, "linear", lambda x, w, b=None: linear(x, w, b) * 1.5)


def doubled(module: nn.Module, inner: object, outer: object) -> tuple[Tensor, ...]:
    """A backward hook."""
    return tuple([2 * gradient for gradient in tensors_of(inner)])


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    model.train()
    torch.manual_seed(0)
    yield
    model.eval()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(torch.float32)


Restoring = AbstractContextManager[object]


@final
@dataclass(frozen=True, slots=True)
class Change:
    """Something a guard must notice: `around` changes the model or torch and undoes it, `tokens` changes the input.

    `repeatable`: whether eager's values are; indices on the meta device make it read memory that nobody wrote.
    """

    name: str
    around: Callable[[nn.Module], Restoring] = nullcontext
    tokens: Callable[[Tensor], Tensor] = lambda tokens: tokens
    repeatable: bool = True


# fmt: off
CHANGES = (
    Change("a parameter replaced", new_parameter),
    Change("the data of a parameter swapped", new_data),
    Change("requires_grad_", lambda model: replaced(model.get_parameter(f"{DENSE}.weight"), "requires_grad", True)),
    Change("a sub-module replaced", lambda model: replaced(model.get_submodule(OUTPUT), "LayerNorm", nn.Identity())),
    Change("a forward hook added", lambda model: model.get_submodule(OUTPUT).register_forward_hook(
        lambda module, args, output: output * 2)),
    Change("a backward hook added", lambda model: model.get_submodule(OUTPUT).register_full_backward_hook(
        doubled)),
    Change("train()", training),
    Change("a config attribute changed", lambda model: replaced(model.config, "return_dict", False)),
    Change("a global that the model reads changed", new_global),
    Change("grad mode", lambda model: torch.no_grad()),
    Change("autocast", lambda model: torch.autocast("cpu", torch.bfloat16)),
    Change("default dtype", lambda model: default_dtype(torch.float64)),
    Change("another input dtype", tokens=lambda tokens: tokens.to(torch.int32)),
    Change("another input shape", tokens=lambda tokens: tokens[:, :9].contiguous()),
    Change("another input stride", tokens=lambda tokens: tokens.flip(0).t().contiguous().t()),
    Change("a buffer replaced", new_buffer),
    Change("another device", tokens=lambda tokens: tokens.to("meta"), repeatable=False),
)
# fmt: on


@final
@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What a caller can see: `kind` is the type of the result or of the error; `gradients` are those of its sum."""

    kind: str
    results: Sequence[Tensor] = ()
    gradients: Sequence[Tensor | None] = ()


def outcome(call: Callable[..., object], model: nn.Module, tokens: Tensor) -> CallOutcome:
    """Of calling `call`, which is `model` or compiled from it."""
    torch.manual_seed(0)
    try:
        result = call(tokens)
    except Exception as error:
        return CallOutcome(type(error).__name__)
    tensors = tensors_of(result)
    gradients: Sequence[Tensor | None] = ()
    if tensors[0].requires_grad and tensors[0].device.type == "cpu":
        wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(tensors[0].sum(), wanted, retain_graph=True, allow_unused=True)
    return CallOutcome(type(result).__name__, [tensor.clone() for tensor in tensors], gradients)


def is_noticed(tried: Change, model: nn.Module, compiled: Callable[..., object], tokens: Tensor) -> bool:
    """Whether the compiled call gives what eager gives, under the change and after it."""
    changed = tried.tokens(tokens)
    with tried.around(model):
        right = same(outcome(compiled, model, changed), outcome(model, model, changed), values=tried.repeatable)
    return right and same(outcome(compiled, model, tokens), outcome(model, model, tokens))


def same(left: CallOutcome, right: CallOutcome, *, values: bool = True) -> bool:
    pairs = [*zip(left.results, right.results, strict=False), *zip(left.gradients, right.gradients, strict=False)]
    return (
        left.kind == right.kind
        and (len(left.results), len(left.gradients)) == (len(right.results), len(right.gradients))
        and all([_same_tensor(ours, eagers, values) for ours, eagers in pairs])
    )


def _same_tensor(ours: Tensor | None, eagers: Tensor | None, values: bool) -> bool:
    if ours is None or eagers is None:
        return ours is eagers
    seen = [(tensor.dtype, tensor.shape, tensor.device, tensor.requires_grad) for tensor in (ours, eagers)]
    if seen[0] != seen[1] or not values:
        return seen[0] == seen[1]
    return torch.allclose(ours.float(), eagers.float(), rtol=1e-4, atol=1e-6, equal_nan=True)


def missed_changes(model: nn.Module, tokens: Tensor) -> list[str]:
    """The changes after which a compiled call does not give what eager gives."""
    model.get_parameter(f"{DENSE}.weight").requires_grad_(False)
    compiled = api.compile(model, backend=stored_per_input, options={"variants": 4 * len(CHANGES)})
    compiled(tokens)
    try:
        return [tried.name for tried in CHANGES if not is_noticed(tried, model, compiled, tokens)]
    finally:
        model.get_parameter(f"{DENSE}.weight").requires_grad_(True)


def run(pairs: int, peer: bool, json: Path | None) -> int:
    """Time the call, then make every change; 0 when all are noticed."""
    model, tokens = small_bert(), torch.randint(0, 100, (2, 16))
    found: dict[str, object] = {"target_seconds": TARGET_SECONDS, "changes": len(CHANGES)}
    models: dict[str, Callable[..., object]] = {"kiln": api.compile(model, backend=stored_outputs)}
    if peer:
        models["torch.compile"] = torch.compile(model, backend=stored_outputs)
    taken = found["seconds"] = seconds_per_call(models, tokens, pairs * 50)
    for name, seconds in taken.items():
        print(f"call           {seconds * 1e6:.1f} us, {name}")
    print(f"target         {TARGET_SECONDS * 1e6:.0f} us")
    missed = missed_changes(model, tokens)
    print(f"noticed        {len(CHANGES) - len(missed)} of {len(CHANGES)} changes")
    for name in missed:
        print(f"  not noticed: {name}")
    after = seconds_per_call({"kiln": models["kiln"]}, tokens, pairs * 50)["kiln"]
    print(f"call           {after * 1e6:.1f} us after {len(CHANGES)} changes")
    if json is not None:
        write_data(json, {**found, "missed": missed, "seconds_after_changes": after})
    return bool(missed)
