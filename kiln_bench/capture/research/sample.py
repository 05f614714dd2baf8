"""Small modules in the manner of public research code: a class, and beside it what it is made from and called with.

    @sample(32, heads=4, inputs=vectors(32), lengths=(8, 13))
    class RotaryAttention(nn.Module): ...

    SAMPLES["RotaryAttention"].calls()      the inputs of three calls: 2 rows of 8, 3 rows of 13, 5 rows of 18

`inputs` makes the arguments of `forward`, by name, for a number of rows and a length, whatever these are for a module:
sequences and steps, images and the length of their sides, graphs and nodes. The field is the file, such as "attention".
The modules are data of the suite: they are written as research code is, without annotations, and use little of torch
more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar, final

import torch
from torch import nn

from kiln.support.records import dataclass
from kiln_bench.capture.subject import Inputs

MakeInputs: TypeAlias = Callable[[int, int], Inputs]
Made = TypeVar("Made", bound=type[nn.Module])


@final
@dataclass(frozen=True, slots=True)
class Sample:
    module_class: type[nn.Module]
    arguments: tuple[object, ...]
    options: Mapping[str, object]
    inputs: MakeInputs
    lengths: tuple[int, int]

    @property
    def field(self) -> str:
        return self.module_class.__module__.rpartition(".")[2]

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.module_class(*self.arguments, **self.options)

    def calls(self) -> list[Inputs]:
        """The inputs of three calls, each with more rows than the one before, and longer by the same length."""
        short, long = self.lengths
        torch.manual_seed(1)
        return [self.inputs(2, short), self.inputs(3, long), self.inputs(5, 2 * long - short)]


SAMPLES: dict[str, Sample] = {}
"""By the name of the class; filled by `sample`."""


def sample(
    *arguments: object, inputs: MakeInputs, lengths: tuple[int, int] = (8, 13), **options: object
) -> Callable[[Made], Made]:
    """Register a class of modules, made from `arguments` and `options`."""

    def register(module_class: Made) -> Made:
        SAMPLES[module_class.__name__] = Sample(module_class, arguments, options, inputs, lengths)
        return module_class

    return register


# ------------------------------------------------------------------------------------------------ usual inputs


def vectors(width: int) -> MakeInputs:
    """Sequences of vectors."""
    return lambda rows, length: {"x": torch.randn(rows, length, width)}


def images(channels: int) -> MakeInputs:
    return lambda rows, length: {"x": torch.randn(rows, channels, length, length)}


def waves(channels: int) -> MakeInputs:
    """Channels first, then time."""
    return lambda rows, length: {"x": torch.randn(rows, channels, length)}


def tokens(vocabulary: int) -> MakeInputs:
    return lambda rows, length: {"ids": torch.randint(vocabulary, (rows, length))}


def features(width: int) -> MakeInputs:
    """A vector for each row; the length decides how many rows there are."""
    return lambda rows, length: {"x": torch.randn(rows * length, width)}
