"""Tables of programs, each after a kind of wrong result that users of graph compilers have reported.

    PROGRAMS = Programs("promotion")
    PROGRAMS.add("a half and a number", lambda h: h * 3.1, lambda n: (halves(n),))

    @PROGRAMS.scenario
    def a_closure_that_changes(compile):
        scale = 2
        f = compile(lambda x: x * scale)
        yield f(ones)
        scale = 3
        yield f(ones)               # each value is observed when it is yielded

A program of `add` is called with fresh arguments for each of several sizes. Observed are the result, the arguments
afterwards, how often they were written, and the gradients of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Compile = Callable[..., Any]
"""`kiln.compile` with some options, or the identity."""
Scenario = Callable[[Compile], Iterator[Any]]
SIZES = (4, 4, 6)


def floats(*sizes: int) -> Tensor:
    return torch.randn(sizes)


def leaf(*sizes: int) -> Tensor:
    """A float tensor that requires a gradient."""
    return torch.randn(sizes, requires_grad=True)


def halves(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(sizes).to(dtype)


def ints(*sizes: int, low: int = -9, high: int = 9, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(low, high, sizes).to(dtype)


def one_matrix(n: int) -> tuple[Any, ...]:
    return (floats(n, 3),)


def one_leaf(n: int) -> tuple[Any, ...]:
    return (leaf(n, 3),)


@dataclass(frozen=True)
class Reported:
    """A program of a table."""

    name: str
    run: Scenario
    sizes: tuple[int, ...] = ()
    """Of a program of `add`: the sizes of its calls."""
    signed_zeros: bool = True
    """Zeros have eager's sign. Which of two zeros is the larger depends on the place in a vector in eager itself."""


@dataclass
class Programs:
    """The programs of one subject."""

    subject: str
    items: list[Reported] = field(default_factory=list)

    def add(
        self,
        name: str,
        program: Callable[..., Any],
        arguments: Callable[[int], tuple[Any, ...]] = one_matrix,
        sizes: tuple[int, ...] = SIZES,
        signed_zeros: bool = True,
    ) -> None:
        def run(compile: Compile) -> Iterator[Any]:
            compiled = compile(program)
            for size in sizes:
                yield from calls(compiled, arguments(size))

        self.items.append(Reported(name, run, sizes, signed_zeros))

    def program(
        self, arguments: Callable[[int], tuple[Any, ...]] = one_matrix, sizes: tuple[int, ...] = SIZES
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """`add` as a decorator."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self.add(function.__name__.replace("_", " "), function, arguments, sizes)
            return function

        return add

    def scenario(self, function: Scenario) -> Scenario:
        """Adds a generator that compiles what it wants and yields what is to be observed."""
        self.items.append(Reported(function.__name__.replace("_", " "), function))
        return function


def attempt(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """The result, or the error."""
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        return error


def calls(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Iterator[Any]:
    """What can be observed of one call, and of the gradients of its result."""
    tensors = [item for item in pytree.tree_leaves(arguments) if isinstance(item, Tensor)]
    versions = [tensor._version for tensor in tensors]
    result = attempt(function, *arguments)
    yield result, arguments
    yield "writes", [tensor._version - before for tensor, before in zip(tensors, versions, strict=True)]
    yield "gradients", gradients(result, [tensor for tensor in tensors if tensor.requires_grad and tensor.is_leaf])


def gradients(result: Any, inputs: list[Tensor]) -> Any:
    """Of a weighted sum of all results."""
    outputs = [item for item in pytree.tree_leaves(result) if isinstance(item, Tensor) and item.requires_grad]
    if not inputs or not outputs:
        return None
    weights = [torch.linspace(1, 2, item.numel()).reshape(item.shape).to(item.dtype) for item in outputs]
    return attempt(torch.autograd.grad, outputs, inputs, weights, allow_unused=True)
