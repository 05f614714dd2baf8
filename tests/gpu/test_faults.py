"""What the driver or Triton rejects: a code, eager's results, and no leaked memory."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.build import cubins
from kiln.pipeline.session import KilnWarning
from kiln.runtime.kernels import Cubin
from kiln.support.optional import MissingPackage

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DECODED = Cubin.image


def changed(**parts: Any) -> Any:
    return lambda self: DECODED(replace(self, **parts))


def no_triton(*_: Any) -> Any:
    raise MissingPackage(package="triton", purpose="compiling kernels for a GPU")


FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "another GPU": (Cubin, "image", changed(capability=20), "KILN4011"),
    "a driver that does not read it": (Cubin, "image", changed(code=b"\x7fELF" + bytes(1000)), "KILN4011"),
    "too much shared memory": (Cubin, "image", changed(shared_bytes=1 << 22), "KILN4012"),
    "no Triton": (cubins, "compile_source", no_triton, "KILN4104"),
}


def program_of(number: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A program with unique kernels: a process loads equal code once."""

    def program(x: Tensor, weight: Tensor) -> Tensor:
        return (torch.tanh(x @ weight) * number).square().sum(-1)

    return program


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "graphs"])
def test_the_region_runs_eager(name: str, graphs: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    owner, attribute, value, code = FAULTS[name]
    program = program_of(2 * list(FAULTS).index(name) + graphs + 3)
    x, weight = torch.randn(256, 64, device="cuda"), torch.randn(64, 64, device="cuda", requires_grad=True)
    (expected,) = torch.autograd.grad(program(x, weight).sum(), weight)
    gc.collect()
    before = torch.cuda.memory_allocated()
    monkeypatch.setattr(owner, attribute, value)
    options = {"compile_workers": 1, "cuda_graphs": graphs, "cache_dir": str(tmp_path)}
    fast = kiln.compile(program, options=options)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            y = fast(x, weight)
            assert torch.equal(y, program(x, weight))
            assert torch.equal(torch.autograd.grad(y.sum(), weight)[0], expected)
    told = [str(warning.message) for warning in seen if issubclass(warning.category, KilnWarning)]
    assert len(told) == 1 and code in told[0], told
    del y
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    monkeypatch.undo()
    again = kiln.compile(program, options={**options, "cache_dir": str(tmp_path / "other")})
    torch.testing.assert_close(again(x, weight), program(x, weight), rtol=1e-3, atol=1e-3)
