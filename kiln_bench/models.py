"""Models and inputs of a row of a suite: from transformers' configs, from timm, or a function.

    case = build(row, train=False, seed=0)
    case.run(case.model)                  # outputs, or loss and gradients

Random weights, no downloads. Weights and data are made on the CPU, so that they depend on the seed only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, final

import torch
from torch import Tensor, nn

from kiln.support.optional import load_required
from kiln_bench.suite import SuiteRow

T = TypeVar("T")
Runnable = Callable[..., Any]


@final
@dataclass(slots=True)
class Case:
    """A model (or function) with inputs. `run` is one inference call or one training step with its gradients.

    `autocast`: the dtype of a training step under autocast. `labels`: for a model that does not compute its loss, which
    is then the cross entropy of its result. With an `optimizer`, what `run` gets is a whole step (`whole_step`).
    """

    model: Any
    args: tuple[object, ...]
    kwargs: dict[str, object]
    train: bool
    device: str = "cpu"
    autocast: torch.dtype | None = None
    labels: Tensor | None = None
    optimizer: torch.optim.Optimizer | None = None

    @property
    def subject(self) -> Runnable:
        """What eager runs, and compilers compile."""
        return self.model if self.optimizer is None else self.whole_step(self.model, self.optimizer.step)

    def whole_step(self, model: Runnable, update: Callable[[], object]) -> Callable[..., Tensor]:
        """The step with `model`, which may be compiled, and the `update` of its parameters."""
        optimizer = self.optimizer
        assert optimizer is not None

        def step(case: Case) -> Tensor:
            optimizer.zero_grad()
            loss = case.loss(model)
            loss.backward()
            update()
            return loss.detach()

        return step

    def loss(self, model: Runnable) -> Tensor:
        with torch.autocast(self.device, self.autocast, enabled=self.autocast is not None):
            result = model(*self.args, **self.kwargs)
            loss: Tensor = result.loss if self.labels is None else nn.functional.cross_entropy(result, self.labels)
        return loss

    def run(self, model: Runnable) -> list[Tensor]:
        """The outputs; for a training step the loss, then the gradient of each parameter."""
        if not self.train:
            with torch.no_grad():
                return tensors_of(model(*self.args, **self.kwargs))
        if self.optimizer is not None:
            loss = model(self)
        else:
            self.model.zero_grad(set_to_none=True)
            loss = self.loss(model)
            loss.backward()
        return [loss.detach(), *(p.grad for p in self.model.parameters() if p.grad is not None)]


def in_float64(case: Case) -> Case:
    """The same computation in float64, on a copy of the model and without autocast."""

    def widen(value: T) -> T | Tensor:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    model = copy.deepcopy(case.model).double() if isinstance(case.model, nn.Module) else case.model
    args = tuple([widen(value) for value in case.args])
    kwargs = {name: widen(value) for name, value in case.kwargs.items()}
    return Case(model, args, kwargs, case.train, case.device, labels=case.labels)


def build(row: SuiteRow, *, train: bool, seed: int, step: bool = False) -> Case:
    """Model and inputs of a row, with weights and data of `seed`, in the row's device and dtype; for a whole `step`
    with AdamW."""
    torch.manual_seed(seed)
    case = _function(row) if "function" in row.data else _timm(row, train) if "timm" in row.data else _hub(row, train)
    narrow = None if row.dtype is torch.float32 else row.dtype
    if isinstance(case.model, nn.Module):
        case.model = case.model.to(row.device, None if train else narrow).train(train)

    def moved(value: T) -> T | Tensor:
        if not isinstance(value, Tensor):
            return value
        return value.to(row.device, narrow if value.is_floating_point() and not train else None)

    case.args, case.kwargs = tuple(map(moved, case.args)), {name: moved(value) for name, value in case.kwargs.items()}
    case.labels, case.device, case.autocast = moved(case.labels), row.device, narrow if train else None
    if step:
        case.optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-4)
    return case


def _function(row: SuiteRow) -> Case:
    inputs = tuple(torch.randn(shape).abs() + 0.1 for shape in row.data["shapes"])
    return Case(FUNCTIONS[row.data["function"]], inputs, {}, train=False)


def _timm(row: SuiteRow, train: bool) -> Case:
    timm = load_required("timm", purpose="the models of this suite")
    model = timm.create_model(row.data["timm"], pretrained=False)
    side = row.data.get("side", 224)
    images = torch.randn(row.data["batch"], 3, side, side)
    labels = torch.randint(0, model.num_classes, (row.data["batch"],)) if train else None
    return Case(model, (images,), {}, train, labels=labels)


def _hub(row: SuiteRow, train: bool) -> Case:
    transformers = load_required("transformers", purpose="the models of this suite")
    config = getattr(transformers, row.data["config"])(**row.data.get("settings", {}))
    model = getattr(transformers, row.data["train_model" if train else "model"])(config)
    return Case(model, (), INPUTS[row.data["input"]](row, config, train), train)


def tensors_of(value: object) -> list[Tensor]:
    """The tensors in a result, depth first."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_of(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


# ------------------------------------------------------------------------------------------------ inputs


Config: TypeAlias = Any
"""Of a model of transformers, whose fields depend on the class."""


def _mask(row: SuiteRow) -> dict[str, Tensor]:
    batch, length = row.data["batch"], row.data["length"]
    if row.variant == "none":
        return {}
    mask = torch.ones(batch, length, dtype=torch.int64)
    if row.variant == "padded":
        mask[:, length * 3 // 4 :] = 0
    return {"attention_mask": mask}


def text_inputs(row: SuiteRow, config: Config, train: bool) -> dict[str, object]:
    tokens = torch.randint(0, config.vocab_size, (row.data["batch"], row.data["length"]))
    return {"input_ids": tokens, **_mask(row), **({"labels": tokens.clone()} if train else {})}


def seq2seq_inputs(row: SuiteRow, config: Config, train: bool) -> dict[str, object]:
    tokens = torch.randint(0, config.vocab_size, (row.data["batch"], row.data["length"]))
    target = torch.randint(0, config.vocab_size, (row.data["batch"], row.data["length"]))
    return {"input_ids": tokens, "decoder_input_ids": target, **_mask(row), **({"labels": target} if train else {})}


def image_inputs(row: SuiteRow, config: Config, train: bool) -> dict[str, object]:
    side = getattr(config, "image_size", 224) or 224
    images = torch.randn(row.data["batch"], 3, side, side)
    labels = torch.randint(0, config.num_labels, (row.data["batch"],))
    return {"pixel_values": images, **({"labels": labels} if train else {})}


INPUTS: Mapping[str, Callable[[SuiteRow, Config, bool], dict[str, object]]] = {
    "text": text_inputs,
    "seq2seq": seq2seq_inputs,
    "image": image_inputs,
}


# ------------------------------------------------------------------------------------------------ micro patterns


def gelu_layer_norm(x: Tensor, bias: Tensor) -> Tensor:
    return nn.functional.layer_norm(nn.functional.gelu(x + bias), (x.shape[-1],))


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 0.125, dim=-1)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return nn.functional.layer_norm(x + residual, (x.shape[-1],), weight, bias)


def swiglu(gate: Tensor, value: Tensor) -> Tensor:
    return nn.functional.silu(gate) * value


def cross_entropy(logits: Tensor) -> Tensor:
    return -torch.log_softmax(logits, dim=-1)[:, 7].mean()


def batch_norm_relu(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(nn.functional.batch_norm(x, mean, variance, weight, bias))


FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in (gelu_layer_norm, softmax, add_norm, swiglu, cross_entropy, batch_norm_relu)
}
