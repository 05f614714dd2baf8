"""What the suite `capture` tries: a model with inputs, and what makes one.

entry = CaptureEntry("bert", "bert.BertModel", build)       entry.build() -> Subject, or raises NotBuilt
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TypeAlias, final

import torch
from torch import nn

from kiln.support.records import dataclass

Inputs: TypeAlias = dict[str, object]
MOST_PARAMETERS = 120_000_000


@final
@dataclass(frozen=True, slots=True)
class Subject:
    """A model with its inputs, by name."""

    name: str
    model: nn.Module
    inputs: Inputs
    more: tuple[Inputs, ...] = ()
    """Of further calls, with other sizes."""


class NotBuilt(Exception):
    """No small model of this kind runs in eager."""


@final
@dataclass(frozen=True, slots=True)
class CaptureEntry:
    """A model of a library, which `build` makes in the process that tries it.

    `build` raises `NotBuilt` where it cannot be made here.
    """

    family: str
    """What `--models` selects, such as "bert"."""
    title: str
    build: Callable[[], Subject]


def with_inputs(
    title: str, model: nn.Module, attempts: Iterable[Callable[[], Inputs]], problems: list[str]
) -> Subject | None:
    """`model` with the first inputs that it takes; what was wrong with the others is added to `problems`."""
    for attempt in attempts:
        try:
            inputs = attempt()
            with torch.no_grad():
                model(**copy.deepcopy(inputs))
        except Exception as problem:
            problems.append(f"{type(problem).__name__}: {problem}")
            continue
        return Subject(title, model, inputs)
    return None


def not_built(problems: list[str]) -> NotBuilt:
    return NotBuilt(" | ".join([problem[-200:] for problem in problems][:4]))
