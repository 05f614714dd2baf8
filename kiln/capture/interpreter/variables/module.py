"""nn.Module, modelled natively: calls and lookup of parameters, buffers and sub-modules.

    self.dense(x)     `dense` in `_modules`: source self.__dict__['_modules']['dense']; no hooks (guarded): its
                      `forward` is inlined, torch's `_wrapped_call_impl` and `_call_impl` are not interpreted
    self.weight       `weight` in `_parameters`: an input of the region

With hooks, torch's own `_call_impl` is interpreted like any Python function.
"""

from __future__ import annotations

from dataclasses import field
from typing import final

import torch
from torch.nn.modules import module as torch_module

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import (
    MISSING,
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Kwargs,
    Value,
    handles,
    wraps,
)
from kiln.capture.interpreter.effects import contents_key
from kiln.capture.interpreter.repeated_layers.repeat import call_repeatable
from kiln.capture.interpreter.variables.hooked_nodes import HookedNodes, may_run_backward
from kiln.capture.interpreter.variables.mapping import Dict, may_hold
from kiln.capture.interpreter.variables.object import MODELLED_GETATTR, MODELLED_SETATTR, Object, guard_protocol
from kiln.capture.interpreter.variables.tensor import Tensor, here
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import TWIN_OF, TwinOf
from kiln.runtime.guards.source import AttrSource, DictAttrSource, ModuleGlobalSource, Source, TypeSource
from kiln.support.records import dataclass

MEMBERS = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    *("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks"),
)
CALL = torch_module.Module.__call__


@final
@dataclass
class ModuleTables:
    """What was guarded of modules in one capture, by `id` of their values."""

    hooked: dict[int, bool] = field(default_factory=dict)
    """Whether a module had hooks when it was first called."""
    absent: set[tuple[int, str]] = field(default_factory=set)
    """Members that are guarded not to be shadowed by the instance's dict."""
    global_hooks: bool = False


def module_getattr(s: CaptureState, value: Object, name: str) -> Value | None:
    """`nn.Module.__getattr__`, where its members are dicts or missing."""
    for member in MEMBERS:
        content = value.instance_attr(s, member)
        if content is None:
            continue
        if not isinstance(content, Dict):
            return None
        found = content.find(s, name)
        if found is not None:
            absent = s.part(ModuleTables).absent
            if value.source is not None and (id(value), name) not in absent and not value.had_attr(name):
                absent.add((id(value), name))
                s.guard(DictAttrSource(value.source, name), GuardKind.ABSENT)
            s.class_lacks(value, name)
            return found
    if not value.had_attr(name):
        s.guard(value.source, GuardKind.NO_ATTR, name)
    raise s.error(AttributeError, f"'{value.type_name()}' object has no attribute '{name}'")


def module_setattr_is_plain(s: CaptureState, value: Object, name: str, new: Value) -> bool:
    """Whether `nn.Module.__setattr__` only writes the instance dict: nothing but plain data is involved."""
    if value.original is MISSING or issubclass(new.python_type(), (torch.nn.Module, torch.nn.Parameter)):
        return False
    if isinstance(getattr(new, "original", None), (torch.nn.Parameter, torch.nn.Buffer)):
        return False
    content = value.original.__dict__
    tables = [content.get(member, {}) for member in MEMBERS]
    if not all(isinstance(table, dict) for table in tables) or any(name in table for table in tables):
        return False
    known = [value.attrs.get(member) for member in MEMBERS]
    known += [s.identities.objects.get(id(table)) for table in tables]  # reached on paths of their own
    return not any(isinstance(members, Dict) and may_hold(members, name) for members in known)


CALL_IMPLEMENTATION = torch_module.Module._call_impl
MODELLED_GETATTR[torch_module.Module.__getattr__] = module_getattr
MODELLED_SETATTR[torch_module.Module.__setattr__] = module_setattr_is_plain


@handles(CALL)
def call_unbound(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`nn.Module.__call__(module, *args)`."""
    module, rest = args[0], args[1:]
    assert isinstance(module, Object)
    return call_forward(s, module, rest, kwargs, NOT_RESUMABLE)


def call_forward(s: CaptureState, module: Object, args: Args, kwargs: Kwargs, site: CallSite) -> Value:
    """What `nn.Module.__call__` does."""
    if not has_hooks(s, module):
        return module.get_attr(s, "forward").call(s, args, kwargs, site)
    nodes, watched = s.part(HookedNodes), is_watched_leaf(module, args)
    if watched and not may_run_backward(s):
        raise UnsupportedCall(function=module.type_name(), why="the backward calls its hooks")
    implementation = s.classes.lookup(module.python_type(), "_call_impl")
    assert implementation is not None
    outer, nodes.whole = nodes.whole, here(s) if watched else None
    result = s.class_attr(module, "_call_impl", implementation[1]).call(s, [module, *args], kwargs, site)
    nodes.whole = outer
    return result


def is_watched_leaf(module: Object, args: Args) -> bool:
    """Whether autograd will call hooks of a module without parts. Each of the calls that torch makes around its
    `forward` would break the graph: it is called in Python as a whole."""
    content = module.original.__dict__ if module.original is not MISSING else {}
    if not (content.get("_backward_hooks") or content.get("_backward_pre_hooks")) or content.get("_modules"):
        return False
    given = [arg.fake for arg in args if isinstance(arg, Tensor)]
    used = [tensor for tensor in (*given, *content["_parameters"].values()) if tensor is not None]
    return torch.is_grad_enabled() and any([tensor.requires_grad for tensor in used])


def has_hooks(s: CaptureState, module: Object) -> bool:
    """Guarded once per module."""
    known = s.part(ModuleTables).hooked
    hooked = known.get(id(module))
    if hooked is None:
        hooked = known[id(module)] = _look_for_hooks(s, module)
    return hooked or (s.effects.wrote_outside and _changed_hooks(s, module))


def _changed_hooks(s: CaptureState, module: Object) -> bool:
    """Whether the program added or removed hooks of this module, or of all modules, in the frame."""
    dicts = [module.instance_attr(s, name) for name in HOOKS]
    dicts += [s.identities.objects.get(id(getattr(torch_module, name))) for name in GLOBAL_HOOKS]
    return any(hooks is not None and s.effects.find(contents_key(hooks)) is not None for hooks in dicts)


def is_torchs_own(s: CaptureState, module: Object) -> bool:
    """Whether what `nn.Module.__call__` calls is torch's."""
    found = s.classes.lookup(module.python_type(), "_call_impl")
    return found is not None and found[1] is CALL_IMPLEMENTATION


def _look_for_hooks(s: CaptureState, module: Object) -> bool:
    content = module.original.__dict__ if module.original is not MISSING else {}
    if module.original is MISSING or any(content.get(name, True) for name in HOOKS):
        return True
    if any(getattr(torch_module, name) for name in GLOBAL_HOOKS) or content.get("_compiled_call_impl"):
        return True
    s.guard_type(module)
    if not is_torchs_own(s, module):
        return True
    if module.source is not None:
        for name in HOOKS:
            s.guard(DictAttrSource(module.source, name), GuardKind.EMPTY_DICT)
    tables = s.part(ModuleTables)
    if not tables.global_hooks:
        tables.global_hooks = True
        for name in GLOBAL_HOOKS:
            s.guard(ModuleGlobalSource(torch_module.__name__, name), GuardKind.EMPTY_DICT)
    return False


@final
class Module(Object):
    """An nn.Module from outside."""

    __slots__ = ()

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        return call_repeatable(s, self, args, kwargs, lambda: interpret_call(s, self, args, kwargs, site))


def interpret_call(s: CaptureState, module: Module, args: Args, kwargs: Kwargs, site: CallSite) -> Value:
    """`module(*args, **kwargs)`, opcode by opcode."""
    found = s.classes.lookup(module.cls, "__call__")
    if found is not None and (found[1] is CALL or is_plain_graph(module.cls)):
        guard_protocol(s, module, "__call__")
        return call_forward(s, module, args, kwargs, site)
    return s.call_special(module, "__call__", args, kwargs, site)


def is_plain_graph(cls: type) -> bool:
    """Whether torch.fx made `__call__` of a class, around that of `nn.Module`: it explains errors."""
    wrapped = vars(cls).get("_wrapped_call") if issubclass(cls, torch.fx.GraphModule) else None
    return wrapped is not None and wrapped.cls_call is None


@wraps(torch.nn.Module, subclasses=True)
def wrap_module(s: CaptureState, real: torch.nn.Module, source: Source | None) -> Value:
    twin = type(real).__dict__.get(TWIN_OF)
    if twin is not None:
        follow_class(s, real, twin, source)
    return s.identities.same_object(real, source, lambda: Module(type(real), source, real))


def follow_class(s: CaptureState, compiled: torch.nn.Module, twin: TwinOf, source: Source | None) -> None:
    """The program may set the class of a module that it compiled, as parametrizations do."""
    twin.follow(compiled)
    if source is not None:
        original = AttrSource(DictAttrSource(TypeSource(source), TWIN_OF), "module")
        s.guard(original, GuardKind.TYPE_IS, s.reference(type(twin.module)))
