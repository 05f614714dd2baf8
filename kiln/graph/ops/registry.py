"""The rules of ATen overloads, in tables by the kind of rule.

    @decompose("silu.default")
    def silu(e: Emit, x: Node) -> Node:
        return e.pointwise("mul", x, e.pointwise("sigmoid", x))

* DECOMPOSITIONS: `rule(e, *args, **kwargs)` returns nodes. Tensors arrive as nodes, sizes as `Int`.
* LIBRARY: the overload stays an ATen call; the rule returns the specs of its results.
* VIEWS: `rule(e, spec, *args)` returns the steps (view prims) from the tensor to its view, or a list of such.
* MUTATIONS: like a decomposition, but returns `Effects`: the results, and new contents of arguments.
* INPLACE: the functional overload of an in-place one, where their names differ.

Keys are the names from `str(overload)`: resolving an overload costs 30 us, and not every torch has all.
In-place and `out=` overloads need no rule: `graph/trace` derives them from the functional overload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TypeVar, Union, final

from kiln.graph.ir.node import Attr, Node
from kiln.graph.prims.table import Cells
from kiln.support.records import dataclass
from kiln.symbolic import Int
from kiln.tensor.spec import Spec

Rule = TypeVar("Rule")
ViewStep = tuple[str, dict[str, Attr]]
"""A view prim and its attributes."""
ViewSteps = tuple[ViewStep, ...]
Results = Union[Node, Int, None, Sequence["Results"]]  # noqa: UP007
"""What a decomposition returns; None where eager returns no tensor."""


@final
@dataclass(frozen=True, slots=True)
class Effects:
    """The results of a mutating op, and new contents of arguments (by position or name)."""

    results: Results
    writes: dict[int | str, Node] = field(default_factory=dict)


Decomposition = Callable[..., Results]
SpecRule = Callable[..., Spec]
ViewRule = Callable[..., ViewSteps | list[ViewSteps]]
MutationRule = Callable[..., Effects]


class RuleTable(Cells[Rule]):
    """Overload name -> rule; the prefix `aten.` may be left out when a rule is added."""

    def key(self, name: str) -> str:
        return name if name.count(".") == 2 else f"aten.{name}"


DECOMPOSITIONS = decompose = RuleTable[Decomposition]("decompositions")
LIBRARY = library = RuleTable[SpecRule]("library")
VIEWS = view = RuleTable[ViewRule]("views")
MUTATIONS = mutation = RuleTable[MutationRule]("mutations")
INPLACE = RuleTable[str]("inplace")
