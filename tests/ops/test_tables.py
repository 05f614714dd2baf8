"""The tables of rules: their keys are overloads that exist, and the coverage text counts them."""

import torch
import torch.distributed._functional_collectives
from torch._ops import OpOverload

from kiln.graph.ops import DECOMPOSITIONS, INPLACE, LIBRARY, MUTATIONS, VIEWS
from kiln.graph.trace.data_dependent import EXTENDED
from kiln.graph.trace.special import SPECIAL
from tests.ops.coverage import TABLES, coverage_text, rows

OTHER_TORCH = {
    "aten.sym_is_contiguous.default", "aten._fused_rms_norm.default", "aten._fused_rms_norm_backward.default",
}  # fmt: skip
"""Overloads that not every torch from 2.11 to 2.15 has."""


def exists(name):
    namespace, base, overload = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return isinstance(getattr(packet, overload, None), OpOverload)


def test_every_rule_is_of_an_overload_that_exists():
    names = {name for table in (DECOMPOSITIONS, LIBRARY, MUTATIONS, VIEWS) for name in table}
    names |= {name if name.count(".") == 2 else f"aten.{name}" for name in SPECIAL}
    names |= {name for pair in ((key, INPLACE.get(key)) for key in INPLACE) for name in pair}
    assert sorted(name for name in names - OTHER_TORCH if not exists(name)) == []


def test_an_overload_has_one_rule():
    seen = {}
    for kind, table in TABLES:
        for name in table:
            if kind == "decomposition" and name.removeprefix("aten.") in EXTENDED:
                continue
            assert name not in seen, f"{name} is in {seen[name]} and in {kind}"
            seen[name] = kind


def test_coverage():
    table = rows()
    known = [row for row in table if row.kind and row.kind != "composite"]
    assert len(known) >= 1000
    assert coverage_text().splitlines()[0].startswith(f"{len(table)} ATen overloads")
