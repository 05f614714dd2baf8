"""What a backend says that it takes, by operator and dtype, and whether it computes that as eager does."""

from __future__ import annotations

from collections import defaultdict

import torch

from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.verify import verify
from kiln.graph.offload.part import GraphBackend, GraphPart
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.tensor.dtypes import DTYPE_NAMES
from tests.graph.ir.samples import SAMPLES, sample_graph

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32)
FIXED = ("convert", "bitcast", "view_dtype", "constant", "iota")
"""Their attributes are for one dtype."""
ANY = (Kind.POINTWISE, Kind.REDUCTION, Kind.VIEW, Kind.DATA_MOVEMENT)


def samples_of(name: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Inputs by dtype: those of the op's sample, converted."""
    inputs, op = SAMPLES[name].make(), PRIMS[name]
    kinds = {tensor.dtype for tensor in inputs}
    found = {DTYPE_NAMES[inputs[-1].dtype] if inputs else "any": inputs}
    if len(kinds) != 1 or name in FIXED or op.kind not in ANY or torch.bool in kinds:
        return found
    for dtype in DTYPES:
        on_bits = "bitwise" in name or "shift" in name
        allowed = not on_bits if dtype.is_floating_point else not op.floating
        if dtype not in kinds and allowed:
            found[DTYPE_NAMES[dtype]] = tuple([tensor.to(dtype) for tensor in inputs])
    return found


def taken(backend: GraphBackend) -> str:
    """The table of what it takes; raises where a result differs from eager's."""
    lines: dict[str, list[str]] = defaultdict(list)
    wrong = []
    for name in SAMPLES:
        dtypes = []
        for dtype, inputs in samples_of(name).items():
            graph, _ = sample_graph(name, inputs)
            verify(graph, "sample")
            reasons = [reason for node in graph.nodes if (reason := backend.refusal(node))]
            if reasons:
                continue
            dtypes.append(dtype)
            try:
                (found,) = backend.compile(GraphPart(graph, (), {}, {}))(inputs, ())
                torch.testing.assert_close(found, interpret(graph, list(inputs)).outputs[0], equal_nan=True)
            except Exception as problem:  # of any kind that the library raises
                wrong.append(f"{name} of {dtype}: {problem}")
        lines[" ".join(dtypes) or "not taken"].append(name)
    assert not wrong, "\n".join(wrong)
    return "\n".join(f"{dtypes}: {', '.join(names)}" for dtypes, names in lines.items())
