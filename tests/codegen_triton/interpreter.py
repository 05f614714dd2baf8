"""Runs Triton kernels on CPU tensors: Triton's interpreter, in a process of its own.

Triton decides when it is imported whether it interprets, so tests that compile and tests that interpret cannot share a
process. CUDA's library of functions does not exist for the interpreter; torch's functions stand in for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import re
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, final

import numpy
import pytest
import torch

from kiln.plan.plan import Kernel, KernelParam

_LOOP = re.compile(r"\brange\((?:0, )?(?!\d+[,)])")
"""A loop whose bound is not a number; does not match `tl.arange`."""
PROBE = Kernel(
    "probe",
    "triton",
    """
import triton
import triton.language as tl

@triton.jit
def probe(out, n0, BLOCK: tl.constexpr):
    total = 0
    for start in tl.range(0, n0, BLOCK):
        total += start
    for one in range(n0):
        total += one
    tl.store(out, total)
""",
    params=(KernelParam(torch.int64, "write"),),
    num_ints=1,
    meta=(("constants", (("BLOCK", 4),)), ("status", False)),
)


@final
@dataclass(frozen=True, slots=True)
class Job:
    """One launch: `ints` in calling order, `programs` the size of its grid."""

    kernel: Kernel
    programs: int
    tensors: tuple[torch.Tensor, ...]
    ints: tuple[int, ...]


class Interpreter:
    """A worker process that is started when first used."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._loops: bool | None = None

    @property
    def loops_over_sizes(self) -> bool:
        """Whether this version of Triton's interpreter runs loops whose bound is an argument."""
        if self._loops is None:
            out = torch.zeros(1, dtype=torch.int64)
            job = Job(PROBE, 1, (out,), (9,))
            try:
                self._launch(job)
            except Exception:
                self._loops = False
            else:
                self._loops = out.item() == 0 + 4 + 8 + sum(range(9))
        return self._loops

    def run(self, job: Job) -> int:
        """Run the kernel in place on the tensors of `job`; returns its status.

        Skips the test where the interpreter cannot run what the kernel does.
        """
        if _LOOP.search(job.kernel.source) and not self.loops_over_sizes:
            pytest.skip("Triton's interpreter does not run loops over sizes here")
        return self._launch(job)

    def _launch(self, job: Job) -> int:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_start)
        buffer = io.BytesIO()
        torch.save(job.tensors, buffer)
        results, status = self._pool.submit(
            _run, job.kernel.symbol, job.kernel.source, dict(job.kernel.meta), job.programs, buffer.getvalue(), job.ints
        ).result(timeout=300)
        for tensor, changed in zip(job.tensors, torch.load(io.BytesIO(results)), strict=True):
            tensor.copy_(changed)
        return status

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


# ------------------------------------------------------------------------------------------------ in the worker


def _start() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    interpreter = importlib.import_module("triton.runtime.interpreter")
    tl = importlib.import_module("triton.language")
    convert = interpreter._convert_float

    def rounded(data: Any, source: Any, target: Any, mode: Any) -> Any:
        """A GPU rounds to the nearest bf16; the interpreter truncates."""
        if source == tl.float32 and target == tl.bfloat16:
            return torch.from_numpy(data.copy()).bfloat16().view(torch.uint16).numpy()
        return convert(data, source, target, mode)

    interpreter._convert_float = rounded  # type: ignore[attr-defined]
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, *rest: Any) -> None:
        """Scalars are arrays of one element, which Triton 3.6 does not accept as loop bounds."""
        patch(tensor, *rest)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched  # type: ignore[attr-defined]
    # A GPU's plain maximum takes the number, the interpreter's the NaN.
    builder = interpreter.InterpreterBuilder
    builder.create_maxnumf = lambda self, x, y: self.binary_op(x, y, numpy.fmax)
    builder.create_minnumf = lambda self, x, y: self.binary_op(x, y, numpy.fmin)


def as_argument(tensor: torch.Tensor, kind: str) -> Any:
    """The tensor, or the number in it: a Python number would be rounded to 32 bits."""
    if kind.startswith("*"):
        return tensor
    interpreter = importlib.import_module("triton.runtime.interpreter")
    tl = importlib.import_module("triton.language")
    number = tl.str_to_ty(kind, None)
    return tl.tensor(interpreter.TensorHandle(tensor.reshape(1).numpy().copy(), number), number)


def _run(
    symbol: str, source: str, meta: Mapping[str, Any], programs: int, data: bytes, ints: Sequence[int]
) -> tuple[bytes, int]:
    tensors = torch.load(io.BytesIO(data))
    status = torch.zeros(1, dtype=torch.int64)
    given = [as_argument(*each) for each in zip(tensors, meta.get("signature", ["*"] * len(tensors)), strict=False)]
    arguments = [*given, *ints, *([status] if meta["status"] else [])]
    if programs:
        function = getattr(_module(symbol, source), symbol)
        function[(programs,)](*arguments, **dict(meta["constants"]))
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue(), int(status)


def _module(symbol: str, source: str) -> types.ModuleType:
    """The source as a module: Triton reads functions from files."""
    path = Path(tempfile.mkdtemp(prefix="kiln-triton-")) / f"{symbol}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(symbol, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(module, "libdevice"):
        module.libdevice = TorchFunctions()  # type: ignore[attr-defined]
    return module


class TorchFunctions:
    """libdevice's functions, computed by torch."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., torch.Tensor] = getattr(torch, {"rint": "round", "fast_dividef": "div"}.get(name, name))

        def call(*operands: Any) -> Any:
            tl = importlib.import_module("triton.language")
            handle = importlib.import_module("triton.runtime.interpreter").TensorHandle
            tensors = [torch.from_numpy(operand.handle.data.copy()) for operand in operands]
            result = function(*tensors).numpy()
            dtype = operands[0].dtype
            shape = list(result.shape)
            kind = tl.block_type(dtype, shape) if any(operand.type.is_block() for operand in operands) else dtype
            return tl.tensor(handle(result, dtype), kind)

        return call
