"""Which operators a program from a file may call: functional ATen overloads, and libraries that the caller names.

aten.mm.default          yes
aten.add_.Tensor         no: it writes to its arguments
aten.from_file.default   no: it reads a file
mylib.scale.default      with kiln.load_program(path, libraries=("mylib",))
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch._ops import OpOverload

from kiln.graph.ir.graph import Graph
from kiln.graph.ops.registry import LIBRARY
from kiln.graph.prims.table import Kind
from kiln.plan.overloads import find_overload

REFUSED = frozenset({"from_file", "set_data", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""They read files, or memory that nobody has written."""


def called_overloads(graph: Graph) -> Iterator[str]:
    """The names of the overloads that nodes call, those of nested graphs too."""
    for node in graph.nodes:
        if node.op.kind in (Kind.LIBRARY, Kind.EFFECT) and "target" in node.attrs:
            yield str(node.attrs["target"])
        for value in node.attrs.values():
            if isinstance(value, Graph):
                yield from called_overloads(value)


def refusal(target: str, libraries: Collection[str]) -> str:
    """Why a program may not call this overload; "" if it may."""
    namespace, _, rest = target.partition(".")
    name = rest.partition(".")[0]
    if target in LIBRARY:
        return ""
    if namespace != "aten":
        return "" if namespace in libraries else f"the library `{namespace}` is not among those allowed"
    overload = find_overload(target)
    if not isinstance(overload, OpOverload):
        return "it is not an operator"
    if overload._schema.is_mutable:
        return "it writes to its arguments"
    if name in REFUSED or (name.startswith("_") and torch.Tag.core not in overload.tags):
        return "it is internal to torch, or reads files or memory"
    if any("Tensor" not in str(result.type) for result in overload._schema.returns):
        return "it returns something else than tensors"
    return ""
