"""Programs that launch Triton kernels of their own: `TRITON_INTERPRET=1 python -m tests.capture.triton_programs`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import kiln
from kiln.capture.interpreter.builtins.triton_kernels import written_parameters


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside), mask=inside)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(out.numel(), meta["BLOCK"]),)](x, y, out, out.numel(), BLOCK=16)
    return out


class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return add(x, y)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, add(gradient, torch.zeros_like(gradient))


class Adding(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Add.apply(self.first(x), self.second(x)).relu()  # type: ignore[no-any-return,no-untyped-call]


@triton.heuristics({"BLOCK": lambda args: 16})
@triton.jit
def scale_kernel(x, n, scale, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pointers = x + offsets
    for _ in range(2):
        tl.store(pointers, tl.load(pointers, mask=offsets < n) * scale, mask=offsets < n)


def in_place(x: torch.Tensor) -> Any:
    y, rows = x + 1, torch.zeros(2, *x.shape)
    for tensor in (y, x, rows[1]):
        scale_kernel[(triton.cdiv(x.numel(), 16),)](tensor, x.numel(), 0.5)
    add_kernel[(triton.cdiv(x.numel(), 16),)](y, y, y, x.numel(), 16)
    return y, rows, x + 1


@triton.jit
def double(x):
    return x * 2


@triton.jit
def store_at(pointers, value):
    tl.store(pointers, value)


@triton.jit
def count_kernel(index, table, counts, out, BLOCK: tl.constexpr = 8):
    offsets = tl.arange(0, BLOCK)
    found = tl.load(index + offsets)
    tl.atomic_add(counts + found, 1)
    store_at(out + offsets, double(tl.load(table + found)))


def takes_interpreted_kernels() -> bool:
    try:
        torch.library.wrap_triton(count_kernel)
    except RuntimeError:  # torch 2.11
        return False
    return True


wrapped: Any = torch.library.wrap_triton if takes_interpreted_kernels() else lambda kernel: kernel


def count(x: torch.Tensor) -> Any:
    index = torch.arange(8) % 3
    counts, out = torch.zeros(3, dtype=torch.int64), torch.empty(8)
    wrapped(count_kernel)[(1,)](index, x.flatten(), counts, out)
    return counts, out


def test_effects_are_read_off_the_source() -> None:
    tensors = {"x", "y", "out", "index", "table", "counts"}
    assert written_parameters(add_kernel.fn) & tensors == {"out"}
    assert written_parameters(scale_kernel.fn.fn) & tensors == {"x"}
    assert written_parameters(count_kernel.fn) & tensors == {"counts", "out"}


def test_launches_are_steps() -> None:
    for program, training in ((Adding(), True), (Adding(), False), (in_place, False), (count, False)):
        for options in ({"backend": "eager"}, {"dynamic": True}, {}):
            compiled = kiln.compile(program, fullgraph=True, **options)  # type: ignore[call-overload]
            for rows in (4, 5):
                results = []
                for function in (program, compiled):
                    x = torch.arange(8.0 * rows).reshape(rows, 8).requires_grad_(training)
                    made = function(x)
                    if training:
                        made.sum().backward()
                        made = (made, x.grad)
                    results.append(made)
                torch.testing.assert_close(results[1], results[0])


if __name__ == "__main__":
    test_effects_are_read_off_the_source()
    test_launches_are_steps()
