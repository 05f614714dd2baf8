"""The operator that launches a Triton kernel of the program.

kiln_triton.launch("models.ops:add_kernel", call, [out], [x, y], [n])
call = {"grids": [[{}, [{"int": 0}, 1]]], "arguments": {"o": {"written": 0}, "n": {"int": 0}, "BLOCK": 64}}

What is the same in each call stands in `call`, as JSON: constants, and where the other arguments are in the lists. An
autotuned kernel has a grid for each of its configurations. A kernel that is no global of its module is known in the
process that captured the launch.
"""

from __future__ import annotations

import importlib
import json
import types
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Protocol, cast

import torch

NAMESPACE = "kiln_triton"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
LIBRARY.define("launch(str kernel, str call, Tensor(a!)[] written, Tensor[] read, SymInt[] ints) -> ()")


class TritonKernel(Protocol):
    """What Triton's decorators make of a function."""

    fn: TritonKernel | types.FunctionType
    arg_names: Sequence[str]
    run: Callable[..., object]

    def __getitem__(self, grid: object) -> Callable[..., object]: ...


KERNELS: dict[str, TritonKernel] = {}
"""By name, those that were captured in this process."""


def kernel_at(path: str) -> TritonKernel:
    module, _, name = path.partition(":")
    return cast(TritonKernel, reduce(getattr, name.split("."), importlib.import_module(module)))


parsed = lru_cache(maxsize=1024)(json.loads)


def launch(
    kernel: str, call: str, written: Sequence[torch.Tensor], read: Sequence[torch.Tensor], ints: Sequence[int]
) -> None:
    lists: Mapping[str, Sequence[object]] = {"written": written, "read": read, "int": ints}

    def real(given: object) -> object:
        if not isinstance(given, dict):
            return given
        ((kind, value),) = given.items()
        return importlib.import_module("triton.language").dtype(value) if kind == "dtype" else lists[kind][value]

    def grid(meta: Mapping[str, object]) -> tuple[object, ...]:
        sizes = [sizes for config, sizes in described["grids"] if all(meta[name] == config[name] for name in config)]
        return tuple(map(real, sizes[0]))

    described = parsed(call)
    found = KERNELS.get(kernel) or kernel_at(kernel)
    found[grid](**{name: real(given) for name, given in described["arguments"].items()})


LIBRARY.impl("launch", launch, "CompositeExplicitAutograd")
