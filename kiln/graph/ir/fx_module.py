"""A `torch.fx.GraphModule` whose generated source is freed with it.

torch.fx keeps the source text of each generated module in its loader and in `linecache` for the life of the process:
about a kilobyte per graph.
"""

from __future__ import annotations

import linecache
import weakref

import torch.fx
from torch.fx import graph_module as fx_graph_module


def graph_module(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """The module of `graph`, with the attributes of `root`."""
    module = torch.fx.GraphModule(root, graph)
    for made in module.modules():  # those inside have been generated again, under other names
        code = getattr(type(made).forward, "__code__", None)
        if isinstance(made, torch.fx.GraphModule) and code is not None:
            weakref.finalize(made, forget_source, code.co_filename).atexit = False
    return module


def forget_source(name: str) -> None:
    """Drop the source text that torch.fx keeps under `name`."""
    linecache.cache.pop(name, None)
    kept = getattr(getattr(fx_graph_module, "_loader", None), "eval_cache", {})
    kept.pop(name, None)
