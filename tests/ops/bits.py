"""Bits of strict numerics beside eager's, on torch's own sample database of operators.

    python -m tests.ops.bits --shard 0/4 --seconds 300          prints each op whose bits differ, then the counts

Each sample is run without gradients and, where torch has them, with; the region's first run is compared with eager bit
by bit (`verify="first"` under `numerics="strict"`).
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch

import kiln
from kiln.pipeline.session import KilnWarning
from tests.sweeps.samples import SEED, calling, copy_of, name_of, operators, shard_of, spread

STRICT = {"numerics": "strict", "verify": "first", "progress": False}


def samples(op: Any, dtype: torch.dtype, gradient: bool, count: int) -> list[Any]:
    """Some of torch's samples; none where it has no such samples."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    try:
        return [sample for _, sample in spread(list(op.sample_inputs("cpu", dtype, requires_grad=gradient)), count)]
    except Exception:  # of torch's own generators
        return []


def problems(op: Any, dtype: torch.dtype, gradient: bool, count: int) -> Iterator[str]:
    """How the compiled op differs from eager, sample by sample."""
    for sample in samples(op, dtype, gradient, count):
        args, kwargs = torch.utils._pytree.tree_map(copy_of, ((sample.input, *sample.args), dict(sample.kwargs)))
        compiled = kiln.compile(calling(op.op), options=STRICT)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with torch.set_grad_enabled(gradient):
                    compiled(*args, **kwargs)
            except Exception:  # eager raises too, or it is another test's business
                continue
        for entry in caught:
            if issubclass(entry.category, KilnWarning) and "KILN4030" in str(entry.message):
                yield str(entry.message).split("differs from eager: ")[1].split(": its first run")[0]


def check(op: Any, dtypes: tuple[torch.dtype, ...], count: int) -> dict[str, str]:
    """The first difference for each dtype, forward and backward."""
    found: dict[str, str] = {}
    for dtype in dtypes:
        for gradient in (False, True):
            if gradient and not op.supports_autograd:
                continue
            problem = next(problems(op, dtype, gradient, count), "")
            if problem:
                found[f"{name_of(op)} {str(dtype).removeprefix('torch.')}{' gradient' if gradient else ''}"] = problem
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--samples", type=int, default=2)
    arguments = parser.parse_args()
    ops = shard_of(operators(), arguments.shard, arguments.only)
    end, checked, differing = time.monotonic() + arguments.seconds, 0, 0
    for op in ops:
        if time.monotonic() > end:
            break
        found = check(op, (torch.float32, torch.bfloat16), arguments.samples)
        checked += 1
        differing += bool(found)
        for name, problem in found.items():
            print(f"{name}: {problem}", flush=True)
    print(f"{checked} of {len(ops)} ops, {differing} with other bits")
    return bool(differing)


if __name__ == "__main__":
    raise SystemExit(main())
