"""Guards on all of a module, as the interpreter would make them; for tests and measurements."""

from __future__ import annotations

import torch

from kiln.runtime.guards.constant import reference
from kiln.runtime.guards.guard import Guard, GuardKind, tensor_expectation
from kiln.runtime.guards.source import DictAttrSource, ItemSource, LocalSource, Source
from kiln.runtime.guards.state import current_state

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def state_guard() -> Guard:
    return Guard(LocalSource("x"), GuardKind.GLOBAL_STATE, current_state())


def tensor_guard(source: Source, tensor: torch.Tensor) -> Guard:
    return Guard(source, GuardKind.TENSOR, tensor_expectation(tensor))


def module_guards(module: torch.nn.Module, source: Source) -> tuple[list[Guard], list[Source]]:
    """Guards on `module` and all below it, and the sources of its parameters and buffers."""
    guards = [Guard(source, GuardKind.TYPE_IS, reference(type(module)))]
    guards.append(Guard(DictAttrSource(source, "training"), GuardKind.EQUALS, module.training))
    guards.append(Guard(DictAttrSource(source, "forward"), GuardKind.ABSENT))
    guards += [Guard(DictAttrSource(source, hook), GuardKind.EMPTY_DICT) for hook in HOOKS]
    collect: list[Source] = []
    for name in ("_parameters", "_buffers", "_modules"):
        held = getattr(module, name)
        base = DictAttrSource(source, name)
        guards.append(Guard(base, GuardKind.DICT_KEYS, tuple(held)))
        for key, value in held.items():
            item = ItemSource(base, key)
            if isinstance(value, torch.nn.Module):
                inner, more = module_guards(value, item)
                guards += inner
                collect += more
            elif value is None:
                guards.append(Guard(item, GuardKind.IS_NONE))
            else:
                guards.append(tensor_guard(item, value))
                collect.append(item)
    return guards, collect
