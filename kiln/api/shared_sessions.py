"""Equal modules share their compiled variants: parameters are arguments, so one compile serves all of them.

    for block in model.layers:
        block.forward = kiln.compile(block.forward)      one compile for 57 equal blocks
    pool = [kiln.compile(Net()) for _ in range(20)]      one compile, and one report
    steps = [kiln.compile(optimizer.step) for ...]       one compile for optimizers of equal models

Modules are equal here if their trees have the same classes, the same plain attributes, the same other objects, and the
same layouts of parameters and buffers when they are compiled; optimizers, if their classes, options and layouts of
parameters are. That only groups them: whether a variant fits one of them, its guards say. A module that is changed
later gets variants of its own, for which the session has room. What is compiled once more gets a session of its own.

Not shared: CUDA graphs, which are recorded for the memory of one module; a user's backend; what is dumped or verified.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from types import FunctionType, MethodType
from typing import final
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from kiln.native._frames import Dispatcher
from kiln.pipeline.session import CompileSession, SessionSettings
from kiln.support.options import Options

PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)
OWN = frozenset(nn.Module().__dict__)
"""Attributes that each module has."""


@final
class SharedDispatchers:
    """The dispatchers of functions of modules that live, by function, structure of the module, and settings."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, Dispatcher] = WeakValueDictionary()
        self._alone: WeakValueDictionary[Hashable, Dispatcher] = WeakValueDictionary()
        """By function and settings: the first one, until a second owner makes it worthwhile to read a structure."""

    def find(
        self,
        owner: nn.Module | Optimizer,
        function: FunctionType,
        settings: SessionSettings,
        make: Callable[[], Dispatcher],
    ) -> Dispatcher:
        """The dispatcher of `function` for objects like `owner`; `make` is called where there is none."""
        if not is_shareable(settings) or not is_hashable(owner):
            return make()
        if self._is_first(function, settings):
            found = self._alone[function, settings] = make()
        else:
            key = function, structure_of(owner), settings
            known = self._known.get(key)
            if known is not None and owner not in session_of(known).owners:
                found = known
            else:
                found = self._known[key] = make()
        session_of(found).owners.add(owner)
        return found

    def _is_first(self, function: FunctionType, settings: SessionSettings) -> bool:
        """Whether there is no other dispatcher of `function`; a first one is moved among those of known structure."""
        first = self._alone.pop((function, settings), None)
        if first is None:
            return not any(key[0] is function and key[2] == settings for key in self._known)  # type: ignore[index]
        for owner in session_of(first).owners:
            assert isinstance(owner, nn.Module | Optimizer)
            self._known[function, structure_of(owner), settings] = first
        return False

    def clear(self) -> None:
        self._known.clear()
        self._alone.clear()


def session_of(dispatcher: Dispatcher) -> CompileSession:
    session: CompileSession = dispatcher.__dict__["session"]
    return session


def is_shareable(settings: SessionSettings) -> bool:
    options: Options = settings.options
    plain = settings.backend is None and settings.dump_folder is None
    return plain and not options.cuda_graphs and options.verify == "off"


def is_hashable(owner: nn.Module | Optimizer) -> bool:
    """Whether it and its modules can be compared by identity: a class with `__eq__` may have no `__hash__`."""
    if type(owner).__hash__ is None:
        return False
    parts = owner._modules.values() if isinstance(owner, nn.Module) else ()
    return all(part is None or is_hashable(part) for part in parts)


def structure_of(owner: nn.Module | Optimizer) -> Hashable:
    return tuple(structure(owner) if isinstance(owner, nn.Module) else optimizer_structure(owner))


def structure(module: nn.Module) -> Iterator[Hashable]:
    """What equal modules have in common."""
    for path, part in module.named_modules(remove_duplicate=False):
        yield path, type(part), part.training
        for name, value in part.__dict__.items():
            if name not in OWN and not isinstance(value, MethodType):
                yield name, contents(value)
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                yield name, None if tensor is None else layout(tensor)


def optimizer_structure(optimizer: Optimizer) -> Iterator[Hashable]:
    yield id(type(optimizer))  # the type of an optimizer is no Hashable to a type checker
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name == "params":
                yield tuple(map(layout, value))
            else:
                yield name, layout(value) if isinstance(value, torch.Tensor) else contents(value)


def contents(value: object) -> Hashable:
    """Equal for equal plain values and sequences of them, else for the same object."""
    if type(value) in PLAIN:
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value), tuple(map(contents, value))
    return id(value)


def layout(tensor: torch.Tensor) -> Hashable:
    if type(tensor) not in (torch.Tensor, nn.Parameter):
        return type(tensor), id(tensor)
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad
