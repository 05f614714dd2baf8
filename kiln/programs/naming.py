"""Names of a program's inputs: those of the arguments in the signature, those of tensors in the `state_dict`.

def forward(self, x, *, mask)       called with (x, mask=[m])        x, mask[0]
self.layers[0].weight                                                layers.0.weight
a tensor in a closure or a global                                    constant under the name of its variable
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import field
from typing import final

import torch
from torch import nn

from kiln.programs.call.errors import WrongProgramInput
from kiln.programs.call.signature import StateInput
from kiln.programs.call.tree import Tree, flatten
from kiln.support.records import dataclass

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@final
@dataclass(frozen=True, slots=True)
class CallNames:
    """The arguments of a call: their structure, leaves and the names of these; `values` by name.

    `given`: the leaves before some were copied; `bound`: the values by parameter, `**kwargs` as one.
    """

    tree: Tree
    given: list[object]
    leaves: list[object]
    names: list[str]
    parameters: tuple[str, ...]
    values: dict[str, object]
    bound: dict[str, object]

    def arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """The positional arguments and those by name."""
        return rebuilt_call(self.tree, self.leaves)


def call_names(
    signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object], taken: set[int]
) -> CallNames:
    """The names of a call. Leaves that share memory, or an object of `taken` (by `id`), are replaced by copies."""
    tree, given = flatten((tuple(args), dict(kwargs)))
    leaves = separate(given, taken)
    args, kwargs = rebuilt_call(tree, leaves)
    parameters = [name for name, each in signature.parameters.items() if each.kind in POSITIONAL]
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError as problem:
        raise WrongProgramInput(problem=str(problem), reason="the arguments do not fit the signature") from problem
    values: dict[str, object] = {}
    rest = "args"
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            assert isinstance(value, dict)
            values.update(value)
        else:
            values[name] = value
            rest = name if kind is inspect.Parameter.VAR_POSITIONAL else rest
    names: list[str] = []
    for number, child in enumerate(tree.children[0].children):
        extra = number - len(parameters)
        names += child.paths(parameters[number] if extra < 0 else f"{rest}[{extra}]")
    for key, child in zip(tree.children[1].keys, tree.children[1].children, strict=True):
        names += child.paths(str(key))
    return CallNames(tree, given, leaves, names, tuple(parameters), values, dict(bound))


def rebuilt_call(tree: Tree, leaves: list[object]) -> tuple[tuple[object, ...], dict[str, object]]:
    made = tree.build(leaves)
    assert isinstance(made, tuple)
    args, kwargs = made
    return args, kwargs


def separate(leaves: list[object], taken: set[int]) -> list[object]:
    """The leaves, each with memory of its own that begins at offset 0."""
    storages: set[int] = set()
    made: list[object] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel():
            storage = leaf.untyped_storage()._cdata
            if leaf.storage_offset() or storage in storages or id(leaf) in taken:
                copy = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
                leaf = copy.copy_(leaf.detach()).requires_grad_(leaf.requires_grad)
            storages.add(storage)
        made.append(leaf)
    return made


@final
@dataclass
class StateNames:
    """The tensors that a program carries, by the `id` of the tensor; `tied` are further names of one tensor."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    states: dict[int, StateInput] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, tensor: torch.Tensor, state: StateInput) -> None:
        known = self.states.setdefault(id(tensor), state)
        if known is not state:
            if state.persistent:
                self.tied[name] = known.name
            return
        self.tensors[name] = tensor

    def constant(self, wanted: str, tensor: torch.Tensor) -> StateInput:
        """The name of a tensor from elsewhere."""
        found = self.states.get(id(tensor))
        if found is not None:
            return found
        name, count = wanted, 1
        while name in self.tensors or name in self.tied:
            count += 1
            name = f"{wanted}_{count}"
        self.add(name, tensor, StateInput(name, "constant", persistent=False))
        return self.states[id(tensor)]


def state_names(target: object) -> StateNames:
    """Parameters and buffers of a module, or of the module that a method belongs to."""
    owner = target if isinstance(target, nn.Module) else getattr(target, "__self__", None)
    found = StateNames()
    if not isinstance(owner, nn.Module):
        return found
    persistent = set(owner.state_dict(keep_vars=True))
    for name, parameter in owner.named_parameters(remove_duplicate=False):
        found.add(name, parameter, StateInput(name, "parameter", name in persistent))
    for name, buffer in owner.named_buffers(remove_duplicate=False):
        found.add(name, buffer, StateInput(name, "buffer", name in persistent))
    return found
