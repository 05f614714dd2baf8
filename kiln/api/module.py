"""A compiled `nn.Module`: an instance of a generated subclass that shares the original's `__dict__`.

    compiled = kiln.compile(model)
    isinstance(compiled, type(model))        True
    compiled.weight is model.weight          True, and stays true: there is one `__dict__`
    pickle.dumps(compiled)                   the bytes of the original: compiling is not part of the state
    copy.deepcopy(compiled)                  a compiled copy

Only `__call__` differs: it calls the dispatcher with the original, so that `self` is the object that it is in eager:

    compiled(x)                              `id(self)`, `self is model` and `registry[self]` as in `model(x)`

Where the program sets the class of one of the two, the other follows:

    weight_norm(model)                       sets `model.__class__`; `compiled` follows when its guards fail
    compiled(x)  # a LazyLinear              sets `model.__class__` to `Linear`
"""

from __future__ import annotations

import copy
import sys
import weakref
from abc import ABCMeta
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType, MethodType
from typing import cast

from torch import nn

from kiln.native._frames import Dispatcher
from kiln.pipeline.session import CompileSession
from kiln.runtime.guards.reference import TWIN_OF, TwinOf

MARK = "_kiln_session"
"""Class attribute of compiled classes: the session."""
TWIN = "_kiln_twin"
"""Class attribute of all classes made here."""
STATES = "torch.distributed._composable_state"
OWN = {"__call__", "__deepcopy__", "report", MARK, TWIN_OF}
"""Attributes of the class of a compiled module that refer to the module or its session."""
SET_CLASS = object.__dict__["__class__"].__set__


FindDispatcher = Callable[[nn.Module, FunctionType], Dispatcher]
"""Gives the dispatcher of a method of a module, perhaps that of other modules like it."""


def compile_module(module: nn.Module, find: FindDispatcher) -> nn.Module:
    """The compiled twin of `module`."""
    original = original_module(module)
    dispatcher = find(original, cast(FunctionType, type(original).__call__))
    twin = _twin(module, _compiled_class(original, dispatcher, find))
    _register(twin, original, dispatcher)
    return twin


def _register(twin: nn.Module, original: nn.Module, dispatcher: Dispatcher) -> None:
    _session(dispatcher).twins[id(twin)] = twin
    share_states(original, twin)
    weakref.finalize(twin, _empty, type(twin)).atexit = False


def _empty(cls: type[nn.Module]) -> None:
    """The class of a twin that is gone: every class is part of a cycle, and waits for the collector."""
    for name in cls.__dict__.keys() & OWN:
        type.__delattr__(cls, name)


def share_states(original: nn.Module, twin: nn.Module) -> None:
    """torch keeps what `fully_shard` and its kin know of a module in a table by module, which their methods ask."""
    table = getattr(sys.modules.get(STATES), "_module_state_mapping", {})
    with suppress(TypeError):  # it cannot be hashed
        if original in table:
            table.setdefault(twin, table[original])


def _session(dispatcher: Dispatcher) -> CompileSession:
    session: CompileSession = dispatcher.__dict__["session"]
    return session


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class of `module`, or the class that was compiled."""
    cls = type(module)
    if TWIN_OF in cls.__dict__:
        return type(cls.__dict__[TWIN_OF].module)
    return cls.__mro__[1] if TWIN in cls.__dict__ else cls


def original_module(module: nn.Module) -> nn.Module:
    """The module that was compiled; else one of the original class that shares the state of `module`."""
    if TWIN not in type(module).__dict__:
        return module
    known = type(module).__dict__.get(TWIN_OF)
    return known.module if isinstance(known, TwinOf) else _twin(module, original_class(module))


def disabled_module(module: nn.Module, disable: Callable[[Callable[..., object]], object]) -> nn.Module:
    """A twin of `module` whose `forward` is `disable(forward)`; it pickles and copies as the original."""
    cls = original_class(module)
    return _twin(module, _subclass(cls, {"forward": disable(cls.forward), "__reduce_ex__": _reduce}))


def _twin(module: nn.Module, cls: type[nn.Module]) -> nn.Module:
    twin: nn.Module = object.__new__(cls)
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin


class _Layout(nn.Module):
    """Made in place of a subclass of the program's class, to become one."""


def _subclass(cls: type[nn.Module], body: dict[str, object]) -> type[nn.Module]:
    """A subclass with the name of `cls`, for which the program's `__init_subclass__` is not run: it may keep tables."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    metaclass: Callable[..., type[nn.Module]] = type(cls)
    contents = {**names, **body, TWIN: True}
    if metaclass in (type, ABCMeta):
        made = metaclass(cls.__name__, (_Layout,), dict(contents))
        with suppress(TypeError):  # the class has slots
            made.__bases__ = (cls,)
            return made
    return metaclass(cls.__name__, (cls,), contents)


def _reduce(self: nn.Module, protocol: object) -> object:
    return _twin(self, original_class(self)).__reduce_ex__(1)  # later protocols check the class against the object


def _set_class(twin: nn.Module, cls: type[nn.Module]) -> None:
    known: TwinOf = type(twin).__dict__[TWIN_OF]
    known.module.__class__ = cls
    known.follow(twin)


def _compiled_class(original: nn.Module, dispatcher: Dispatcher, find: FindDispatcher) -> type[nn.Module]:
    """The class of the twin of `original` whose `__call__` is `dispatcher`."""
    call, session = type(original).__call__, _session(dispatcher)

    def deepcopy(self: nn.Module, memo: dict[int, object]) -> nn.Module:
        twin = compile_module(copy.deepcopy(original, memo), find)
        memo[id(self)] = twin
        return twin

    def follow(twin: nn.Module) -> None:
        if type(original) is type(twin).__mro__[1]:
            return
        same = type(original).__call__ is call
        kept = dispatcher if same else find(original, cast(FunctionType, type(original).__call__))
        SET_CLASS(twin, _compiled_class(original, kept, find))
        _register(twin, original, kept)

    body: dict[str, object] = {
        "__call__": MethodType(dispatcher, original),
        "__reduce_ex__": _reduce,
        "__deepcopy__": deepcopy,
    }
    body |= {"__class__": property(original_class, _set_class), MARK: session, TWIN_OF: TwinOf(original, follow)}
    if not hasattr(type(original), "report") and session.report is not None:
        body["report"] = staticmethod(session.report)
    return _subclass(type(original), body)
