"""Benchmark suites as data: a TOML file lists models; a row is a model in one variant.

suite = load_suite("gpu", train=True)
case = build(suite.rows[0], train=True, seed=0)       # kiln_bench.models
case.run(case.model)                                         # loss and gradients
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch

from kiln.support.records import dataclass

SUITES = Path(__file__).parent / "suites"
MASKS = ("none", "ones", "padded")


@final
@dataclass(frozen=True, slots=True)
class SuiteRow:
    """One model of a suite, in one variant (text models: which attention mask).

    `dtype`: of the weights in inference; a training step keeps float32 weights and runs under autocast in it.
    """

    name: str
    data: Mapping[str, Any]
    variant: str = ""
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @property
    def title(self) -> str:
        return f"{self.name}/{self.variant}" if self.variant else self.name

    @property
    def trains(self) -> bool:
        return "train_model" in self.data or "timm" in self.data


@final
@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    rows: tuple[SuiteRow, ...]


def load_suite(name: str, *, train: bool = False) -> Suite:
    """The suite file `name`, text models once per mask. `train`: only the models with a training step."""
    data = tomllib.loads((SUITES / f"{name}.toml").read_text())
    rows = []
    for model in data["model"]:
        row = SuiteRow(model["name"], model, device=data["device"], dtype=getattr(torch, data["dtype"]))
        if train and not row.trains:
            continue
        text = model.get("input") in ("text", "seq2seq")
        rows += [replace(row, variant=mask) for mask in (data.get("masks", MASKS) if text else ("",))]
    return Suite(data["name"], tuple(rows))
