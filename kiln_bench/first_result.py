"""A process of `starts.py`: loads what a folder has of one kind and calls it; prints seconds of calls, and two times.

python -m kiln_bench.first_result package folder 20
"""

from __future__ import annotations

import itertools
import sys
import time
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """A model whose results are a tuple of tensors, so that no process has to know their class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple([value for value in self.model(**inputs).values() if isinstance(value, Tensor)])


def main() -> None:
    kind, folder, calls = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    if kind == "eager":
        run = torch.load(folder / "model.pt", weights_only=False, mmap=True)
    elif kind == "package":
        run = import_module("kiln").load(folder / "package.kiln")
    else:
        run = import_module("torch._inductor").aoti_load_package(str(folder / "package.pt2"))
    args, kwargs = torch.load(folder / "inputs.pt", weights_only=False)
    times = [time.time()]
    with torch.no_grad():
        for _ in range(calls + 1):
            run(*args, **kwargs)
            times.append(time.time())
    largest = next(line for line in Path("/proc/self/status").read_text().split("\n") if line.startswith("VmHWM"))
    print(*[end - start for start, end in itertools.pairwise(times[1:])], times[0], times[1], largest.split()[1])


if __name__ == "__main__":
    main()
