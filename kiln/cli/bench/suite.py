"""Suites are data: a TOML file lists models; this builds a model and its inputs from a row.

row = load_suite("cpu").rows[0]
case = build(row, variant="padded", train=False, seed=0)
case.run(case.model)                  # outputs, or loss and gradients
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from kiln.support.optional import load_required

SUITES = Path(__file__).parent / "suites"
MASKS = ("none", "ones", "padded")


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One model of a suite, in one variant (text models: which attention mask)."""

    name: str
    data: Mapping[str, Any]
    variant: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}/{self.variant}" if self.variant else self.name


@final
@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    device: str
    dtype: torch.dtype
    rows: tuple[Row, ...]


@final
@dataclass(slots=True)
class Case:
    """A model (or function) with inputs. `run` does one inference call or one training step with its gradients."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    train: bool

    def run(self, model: Callable[..., Any]) -> list[Tensor]:
        """Outputs in order; for a training step the loss followed by the gradient of each parameter."""
        if not self.train:
            with torch.no_grad():
                return tensors_of(model(*self.args, **self.kwargs))
        self.model.zero_grad(set_to_none=True)
        loss = model(*self.args, **self.kwargs).loss
        loss.backward()
        return [loss.detach(), *(p.grad for p in self.model.parameters() if p.grad is not None)]


def load_suite(name: str, *, train: bool = False) -> Suite:
    """The suite file `name`, text models once per mask. `train`: only the models with a training step."""
    data = tomllib.loads((SUITES / f"{name}.toml").read_text())
    rows = []
    for model in data["model"]:
        if train and "train_model" not in model:
            continue
        row = Row(model["name"], model)
        masks = MASKS if model.get("input") in ("text", "seq2seq") else ("",)
        rows += [replace(row, variant=mask) for mask in masks]
    return Suite(data["name"], data["device"], getattr(torch, data["dtype"]), tuple(rows))


def build(row: Row, *, train: bool, seed: int, device: str = "cpu") -> Case:
    """Model and inputs of a row with the weights and data of `seed`, in float32."""
    torch.manual_seed(seed)
    if "function" in row.data:
        function = FUNCTIONS[row.data["function"]]
        inputs = tuple(torch.randn(shape, device=device).abs() + 0.1 for shape in row.data["shapes"])
        return Case(function, inputs, {}, train=False)
    transformers: Any = load_required("transformers", purpose="the models of this suite")
    config = getattr(transformers, row.data["config"])(**row.data.get("settings", {}))
    model = getattr(transformers, row.data["train_model" if train else "model"])(config)
    model = model.to(device).train(train)
    kwargs = INPUTS[row.data["input"]](row, config, train)
    kwargs = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in kwargs.items()}
    return Case(model, (), kwargs, train)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a result, depth first."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_of(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


# ------------------------------------------------------------------------------------------------ inputs


def _mask(row: Row) -> dict[str, Tensor]:
    batch, length = row.data["batch"], row.data["length"]
    if row.variant == "none":
        return {}
    mask = torch.ones(batch, length, dtype=torch.int64)
    if row.variant == "padded":
        mask[:, length * 3 // 4 :] = 0
    return {"attention_mask": mask}


def text_inputs(row: Row, config: Any, train: bool) -> dict[str, Any]:
    tokens = torch.randint(0, config.vocab_size, (row.data["batch"], row.data["length"]))
    return {"input_ids": tokens, **_mask(row), **({"labels": tokens.clone()} if train else {})}


def seq2seq_inputs(row: Row, config: Any, train: bool) -> dict[str, Any]:
    tokens = torch.randint(0, config.vocab_size, (row.data["batch"], row.data["length"]))
    target = torch.randint(0, config.vocab_size, (row.data["batch"], row.data["length"]))
    return {"input_ids": tokens, "decoder_input_ids": target, **_mask(row), **({"labels": target} if train else {})}


def image_inputs(row: Row, config: Any, train: bool) -> dict[str, Any]:
    side = getattr(config, "image_size", 224) or 224
    images = torch.randn(row.data["batch"], 3, side, side)
    labels = torch.randint(0, config.num_labels, (row.data["batch"],))
    return {"pixel_values": images, **({"labels": labels} if train else {})}


INPUTS: Mapping[str, Callable[[Row, Any, bool], dict[str, Any]]] = {
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
