"""`python -m kiln bench --suite compile`: capture of BERT-base, and how the first call grows with depth.

    capture        157 ms with guards, median of 5 (target 200)
    opcodes        2.5 us each of the 48584 that Python runs, 1.1 us in a loop of plain Python (target 3)
    48 layers      1.81 times the first call of 12 (1.81, 1.79, 2.05, ...); kernels 4 and 4

Wall time. Capture is the time of the stages `capture` and `guards` in one process, after a warm-up compile. First calls
start with empty caches, g++ included, on models of width 64.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

import kiln.api as api
from kiln.support.optional import load_required
from kiln_bench.results import write_data

CAPTURES, PAIRS = 5, 5
TURNS = 1000
SHALLOW, DEEP = 12, 48


def bert(layers: int, width: int) -> nn.Module:
    transformers = load_required("transformers", purpose="the benchmark of compile time")
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


def opcodes_of(run: Callable[[], object]) -> int:
    """The opcodes that CPython runs, callees included."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def plain_python(x: Tensor, turns: int) -> Tensor:
    """Numbers, attributes, a list and branches; one call of torch."""
    total, seen = 0, [0]
    for number in range(turns):
        if number % 3 == 0:
            total = total + number
        else:
            seen.append(total)
    return x + len(seen)


def seconds_per_opcode() -> float:
    """Seconds per opcode of plain Python: the cost of more iterations of a loop."""
    x = torch.zeros(1)

    def seconds(turns: int) -> float:
        found = []
        for _ in range(1 + CAPTURES):
            api.reset()
            compiled = api.compile(plain_python, options={"cache": False})
            compiled(x, turns)
            found.append(api.report_of(compiled).seconds["capture"])
        return median(found[1:])

    opcodes = opcodes_of(lambda: plain_python(x, TURNS)) - opcodes_of(lambda: plain_python(x, 0))
    return (seconds(TURNS) - seconds(0)) / opcodes


def first_call(layers: int, tokens: Tensor) -> tuple[float, int]:
    """Seconds and kernels; eager runs before, to initialise torch's libraries."""
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
        opcodes, each = opcodes_of(lambda: model(tokens)), seconds_per_opcode()
        print(
            f"capture        {median(captures) * 1e3:.0f} ms with guards, median of {CAPTURES} (target 200)", flush=True
        )
        print(
            f"opcodes        {median(captures) / opcodes * 1e6:.1f} us each of the {opcodes} that Python runs, "
            f"{each * 1e6:.1f} us in a loop of plain Python (target 3)",
            flush=True,
        )
        pairs = [(first_call(SHALLOW, tokens), first_call(DEEP, tokens)) for _ in range(PAIRS)]
    ratios = [deep / shallow for (shallow, _), (deep, _) in pairs]
    (_, few), (_, many) = pairs[0]
    listed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    times = f"{median(ratios):.2f} times the first call of {SHALLOW} ({listed})"
    print(f"{DEEP} layers      {times}; kernels {few} and {many}")
    if json is not None:
        found = {"capture_seconds": captures, "opcodes": opcodes, "seconds_per_plain_opcode": each}
        write_data(json, {**found, "depth_ratios": ratios, "kernels": [few, many]})
    return 0
