"""A compiled `nn.Module`: an instance of a subclass made on the spot, which shares the original's `__dict__`.

    compiled = kiln.compile(model)
    isinstance(compiled, type(model))        True
    compiled.weight is model.weight          True, and stays true: there is one `__dict__`
    pickle.dumps(compiled)                   the bytes of the original: compiling is not part of the state
    copy.deepcopy(compiled)                  a compiled copy

Only `__call__` differs: it is the dispatcher.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from kiln.pipeline.session import Session

MARK = "_kiln_session"
"""Class attribute of compiled classes: the session."""


def compile_module(module: nn.Module, session: Session) -> nn.Module:
    """The compiled twin of `module`."""
    cls = original_class(module)
    twin: nn.Module = object.__new__(_compiled_class(cls, session))
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class of `module`, or the class that was compiled."""
    cls = type(module)
    return cls.__mro__[1] if MARK in cls.__dict__ else cls


def original_module(module: nn.Module) -> nn.Module:
    """An instance of the original class with the state of `module`."""
    plain: nn.Module = object.__new__(original_class(module))
    object.__setattr__(plain, "__dict__", module.__dict__)
    return plain


def _compiled_class(cls: type[nn.Module], session: Session) -> type[nn.Module]:
    call: Any = cls.__call__

    def reduce(self: nn.Module, protocol: Any) -> Any:
        return original_module(self).__reduce_ex__(1)  # later protocols check the class against the object

    def deepcopy(self: nn.Module, memo: dict[int, Any]) -> nn.Module:
        twin = compile_module(copy.deepcopy(original_module(self), memo), session)
        memo[id(self)] = twin
        return twin

    body = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__call__": session.dispatcher(call),
        "__reduce_ex__": reduce,
        "__deepcopy__": deepcopy,
        MARK: session,
    }
    metaclass: Any = type(cls)
    made: type[nn.Module] = metaclass(cls.__name__, (cls,), body)
    return made
