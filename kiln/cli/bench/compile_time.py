"""`python -m kiln bench --suite compile`: capture of BERT-base, and how the first call grows with depth.

    capture        157 ms with guards, median of 5 (target 200)
    48 layers      1.81 times the first call of 12 (1.81, 1.79, 2.05, ...); kernels 4 and 4

Wall time. Capture is what the events of the stages `capture` and `guards` say, in one process, after a first compile
that does not count. The first calls start from empty caches, g++ included, on models of width 64.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import kiln.api as api
from kiln.cli.bench.results import write_data
from kiln.support.optional import load_required

CAPTURES, PAIRS = 5, 5
SHALLOW, DEEP = 12, 48


def bert(layers: int, width: int) -> nn.Module:
    transformers: Any = load_required("transformers", purpose="the benchmark of compile time")
    config = transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=width // 64, intermediate_size=4 * width
    )
    model: nn.Module = transformers.BertModel(config).eval()
    return model


def capture_seconds(model: nn.Module, tokens: Tensor) -> float:
    api.reset()
    compiled = api.compile(model, options={"cache": False})
    compiled(tokens)
    seconds = api.report_of(compiled).seconds
    return seconds["capture"] + seconds["guards"]


def first_call(layers: int, tokens: Tensor) -> tuple[float, int]:
    """Seconds and kernels; eager has run before, so that torch's libraries have started."""
    model = bert(layers, 64)
    model(tokens)
    api.reset()
    with tempfile.TemporaryDirectory() as folder:
        compiled = api.compile(model, options={"cache_dir": folder})
        start = time.perf_counter()
        compiled(tokens)
        return time.perf_counter() - start, api.report_of(compiled).kernels


def run(threads: int, json: Path | None) -> int:
    torch.set_num_threads(threads)
    tokens, model = torch.randint(0, 30000, (1, 128)), bert(SHALLOW, 768)
    with torch.no_grad():
        captures = [capture_seconds(model, tokens) for _ in range(1 + CAPTURES)][1:]
        print(
            f"capture        {median(captures) * 1e3:.0f} ms with guards, median of {CAPTURES} (target 200)", flush=True
        )
        pairs = [(first_call(SHALLOW, tokens), first_call(DEEP, tokens)) for _ in range(PAIRS)]
    ratios = [deep / shallow for (shallow, _), (deep, _) in pairs]
    (_, few), (_, many) = pairs[0]
    each = ", ".join(f"{one:.2f}" for one in ratios)
    print(
        f"{DEEP} layers      {median(ratios):.2f} times the first call of {SHALLOW} ({each}); kernels {few} and {many}"
    )
    if json is not None:
        write_data(json, {"capture_seconds": captures, "depth_ratios": ratios, "kernels": [few, many]})
    return 0
