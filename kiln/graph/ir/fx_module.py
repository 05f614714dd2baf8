"""A `torch.fx.GraphModule` that leaves nothing behind when it dies.

torch.fx keeps the source text of every module it generated, in its loader and in `linecache`, as long as the process
runs: about a kilobyte per graph. The text goes with the module here.
"""

from __future__ import annotations

import linecache
import weakref
from typing import Any

import torch.fx
from torch.fx import graph_module as fx_graph_module


def graph_module(root: Any, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """The module of `graph`; `root` has its attributes."""
    module = torch.fx.GraphModule(root, graph)
    code = getattr(type(module).forward, "__code__", None)
    if code is not None:
        weakref.finalize(module, forget_source, code.co_filename).atexit = False
    return module


def forget_source(name: str) -> None:
    """Drop the source text that torch.fx keeps under `name`."""
    linecache.cache.pop(name, None)
    kept = getattr(getattr(fx_graph_module, "_loader", None), "eval_cache", {})
    kept.pop(name, None)
