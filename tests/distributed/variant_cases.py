"""More cases on DDP: buckets, a hook of the communication, a static graph, around and in the compiled module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

import kiln
from tests.distributed.wrapper_cases import data_parallel, equal

CASES: dict[str, Callable[[int, int], None]] = {}
OPTIONS: dict[str, dict[str, bool]] = {
    "ddp": {},
    "ddp_buckets": {"gradient_as_bucket_view": True},
    "ddp_hook": {"hook": True},
    "ddp_static": {"static_graph": True, "find_unused_parameters": False},
}


def outside(model: nn.Module, **options: bool) -> nn.Module:
    return kiln.compile(data_parallel(model, **options))


def inside(model: nn.Module, **options: bool) -> nn.Module:
    return data_parallel(kiln.compile(model), **options)


for _name, _options in OPTIONS.items():
    for _wrap in (outside, inside):
        _wraps = [partial(wrap, **_options) for wrap in (data_parallel, _wrap)]
        CASES[f"{_name}_{_wrap.__name__}"] = equal(*_wraps)
