"""The structure of autograd's graph: what decides which gradients a backward computes, and how.

    MulBackward0   edges, layouts of gradients       `AutogradGraph.structure`, read natively
                   _saved_self = f32[4, 8]           a tensor, by number, and its layout
                   _saved_other = None
    AddmmBackward0 _saved_alpha = 1, _saved_mat1_sym_sizes = (4, 8)

Two graphs of equal key compute the same function of their saved tensors and tangents. A node that keeps something that
cannot be read stays eager, with a reason; so does one that runs Python code, or where gradients are seen on their way.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Protocol, cast, final

import torch

from kiln.native._executor import AutogradGraph
from kiln.support.records import dataclass

LEAF: type = getattr(torch._C._functions, "AccumulateGrad")  # noqa: B009  (torch's stubs lack it)
READABLE = re.compile(r"[A-Za-z0-9_]+Backward\d+(_copy)?|CopyBackwards")
"""Names of the types that torch generates from its table of derivatives: what they save are attributes."""
HIDDEN = frozenset(
    (
        "AsStridedBackward0", "AsStridedBackward1", "AsStridedBackward0_copy", "AsStridedScatterBackward0",
        "BlockDiagBackward0", "NativeDropoutBackward0", "ToDenseBackward0", "ToSparseBackward0", "ToSparseBackward1",
        "ToSparseCsrBackward0", "ToSparseCscBackward0", "ToSparseBsrBackward0", "ToSparseBscBackward0",
        "SparseAddmmBackward0", "SparseMaskBackward0", "SoftmaxBackwardDataBackward0", "LinalgEigBackward0",
    )
)  # fmt: skip
"""Those that keep more than their attributes, their edges and the layouts of gradients tell (a test compares this with
torch's headers): strides of inputs without a gradient, sizes of a list, modes."""
COUNTED = "CatBackward0"
"""It keeps the sizes of all inputs; that of a single one without a gradient follows from the others."""

WRITE = "CopySlices"
"""It checks that its edges are those of the node that it wraps."""


class GradientLayout(Protocol):
    """What a node knows of a gradient that it gets."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class AutogradNode(Protocol):
    """A node of autograd's graph, which can be called with gradients."""

    @property
    def _input_metadata(self) -> tuple[GradientLayout, ...]: ...
    @property
    def next_functions(self) -> tuple[tuple[AutogradNode | None, int], ...]: ...
    def name(self) -> str: ...
    def __call__(self, *gradients: torch.Tensor | None) -> object: ...


PLAIN = (torch.Tensor, torch.nn.Parameter)


@final
@dataclass(frozen=True, slots=True)
class NodeAttributes:
    """`names`: attributes of a type of nodes; `raw`: of those that hold tensors, the name of what was packed."""

    names: tuple[str, ...]
    raw: tuple[str | None, ...]


@final
@dataclass(frozen=True, slots=True)
class Structure:
    """`nodes` in the engine's order; `eager`: for each why it stays eager, or ""; `tensors`: what nodes have saved,
    once each; `saved`: for each node the numbers of its tensors."""

    key: Hashable
    nodes: Sequence[AutogradNode]
    eager: tuple[str, ...]
    tensors: list[torch.Tensor]
    saved: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1024)
def attributes_of(cls: type) -> NodeAttributes | None:
    """What nodes of a type have saved; None if Python cannot see all of it."""
    name = cls.__name__
    known = getattr(torch._C._functions, name, None) is cls and READABLE.fullmatch(name) and name not in HIDDEN
    if not known:
        return None
    names = tuple([found for found in sorted(dir(cls)) if found.startswith("_saved_")])
    raw = tuple([f"_raw{found}" if hasattr(cls, f"_raw{found}") else None for found in names])
    return NodeAttributes(names, raw)


class UnreadableNode(Exception):
    """Why a node stays eager."""


@final
class SavedTensors:
    """The tensors that nodes have saved: views of the same elements are one."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.layouts: list[Hashable] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, tensor: torch.Tensor) -> int:
        """Raises UnreadableNode for a tensor that a plan cannot read."""
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
            raise UnreadableNode(f"it has saved a tensor of {type(tensor).__name__}, {tensor.layout}")
        if tensor.is_conj() or tensor.is_neg() or tensor.is_nested:
            raise UnreadableNode("it has saved a lazy conjugate, a negation or a nested tensor")
        place = tensor.data_ptr(), layout_of(tensor)
        found = self._numbers.get(place)
        if found is None:
            found = self._numbers[place] = len(self.tensors)
            self.tensors.append(tensor)
            self.layouts.append(place[1])
        return found


def layout_of(tensor: torch.Tensor) -> Hashable:
    return tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def read_structure(graph: AutogradGraph) -> Structure:
    """Raises RuntimeError, as eager, where saved tensors were freed or have changed since."""
    nodes, observed = cast(Sequence[AutogradNode], graph.nodes), graph.observed
    table = SavedTensors()
    eager: list[str] = []
    rows: list[Hashable] = []
    saved: list[tuple[int, ...]] = []
    fixed: set[AutogradNode | None] = set()
    for node, seen in zip(nodes, observed, strict=True):
        cls: type = type(node)
        attributes = attributes_of(cls)
        reason, row, numbers = "", (), ()  # type: tuple[str, Hashable, tuple[int, ...]]
        if cls is LEAF:
            pass
        elif seen:
            reason = "a hook or the caller sees its gradient, or the gradient is no plain tensor"
        elif node in fixed:
            reason = "it takes the gradient of a write to a view"
        elif attributes is None:
            reason = "what it computes cannot be read"
        else:
            try:
                row, numbers = read_node(node, attributes, table)
            except UnreadableNode as problem:
                reason = str(problem)
        if cls.__name__ == WRITE:
            fixed.update(following for following, _ in node.next_functions)
        eager.append(reason)
        rows.append((cls if not reason else None, row))
        saved.append(numbers)
    key = graph.structure, tuple(rows), tuple(table.layouts)
    return Structure(key, nodes, tuple(eager), table.tensors, tuple(saved))


def read_node(node: AutogradNode, attributes: NodeAttributes, table: SavedTensors) -> tuple[Hashable, tuple[int, ...]]:
    """The attributes of a node, tensors by number, and these numbers."""
    if type(node).__name__ == COUNTED and sum(edge[0] is None for edge in node.next_functions) > 1:
        raise UnreadableNode("the sizes of several of its inputs are not known")
    row: list[Hashable] = []
    numbers: list[int] = []
    for name, raw in zip(attributes.names, attributes.raw, strict=True):
        if raw is not None and is_packed(getattr(node, raw)):
            raise UnreadableNode("hooks have packed what it has saved")
        value = getattr(node, name)
        parts = value if raw is not None and isinstance(value, tuple) else (value,)
        for part in parts:
            if isinstance(part, torch.Tensor):
                number = table.number(part)
                numbers.append(number)
                row.append(number)
            elif type(part) is int or part is None:
                row.append((part,))
            else:  # by its text, in which 0.0, -0.0, 1 and True differ
                row.append(repr(part))
    return tuple(row), tuple(numbers)


def is_packed(raw: object) -> bool:
    """Whether hooks of the user, or of torch, have packed a saved tensor (or one of several)."""
    if isinstance(raw, tuple):
        return any(map(is_packed, raw))
    return getattr(raw, "unpack_hook", None) is not None
