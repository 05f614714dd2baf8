"""How the recorder handles each ATen overload: a text made from the tables.

    decomposition   aten.silu.default
    library         aten.mm.default
    in place        aten.add_.Tensor        through aten.add.Tensor
    composite       aten.linear.default

`python -m tests.ops.coverage` prints it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch._ops import OpOverload

from kiln.graph.ops import DECOMPOSITIONS, LIBRARY, MUTATIONS, VIEWS
from kiln.graph.trace.fake import QUERIES
from kiln.graph.trace.foreach import foreach_handler
from kiln.graph.trace.resolve import functional_rule, mutable_rule
from kiln.graph.trace.special import SPECIAL

# fmt: off
TABLES = (
    ("special",       SPECIAL),
    ("query",         QUERIES),
    ("view",          VIEWS),
    ("mutation",      MUTATIONS),
    ("decomposition", DECOMPOSITIONS),
    ("library",       LIBRARY),
)
# fmt: on


@final
@dataclass(frozen=True, slots=True)
class OverloadCoverage:
    """How an overload is recorded. `kind` is "" if it is probed or breaks the graph."""

    name: str
    kind: str
    through: str = ""


def overloads() -> Iterator[OpOverload]:
    """All ATen overloads of this torch."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::"):
            base, _, overload = name.removeprefix("aten::").partition(".")
            found = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
            if isinstance(found, OpOverload):
                yield found


def coverage_of(op: OpOverload) -> OverloadCoverage:
    name = str(op)
    for kind, table in TABLES:
        if name in table:
            return OverloadCoverage(name, kind)
    if op._schema.is_mutable and (found := mutable_rule(op, name)):
        return OverloadCoverage(name, "in place" if found.in_place else "out", found.functional)
    if op._can_decompose():
        return OverloadCoverage(name, "composite")
    if foreach_handler(op, functional_rule):
        return OverloadCoverage(name, "foreach")
    if "_copy." in name and name.replace("_copy.", ".") in VIEWS:
        return OverloadCoverage(name, "view copy")
    return OverloadCoverage(name, "")


def rows() -> list[OverloadCoverage]:
    return [coverage_of(op) for op in overloads()]


def coverage_text() -> str:
    """Counts by kind, then a line per handled overload."""
    table = rows()
    counts = Counter(row.kind or "probe or break" for row in table)
    lines = [f"{len(table)} ATen overloads of torch {torch.__version__}"]
    lines += [f"{count:6}  {kind}" for kind, count in counts.most_common()]
    lines += [""]
    handled = sorted((row for row in table if row.kind), key=lambda row: (row.kind, row.name))
    lines += [f"{row.kind:14} {row.name}{f'   through {row.through}' if row.through else ''}" for row in handled]
    return "\n".join(lines)


if __name__ == "__main__":
    print(coverage_text())
