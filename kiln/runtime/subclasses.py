"""Tensors of subclasses at run time.

Wrappers are built bare, before their attributes are set, and torch-level graphs get plain tensors, since what
`__torch_function__` does is in the graph already. A differentiable region has plans over the tensors inside of
wrappers, while autograd outside of it sees the wrappers:

    layout = WrapperLayout(Pair, (3,), ..., content=(("a", PART), ("b", PART), ("scale", 2.0)))
    layout.split(pair)                 [pair.a, pair.b]; None for a tensor of another layout
    layout.build(iter([a, b]))         a Pair
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast, final

import torch

from kiln.support.records import dataclass

_make_wrapper = cast(Callable[..., torch.Tensor], torch.Tensor._make_wrapper_subclass)
Mask = tuple[bool, ...]
Run = Callable[..., Sequence[object]]


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its class, in the same memory."""
    return tensor.as_subclass(torch.Tensor)


def make_wrapper(
    cls: type,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A wrapper of `cls`, which has metadata of its own and no memory."""
    return _make_wrapper(cls, sizes, strides=strides, storage_offset=offset, dtype=dtype, device=device)


class Hole(enum.Enum):
    """What stands for a tensor in the contents of a wrapper."""

    PART = enum.auto()


PART = Hole.PART


@final
@dataclass(frozen=True)
class WrapperLayout:
    """All of a wrapper but the tensors inside: its class, metadata and attributes.

    An attribute is PART, another layout, a list, tuple or dict of such, or a constant.
    """

    cls: type
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    content: tuple[tuple[str, object], ...] = ()

    def bare(self) -> torch.Tensor:
        return make_wrapper(self.cls, self.sizes, self.strides, self.offset, self.dtype, self.device)

    def build(self, parts: Iterator[torch.Tensor]) -> torch.Tensor:
        made = self.bare()
        for name, template in self.content:
            object.__setattr__(made, name, filled(template, parts))
        return made

    def split(self, real: object) -> list[torch.Tensor] | None:
        """The tensors inside of a wrapper of this layout."""
        found: list[torch.Tensor] = []
        return found if fits(self, real, found) else None


@final
@dataclass(frozen=True, eq=False)
class BuildWrapper:
    """The target of a call of the log that makes a wrapper of the tensors inside."""

    layout: WrapperLayout
    __name__ = "build_wrapper"

    def __call__(self, *parts: torch.Tensor) -> torch.Tensor:
        return self.layout.build(iter(parts))


def filled(template: object, parts: Iterator[torch.Tensor]) -> object:
    if template is PART:
        return next(parts)
    if isinstance(template, WrapperLayout):
        return template.build(parts)
    if isinstance(template, list | tuple):
        return type(template)([filled(item, parts) for item in template])
    if isinstance(template, dict):
        return {key: filled(item, parts) for key, item in template.items()}
    return template


def fits(template: object, real: object, parts: list[torch.Tensor]) -> bool:
    """Whether `real` is of this layout; adds its tensors to `parts`."""
    if template is PART:
        parts.append(cast(torch.Tensor, real))
        return is_plain(real)
    if isinstance(template, WrapperLayout):
        if type(real) is not template.cls or tuple(real.shape) != template.sizes or real.dtype is not template.dtype:  # type: ignore[attr-defined]
            return False
        return all(fits(inner, getattr(real, name, None), parts) for name, inner in template.content)
    if isinstance(template, list | tuple) and type(real) is type(template) and len(real) == len(template):  # type: ignore[arg-type]
        return all(fits(inner, item, parts) for inner, item in zip(template, real, strict=True))  # type: ignore[call-overload]
    if isinstance(template, dict) and isinstance(real, dict) and real.keys() == template.keys():
        return all(fits(inner, real[key], parts) for key, inner in template.items())
    return type(real) is type(template) and bool(real == template)


def is_plain(real: object) -> bool:
    return type(real) is torch.Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(real)


@final
@dataclass(frozen=True)
class WrapperGradient:
    """The gradient of an input that is a wrapper: the plan returns its parts as gradients of `inputs`.

    These are the same tensor, given several times; the first of them gets the gradient.
    """

    layout: WrapperLayout
    inputs: tuple[int, ...]


@final
@dataclass(frozen=True)
class RegionWrappers:
    """Which inputs and results of a region are wrappers, and which tangents and gradients.

    `inputs`: what the forward plan gets for a wrapper, of which it reads nothing.
    `tangents` has an entry for each differentiable result: the layout of its tangent, None for a plain tensor.
    """

    inputs: Mapping[int, torch.Tensor]
    results: Mapping[int, WrapperLayout]
    tangents: tuple[WrapperLayout | None, ...]
    gradients: tuple[WrapperGradient, ...]

    def forward(self, run: Run) -> Run:
        """`run`, the forward plan, with bare wrappers among its results."""

        def forward(*inputs: object) -> list[object]:
            given = list(inputs)
            for number, plain in self.inputs.items():
                given[number] = plain
            results = list(run(*given))
            for number, layout in self.results.items():
                results[number] = layout.bare()
            return results

        return forward

    def accepts(self, *tangents: object) -> bool:
        """Whether the backward plan takes tangents of these classes."""
        pairs = zip(self.tangents, tangents, strict=True)
        return all(tangent is None or fits(layout or PART, tangent, []) for layout, tangent in pairs)

    def backward(self, find: Callable[[Mask, Mask], Run | None]) -> Callable[[Mask, Mask], Run | None]:
        """`find`, which gives the backward plan for masks, for tangents and gradients that are wrappers."""

        def find_wrapped(needed: Mask, given: Mask) -> Run | None:
            layouts = [layout for layout, here in zip(self.tangents, given, strict=True) if here]
            pairs = zip(self.tangents, given, strict=True)
            run = find(needed, tuple([here for layout, here in pairs for _ in range(part_count(layout))]))
            return None if run is None else lambda *values: self.run_backward(run, layouts, values)

        return find_wrapped

    def run_backward(self, run: Run, layouts: Sequence[WrapperLayout | None], values: Sequence[object]) -> list[object]:
        count = len(values) - len(layouts)
        tangents: list[torch.Tensor] = []
        for layout, tangent in zip(layouts, values[count:], strict=True):
            fits(layout or PART, tangent, tangents)
        gradients = list(run(*values[:count], *tangents))
        for gradient in self.gradients:
            parts = [gradients[number] for number in gradient.inputs]
            for number in gradient.inputs:
                gradients[number] = None
            if parts[0] is not None:
                gradients[gradient.inputs[0]] = gradient.layout.build(iter(cast(list[torch.Tensor], parts)))
        return gradients


def part_count(template: object) -> int:
    """How many tensors are inside; of a plain tensor (None), itself."""
    if template is None or template is PART:
        return 1
    if isinstance(template, WrapperLayout):
        return sum(part_count(inner) for _, inner in template.content if inner is not None)
    if isinstance(template, list | tuple | dict):
        items = template.values() if isinstance(template, dict) else template
        return sum(part_count(item) for item in items if item is not None)
    return 0
