"""Runs a region on copies of its inputs and keeps all that a caller could see of the run.

    expected = observe(torch_program, inputs)      results, contents of the inputs afterwards, gradients, or the error
    found = observe(compiled, inputs)
    differences(found, expected)                   "result 0: largest error 0.13 at (2, 5), where eager gives 0.0"

Copies share memory as the inputs do. Every run draws the same random numbers, and leaves the generators as they were.
Gradients are those of the first scalar result, as in training, else of all results.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch

from kiln.runtime.autograd import generators_of
from kiln.support.records import dataclass

Run = Callable[..., Sequence[object]]
_run_backward = torch.autograd.Variable._execution_engine.run_backward


@final
@dataclass(frozen=True)
class Observation:
    """What a run did. `shared`: for each result the first tensor, input or result, that has its memory."""

    results: Sequence[object] = ()
    inputs: Sequence[object] = ()
    gradients: Sequence[torch.Tensor | None] = ()
    shared: Sequence[int] = ()
    error: Exception | None = None


def observe(run: Run, inputs: Sequence[object], dtype: torch.dtype | None = None) -> Observation:
    """One run on copies of `inputs`; with `dtype`, floating-point copies are of this dtype."""
    with same_random_numbers(inputs), same_modes():
        leaves, given = copies(inputs, dtype)
        try:
            results = list(run(*given))
            shared = shared_memory(given, results)
            gradients = gradients_of(results, leaves)
        except Exception as error:  # of the program, or of a wrong kernel
            return Observation(error=error)
    return Observation(without_history(results), without_history(given), gradients, shared)


def without_history(values: Sequence[object]) -> list[object]:
    return [value.detach() if isinstance(value, torch.Tensor) else value for value in values]


@contextmanager
def same_modes() -> Iterator[None]:
    """The log of a region that ends inside of `no_grad` leaves it on."""
    grad = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch._C._set_grad_enabled(grad)


@contextmanager
def same_random_numbers(inputs: Sequence[object]) -> Iterator[None]:
    """The states of the generators afterwards as before."""
    generators = generators_of(inputs)
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def copies(inputs: Sequence[object], dtype: torch.dtype | None) -> tuple[list[torch.Tensor | None], list[object]]:
    """The leaves that receive gradients, and the inputs on copies of their memory, with the same layouts."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    computed = {memory_key(value) for value in tensors if is_computed(value)}
    copies_of: dict[Hashable, StorageCopy] = {}
    leaves: list[torch.Tensor | None] = []
    made: list[object] = []
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            leaves.append(None)
            made.append(value)
            continue
        key = memory_key(value)
        if key not in copies_of:
            copies_of[key] = storage_copy(value.detach(), dtype, key in computed)
        storage = copies_of[key]
        if is_computed(value):
            leaves.append(storage.leaf)
            made.append(storage.computed(value))
        else:
            copy = storage.plain(value)
            leaves.append(copy.requires_grad_() if value.requires_grad else None)
            made.append(copy)
    return leaves, made


def is_computed(value: torch.Tensor) -> bool:
    """Whether it has a history: such tensors may be changed in place, which leaves that need a gradient may not."""
    return value.requires_grad and not value.is_leaf


def has_memory(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and value.untyped_storage().nbytes() > 0


def memory_key(value: torch.Tensor) -> Hashable:
    """Equal for tensors of equal dtype on one storage."""
    return (value.untyped_storage().data_ptr(), value.dtype) if has_memory(value) else id(value)


@final
@dataclass(frozen=True)
class StorageCopy:
    """A copy of a storage, computed from `leaf` where tensors with a history lie on it."""

    leaf: torch.Tensor
    whole: torch.Tensor

    def plain(self, like: torch.Tensor) -> torch.Tensor:
        """Without a history."""
        return on(self.whole.detach(), like).detach()

    def computed(self, like: torch.Tensor) -> torch.Tensor:
        """With the history that leads to `leaf`."""
        with torch.enable_grad():
            return on(self.whole, like)


def storage_copy(value: torch.Tensor, dtype: torch.dtype | None, computed: bool) -> StorageCopy:
    """The storage of `value`; floating-point numbers become `dtype`."""
    if has_memory(value):
        value = value.as_strided((value.untyped_storage().nbytes() // value.itemsize,), (1,), 0)
    leaf = value.clone()
    if dtype is not None and value.is_floating_point():
        leaf = leaf.to(dtype)
    if not computed:
        return StorageCopy(leaf, leaf)
    with torch.enable_grad():
        leaf.requires_grad_()
        return StorageCopy(leaf, leaf.clone())


def on(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`whole` with the layout of `like`."""
    return whole.as_strided(like.shape, like.stride(), like.storage_offset()) if has_memory(like) else whole


def shared_memory(inputs: Sequence[object], results: Sequence[object]) -> list[int]:
    first: dict[int, int] = {}
    for number, value in enumerate((*inputs, *results)):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
            first.setdefault(value.untyped_storage().data_ptr(), number)
    return [
        first.get(value.untyped_storage().data_ptr(), -1)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
        else -1
        for value in results
    ]


def gradients_of(results: Sequence[object], leaves: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    wanted = [leaf for leaf in leaves if leaf is not None]
    roots = [value for value in results if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    if not wanted or not roots or not torch.is_grad_enabled():
        return []
    roots = [root for root in roots if root.dim() == 0][:1] or roots
    generator = torch.Generator().manual_seed(0)
    tangents = [
        torch.randn(root.shape, generator=generator, dtype=torch.float64, device="cpu").to(root) for root in roots
    ]
    found = _run_backward(
        tuple(roots), tuple(tangents), False, False, tuple(wanted), allow_unreachable=True, accumulate_grad=False
    )
    return list(found)
