"""What Kiln knows of each ATen overload: one rule per name, in tables by the kind of rule.

    @decompose("aten.silu.default")
    def silu(e: Emit, x: Node) -> Node:
        return e.pointwise("mul", x, e.pointwise("sigmoid", x))

* DECOMPOSITIONS: `rule(e, *args, **kwargs)` gives nodes for nodes. Tensors arrive as nodes, sizes as `Int`.
* VIEWS: `rule(e, spec, *args)` gives the steps (view prims) from the tensor to its view, or a list of such.
* MUTATIONS: like a decomposition, but gives `Effects`: the results, and new contents for arguments.
* INPLACE: the functional overload behind an in-place one whose name does not tell.

Keys are the names that `str(overload)` gives: resolving an overload costs 30 us, and not every torch has every one.
In-place and `out=` overloads need no rule: `graph/trace` derives them from the functional one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

from kiln.graph.ir.node import Node

F = TypeVar("F", bound=Callable[..., Any])
Step = tuple[str, dict[str, Any]]
"""A view prim and its attributes."""


@final
@dataclass(frozen=True, slots=True)
class Effects:
    """What a mutating op does: its results, and new contents for arguments (by position or name)."""

    results: Any
    writes: dict[int | str, Node] = field(default_factory=dict)


class Rules:
    """Overload name -> rule; a name has one rule."""

    def __init__(self, name: str, meaning: str) -> None:
        self.name, self.meaning = name, meaning
        self._rules: dict[str, Any] = {}

    def __call__(self, *names: str) -> Callable[[F], F]:
        """Decorator: the rule of these overloads; a name without `aten.` is one of ATen's."""

        def fill(rule: F) -> F:
            for name in names:
                self[name] = rule
            return rule

        return fill

    def __setitem__(self, name: str, rule: Any) -> None:
        key = name if name.count(".") == 2 else f"aten.{name}"
        if key in self._rules:
            raise KeyError(f"{self.name} has a rule for {key} already")
        self._rules[key] = rule

    def get(self, name: str) -> Any | None:
        return self._rules.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._rules

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)


DECOMPOSITIONS = decompose = Rules("decompositions", "nodes for nodes")
LIBRARY = Rules("library", "left to an ATen kernel; the rule predicts specs")
VIEWS = view = Rules("views", "steps to a view of the first argument")
MUTATIONS = mutation = Rules("mutations", "results and new contents of arguments")
INPLACE = Rules("inplace", "the functional overload behind an in-place one")


def library(*names: str) -> Callable[[F], F]:
    """Decorator: these overloads stay ATen steps; the rule gives the specs of their results."""

    def fill(rule: F) -> F:
        for name in names:
            LIBRARY[name] = rule
        return rule

    return fill
