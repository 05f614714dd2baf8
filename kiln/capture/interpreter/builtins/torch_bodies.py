"""Torch's own Python functions whose calls are recorded as one: what their bodies read that a program may replace.

    F.relu(x)                     guards torch.relu and torch.relu_, which its body calls
    torch.relu = mine             the guards fail; from here on the body of F.relu is interpreted

The bodies run natively, below the interpreter, so that no guard sees what they read. Names are read from the bytecode,
once per function: functions of modules (`torch.relu`, `pad`), and methods of tensors (`input.softmax`).
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import final

import torch

from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CaptureState, Handler, Kwargs, Value
from kiln.capture.interpreter.variables.function import Function, expectation, inline
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.tensor import defined_by_program, record
from kiln.capture.interpreter.variables.tensor_names import METADATA_METHODS
from kiln.graph.trace.log import Target
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import path_of
from kiln.runtime.guards.source import ModuleGlobalSource
from kiln.support.records import dataclass

OF_DISPATCH = (
    *(torch.overrides.handle_torch_function, torch.overrides.has_torch_function),
    *(torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic),
)
"""They decide who handles a call, for which the recorder answers."""
PLACES = frozenset(
    module.__name__
    for module in (
        *(torch, torch.functional, torch.nn.functional, torch.linalg, torch.special, torch.fft, torch._C._nn),
        *(torch.autograd, torch._VF),
    )
)
"""Modules whose functions compute. What else bodies read (queries, checks, torch's compiler) no program replaces."""
QUESTIONS = METADATA_METHODS | {"type"}
"""Methods that compute nothing; devices have a `type`, too."""


@final
@dataclass(frozen=True, slots=True)
class Reads:
    """Names in a function's bytecode: globals of modules that are callable, and methods of tensors."""

    functions: tuple[tuple[str, str], ...]
    methods: tuple[str, ...]


@final
@dataclass
class SeenBodies:
    """Answers of `is_intact` in one capture."""

    known: dict[types.FunctionType, bool] = field(default_factory=dict)


def native_unless_replaced(target: Target, function: types.FunctionType) -> Handler:
    """The handler of a Python function of torch: one recorded call of `target`. Its body is interpreted where an
    argument is code or an object of the program, such as a distance function."""

    def call(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        of_program = any(isinstance(arg, Function | Object) for arg in (*args, *kwargs.values()))
        return interpreted(s, args, kwargs) if of_program else record(s, target, args, kwargs)

    interpreted = body_of(function)
    return unless_replaced(function)(call)


def unless_replaced(function: Callable[..., object]) -> Callable[[Handler], Handler]:
    """The handler of a function of torch, whose body is interpreted where the program has replaced what it calls."""

    assert isinstance(function, types.FunctionType)

    def decorated(call: Handler) -> Handler:
        def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
            return (call if is_intact(s, function) else interpreted)(s, args, kwargs)

        return handler

    interpreted = body_of(function)
    return decorated


def body_of(function: types.FunctionType) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        body = s.wrap(function, None)
        assert isinstance(body, Function)
        return inline(s, body, args, kwargs, NOT_RESUMABLE)

    return handler


def is_intact(s: CaptureState, function: types.FunctionType) -> bool:
    """Whether all that the body of a function of torch calls is torch's own, at any depth; guarded either way."""
    known = s.part(SeenBodies).known
    if function not in known:
        before = len(known)
        known[function] = True  # a cycle adds nothing
        reads = reads_of(function)
        functions = [is_own_function(s, module, name) for module, name in reads.functions]
        known[function] = all(functions) and all([is_own_method(s, name) for name in reads.methods])
        if not known[function]:  # of a cycle, the answers behind it may rest on its own
            for other in [*known][before + 1 :]:
                if known[other]:
                    del known[other]
    return known[function]


def is_own_function(s: CaptureState, module: str, name: str) -> bool:
    value = vars(sys.modules[module]).get(name)
    source = ModuleGlobalSource(module, name)
    if value is None and module == torch._VF.__name__:  # it looks up what the program has not put there
        s.guard(source, GuardKind.ABSENT)
        return True
    if isinstance(value, types.FunctionType):
        s.guard(source, GuardKind.FUNCTION_CODE, expectation(s, value))
        return is_of_torch(value) and is_intact(s, value)
    if not isinstance(value, types.BuiltinFunctionType):
        return False  # interpreted, and guarded where it is read
    if path_of(value):
        s.guard(source, GuardKind.IS, s.reference(value))
    return True


def is_own_method(s: CaptureState, name: str) -> bool:
    found = s.classes.lookup(torch.Tensor, name)
    if found is None or defined_by_program(found[1]):
        return False
    return type(found[1]) is not types.FunctionType or is_intact(s, found[1])


def is_of_torch(function: types.FunctionType) -> bool:
    """Or of what torch's modules import for their annotations."""
    return str(function.__globals__.get("__name__")).partition(".")[0] in ("torch", "typing")


@functools.cache
def reads_of(function: types.FunctionType) -> Reads:
    functions: dict[tuple[str, str], None] = {}
    methods: dict[str, None] = {}
    for code in codes_of(function.__code__):
        found: object = None
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname == "LOAD_GLOBAL":
                found = global_read(function, name, functions)
            elif instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                found = None
            elif isinstance(found, types.ModuleType):
                found = module_read(found, name, functions)
            else:
                found = None
                if name not in QUESTIONS and callable(getattr(torch.Tensor, name, None)):
                    methods[name] = None
    return Reads(tuple(functions), tuple(methods))


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of the functions that it makes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


def global_read(function: types.FunctionType, name: str, functions: dict[tuple[str, str], None]) -> object:
    """What a function reads from its globals; None for what is no concern of ours."""
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    if module is None or vars(module) is not function.__globals__ or hasattr(builtins, name):
        return None
    return module_read(module, name, functions)


def module_read(module: types.ModuleType, name: str, functions: dict[tuple[str, str], None]) -> object:
    found = getattr(module, name, None)
    computes = module.__name__ in PLACES and callable(found) and not isinstance(found, type)
    if computes and not any(found is function for function in OF_DISPATCH):
        functions[module.__name__, name] = None
    return found
