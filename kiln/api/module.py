"""A compiled `nn.Module`: an instance of a generated subclass that shares the original's `__dict__`.

    compiled = kiln.compile(model)
    isinstance(compiled, type(model))        True
    compiled.weight is model.weight          True, and stays true: there is one `__dict__`
    pickle.dumps(compiled)                   the bytes of the original: compiling is not part of the state
    copy.deepcopy(compiled)                  a compiled copy

Only `__call__` differs: it is the dispatcher.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import FunctionType
from typing import cast

from torch import nn

from kiln.pipeline.session import CompileSession

MARK = "_kiln_session"
"""Class attribute of compiled classes: the session."""
TWIN = "_kiln_twin"
"""Class attribute of all classes made here."""


def compile_module(module: nn.Module, session: CompileSession) -> nn.Module:
    """The compiled twin of `module`."""
    cls = original_class(module)
    return _twin(module, _compiled_class(cls, session))


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class of `module`, or the class that was compiled."""
    cls = type(module)
    return cls.__mro__[1] if TWIN in cls.__dict__ else cls


def original_module(module: nn.Module) -> nn.Module:
    """An instance of the original class that shares the state of `module`."""
    return _twin(module, original_class(module))


def disabled_module(module: nn.Module, disable: Callable[[Callable[..., object]], object]) -> nn.Module:
    """A twin of `module` whose `forward` is `disable(forward)`; it pickles and copies as the original."""
    cls = original_class(module)
    return _twin(module, _subclass(cls, {"forward": disable(cls.forward), "__reduce_ex__": _reduce}))


def _twin(module: nn.Module, cls: type[nn.Module]) -> nn.Module:
    twin: nn.Module = object.__new__(cls)
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin


def _subclass(cls: type[nn.Module], body: dict[str, object]) -> type[nn.Module]:
    """A subclass with the name of `cls`."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    metaclass: Callable[..., type[nn.Module]] = type(cls)
    return metaclass(cls.__name__, (cls,), {**names, **body, TWIN: True})


def _reduce(self: nn.Module, protocol: object) -> object:
    return original_module(self).__reduce_ex__(1)  # later protocols check the class against the object


def _compiled_class(cls: type[nn.Module], session: CompileSession) -> type[nn.Module]:
    call = cast(FunctionType, cls.__call__)

    def deepcopy(self: nn.Module, memo: dict[int, object]) -> nn.Module:
        twin = compile_module(copy.deepcopy(original_module(self), memo), session)
        memo[id(self)] = twin
        return twin

    body = {"__call__": session.dispatcher(call), "__reduce_ex__": _reduce, "__deepcopy__": deepcopy, MARK: session}
    return _subclass(cls, body)
