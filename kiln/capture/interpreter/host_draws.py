"""Calls that draw from random generators, or read a clock: made in front of the region at each call.

    def f(x):                                drawn = random.uniform(0.8, 1.2)
        x = x.relu()                   =>    return region(x, drawn)
        return x * random.uniform(0.8, 1.2)

A function of the program that makes a result of several draws, such as a random mask, is called as a whole if it
depends on its arguments alone and these are constants: the capture, which meets the draw in it, begins again. What is
drawn in one call selects no code, apart from comparisons of floats, which are checked (`speculation.py`), and from
integers that the program needs as such (a number of turns, an index of a list): for the first side exits, their values
are part of what is checked; then the draw breaks the graph.

A generator of the program (a `torch.Generator`, a `random.Random`, one of NumPy's) is given to the calls that draw from
it; one that the program makes, by NumPy with a seed of its own, is made in front, too. What draws from torch's own
generator stays in the graph. What draws by the values of a tensor, such as `multinomial`, breaks the graph if it is
given a generator.
"""

from __future__ import annotations

import _random
import builtins
import dis
import math
import operator
import random
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import partial
from typing import final

import torch

from kiln.capture.interpreter.breaks import (
    AS_CONSTANT,
    GraphBreak,
    PastStep,
    SideEffectCall,
    UnsupportedValue,
)
from kiln.capture.interpreter.core import (
    HANDLERS,
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Handler,
    Kwargs,
    Value,
    handles,
    wraps,
)
from kiln.capture.interpreter.data_values import is_needed
from kiln.capture.interpreter.effects import CallEffect
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.native_calls import natives
from kiln.capture.interpreter.speculation import NumberCheck, Speculations
from kiln.capture.interpreter.variables.array import TracedArray
from kiln.capture.interpreter.variables.builtin import wrap_builtin
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.function import Function, Outlined
from kiln.capture.interpreter.variables.object import Object, wrap_object
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import (
    Overrides,
    RegionInputs,
    Tensor,
    from_torch,
    here,
    record,
    tensors_of,
)
from kiln.capture.interpreter.variables.tensor_names import FILLS
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import LocalSource, Source
from kiln.runtime.host_draws import (
    GENERATORS,
    OBJECTS,
    ArrayForm,
    Form,
    GivenGenerator,
    HostCall,
    HostDraws,
    Leaf,
    Making,
    NumberForm,
    SequenceForm,
    State,
    TensorForm,
    ValueForm,
    filled,
    form_of,
    leaves_of,
    restore_states,
    seed_given,
    states_of,
)
from kiln.support.optional import load
from kiln.support.records import dataclass
from kiln.symbolic.values import Real, number_of

numpy = load("numpy")
DRAWN = "_kiln_drawn_"
"""Local variables of the transformed code with what was drawn; the last has the states of the generators before."""
MOST_LEAVES = 64
CPU = torch.device("cpu")
CHOICES: tuple[object, ...] = (
    *(random.Random.choice, random.Random.choices, random.Random.sample),
    *((numpy.random.RandomState.choice, numpy.random.Generator.choice) if numpy is not None else ()),
)
"""They neither change nor return the list that they get."""
PYTHON: object = getattr(random.random, "__self__")  # noqa: B009 - the generator of the module's functions
OWNERS: tuple[object, ...] = (PYTHON, *([numpy.random.rand.__self__] if numpy is not None else []))
MODULES = ("random", "math", "operator")
PURE = frozenset((
    "abs", "bool", "divmod", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min", "pow", "range",
    "reversed", "round", "set", "sorted", "sum", "tuple", "zip",
))  # fmt: skip
"""Builtins that a function may call which is run as a whole."""
CHANGES = frozenset((
    "STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_BUILD_CLASS", "LOAD_CLASSDEREF",
    "YIELD_VALUE", "SEND",
))  # fmt: skip
"""Instructions that reach beyond the function."""
READS = ("LOAD_ATTR", "LOAD_METHOD")
NUMPY_EFFECTS = frozenset((
    "save", "savez", "savez_compressed", "savetxt", "load", "loadtxt", "genfromtxt", "fromfile", "fromregex", "tofile",
    "memmap", "dump", "DataSource", "open_memmap", "seterr", "seterrcall", "errstate", "geterr", "geterrcall",
    "setbufsize", "getbufsize", "set_printoptions", "get_printoptions", "printoptions", "array2string", "array_str",
    "array_repr", "show_config", "show_runtime", "info", "test", "testing", "lib", "core", "_core", "f2py",
    "ctypeslib", "distutils", "frombuffer", "from_dlpack", "setflags", "getenv",
))  # fmt: skip
"""Names in NumPy, and of methods of arrays, that use files or settings."""


class Outline(Exception):
    """The capture is to begin again and to call these functions in front of the region."""

    def __init__(self, codes: frozenset[types.CodeType]) -> None:
        super().__init__(codes)
        self.codes = codes


@final
@dataclass
class Draws:
    """What a capture draws. `before` are the states of the generators, which are put back when it ends."""

    calls: list[HostCall] = field(default_factory=list)
    leaves: int = 0
    before: dict[str, State] = field(default_factory=dict)
    given: dict[Source, object] = field(default_factory=dict)
    given_before: list[tuple[object, object]] = field(default_factory=list)
    made: list[tuple[Making, object]] = field(default_factory=list)

    def plan(self) -> HostDraws | None:
        if not self.calls:
            return None
        changed = [name for name, state in self.before.items() if GENERATORS[name][0]() != state]
        return HostDraws(tuple(self.calls), tuple(changed), tuple([making for making, _ in self.made]))

    def put_back(self) -> None:
        for name, state in self.before.items():
            GENERATORS[name][1](state)
        restore_states(self.given_before)


@final
@dataclass(frozen=True, eq=False)
class MadeGenerator(Value):
    """A generator that the program makes, of torch for a CPU or of NumPy."""

    kind: type
    number: int
    made_at: PastStep

    def python_type(self) -> type:
        return self.kind

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        is_device = name == "device" and self.kind is torch.Generator
        return Constant(CPU) if is_device else super().get_attr(s, name, site)

    def emit(self, g: Codegen) -> None:
        raise UnsupportedValue(type=self.type_name(), why="it was made in front of the region").before(self.made_at)


def making(make: Callable[..., object]) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        given = tuple([arg.constant(s) for arg in (*args, *kwargs.values())])
        of_torch = make is torch.Generator and [torch.device(device) for device in given] in ([], [CPU])
        if not (of_torch or [type(seed) for seed in given] == [int]) or not once(s) or not s.policy.speculate:
            raise SideEffectCall(function=make.__name__, why="its seed is not known, or its draws are repeated")
        made, real = s.part(Draws).made, make(*given)
        made.append(((make, given), real))
        return MadeGenerator(type(real), len(made) - 1, here(s))

    return handler


def drawing(name: str, function: Callable[..., object]) -> Handler:
    """The handler of a function that draws. A method gets its generator first."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        if args and isinstance(args[0], Object) and args[0].foreign is not None:
            return drawn_here(s, name, function, args, kwargs)
        codes = frozenset(outlinable(s)) - s.part(Outlined).codes
        if codes and s.policy.speculate:
            raise Outline(codes)
        made = drawn(s, function, args, kwargs)
        if made is None:
            raise SideEffectCall(function=name, why="it draws random numbers, and its arguments or results vary")
        return made

    return handler


def drawn_here(s: CaptureState, name: str, function: Callable[..., object], args: Args, kwargs: Kwargs) -> Value:
    """What a `random.Random` gives that the frame has made: C code works on it while tracing."""
    if name != "random.seed":
        return natives(s).call(function, args, kwargs)
    seed = args[1].constant(s) if len(args) == 2 and not kwargs else None
    if not isinstance(seed, int | float | str | bytes):
        raise SideEffectCall(function=name, why="the seed is the time, or of the operating system")
    state = random.Random(seed).getstate()[1]
    args[0].set_attr(s, "gauss_next", Constant(None))
    return natives(s).call(_random.Random.setstate, [args[0], s.const(state)], {})


def outlinable(s: CaptureState) -> Iterator[types.CodeType]:
    """The functions that are being interpreted and that depend on their arguments alone."""
    frame = running_frame(s)
    while frame.parent is not None:
        original = frame.function.original if isinstance(frame.function, Function) else None
        if original is not None and is_self_contained(original, set()):
            yield original.__code__
        frame = frame.parent


def call_outlined(s: CaptureState, function: Function, args: Args, kwargs: Kwargs) -> Value | None:
    """The result of a call in front of the region; None: the function is to be interpreted, as with a number that
    changes, of which there would be a variant for each value."""
    assert function.original is not None
    if varies(s, [*args, *kwargs.values()]):
        return None
    return drawn(s, function.original, args, kwargs)


def drawn(s: CaptureState, function: Callable[..., object], args: Args, kwargs: Kwargs) -> Value | None:
    """The result of a call, drawn now as an example; None if it varies in form."""
    decides = is_needed(s)
    if not (s.policy.speculate or s.policy.whole) or (decides and (s.policy.whole or not s.policy.speculate_values)):
        return None
    try:
        plain = tuple([chosen_from(s, arg) if function in CHOICES else constant(s, arg) for arg in args])
        named = tuple([(name, constant(s, value)) for name, value in kwargs.items()])
    except GraphBreak:
        return None
    found = s.part(Draws)
    found.before = found.before or {name: read() for name, (read, _) in GENERATORS.items()}
    try:
        result = HostCall(function, plain, named, ValueForm(None)).run(
            list(found.given.values()), [real for _, real in found.made]
        )
    except Exception:  # the program raises it where the call is made in Python
        return None
    form = form_of(result, decides=decides)
    leaves = list(leaves_of(result, form)) if form is not None else []
    if form is None or found.leaves + len(leaves) > MOST_LEAVES:
        return None
    s.counters.unguarded += 1  # a repeated layer draws again
    found.calls.append(HostCall(function, plain, named, form, decides))
    return value_of(s, form, iter(leaves))


def drawing_from(function: Callable[..., object], target: Callable[..., object] | str) -> Handler:
    """The handler of a function of torch, or of a method that fills a tensor: it may be given a generator."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        generator = kwargs.get("generator")
        if isinstance(generator, MadeGenerator) and (varies(s, [*args, *kwargs.values()]) or not once(s)):
            raise SideEffectCall(function=function.__name__, why="its sizes vary, or its draws are repeated")
        if generator is None or not is_own_generator(generator) or varies(s, [*args, *kwargs.values()]) or not once(s):
            return record(s, target, args, kwargs)
        if not isinstance(target, str):
            return drawn(s, function, args, kwargs) or record(s, target, args, kwargs)
        tensor = args[0]
        assert isinstance(tensor, Tensor)
        fake = tensor.fake
        if fake.device.type != "cpu" or not all(type(size) is int for size in fake.shape) or not fake.is_contiguous():
            return record(s, target, args, kwargs)
        made = drawn(s, partial(filled, target, tuple(fake.shape), fake.dtype), args[1:], kwargs)
        return record(s, target, args, kwargs) if made is None else record(s, "copy_", [tensor, made], {})

    return handler


def seed_own(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`generator.manual_seed(n)`, in order among what is drawn from it."""
    plain = is_own_generator(args[0]) and not varies(s, [*args, *kwargs.values()]) and once(s)
    if not plain or drawn(s, seed_given, args, kwargs) is None:
        raise SideEffectCall(function="Generator.manual_seed", why="the generator starts anew")
    return args[0]


def once(s: CaptureState) -> bool:
    """Whether a call here draws once: no checkpoint draws again, no `vmap` per sample, nobody sees or replaces it."""
    overrides = s.part(Overrides)
    seen = overrides.call is not None or overrides.under_modes is not None or s.function_modes
    return not seen and not s.recorder.region and torch._C._functorch.maybe_current_level() is None


def is_own_generator(value: Value) -> bool:
    if isinstance(value, MadeGenerator):
        return True
    real = value.real()
    own = type(real) is torch.Generator and real is not torch.default_generator and real.device.type == "cpu"
    return own and value.source is not None


def varies(s: CaptureState, values: list[Value]) -> bool:
    """Whether a number is a symbol: what is drawn would have a form for each of its values."""
    return any(
        isinstance(value, Symbolic) or (isinstance(value, Tuple) and varies(s, value.items(s))) for value in values
    )


def chosen_from(s: CaptureState, value: Value) -> object:
    return [constant(s, item) for item in value.items(s)] if isinstance(value, List) else constant(s, value)


def constant(s: CaptureState, value: Value) -> object:
    """An argument, guarded; a generator is one of those that are known."""
    real = value.real()
    if any(real is owner for owner in OWNERS):
        s.guard(value.source, GuardKind.IS, s.reference(real))
        return real
    if isinstance(value, MadeGenerator):
        return GivenGenerator(value.number, is_made=True)
    if type(real) in OBJECTS and value.source is not None:
        s.guard_type(value)
        found = s.part(Draws)
        if value.source not in found.given:
            found.given_before += states_of([real])
        found.given.setdefault(value.source, real)
        return GivenGenerator(list(found.given).index(value.source))
    if isinstance(value, Tensor | TracedArray):
        raise value.unsupported(AS_CONSTANT, "it is a tensor")
    if isinstance(value, Tuple):
        return tuple([constant(s, item) for item in value.items(s)])
    known = value.constant(s)
    if type(known).__hash__ is None:
        raise value.unsupported(AS_CONSTANT, "the call may change it or return it")
    return known


def value_of(s: CaptureState, form: Form, leaves: Iterator[Leaf]) -> Value:
    match form:
        case ValueForm():
            return Constant(form.value)
        case NumberForm() if form.value is not None:
            return Constant(form.value)
        case SequenceForm():
            items = [value_of(s, item, leaves) for item in form.items]
            return Tuple(items) if form.kind is tuple else List(items)
    leaf = next(leaves)
    source = LocalSource(f"{DRAWN}{s.part(Draws).leaves}")
    s.part(Draws).leaves += 1
    if isinstance(leaf, float):
        number = s.recorder.add_scalar(leaf, source.name, source)
        s.recorder.inputs[-1].is_drawn = True
        return Symbolic(number, None)
    fake = s.recorder.add_tensor(leaf, source.name, source)
    s.recorder.inputs[-1].is_drawn = True
    tensor = Tensor(fake, None)
    s.part(RegionInputs).by_fake[id(fake)] = tensor
    if isinstance(form, TensorForm):
        return tensor
    if isinstance(form, ArrayForm):
        return TracedArray(tensor, form.is_scalar)
    return record(s, "item", [tensor], {})


def check_read_numbers(s: CaptureState) -> None:
    """What was drawn is checked to be the same where the capture has read its value."""
    for found in s.recorder.inputs:
        given = found.given
        if found.is_drawn and given is not None and given.is_read:
            drawn_number = Real("given", (given,))
            s.part(Speculations).numbers[NumberCheck(operator.eq, drawn_number, number_of(given))] = None


def planned(s: CaptureState) -> HostDraws | None:
    """What is drawn in front of the region: nothing of a whole graph, where the capture's draws may not be read."""
    found = s.part(Draws)
    if not s.policy.whole or not found.calls:
        return found.plan()
    made = [record for record in s.recorder.inputs if record.is_drawn]
    read = [record for record in made if record.used or (record.given is not None and record.given.is_read)]
    if read or s.part(Speculations).numbers:
        name = getattr(found.calls[0].function, "__qualname__", "random")
        raise SideEffectCall(function=name, why="it draws random numbers, which a whole program does not do")
    found.calls.clear()
    return None


# ------------------------------------------------------------------------------------------------ functions as a whole


def is_self_contained(function: types.FunctionType, seen: set[types.CodeType]) -> bool:
    """Whether a function reads and changes nothing but its arguments and the random generators."""
    if function.__module__ == "random" and function.__globals__ is vars(random):
        return True
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if not all(isinstance(value, int | float | str | None) for value in defaults):
        return False
    if function.__closure__ or function.__code__ in seen:
        return not function.__closure__
    seen.add(function.__code__)
    builtin = vars(builtins)
    for code in codes_in(function.__code__):
        for instruction in dis.get_instructions(code):
            if instruction.opname in CHANGES and not (instruction.opname == "YIELD_VALUE" and code.co_name[0] == "<"):
                return False
            if instruction.opname in READS and instruction.argval in NUMPY_EFFECTS:
                return False
            if instruction.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
                continue
            name = instruction.argval
            found = function.__globals__.get(name, builtin.get(name))
            if not (found is builtin.get(name) and (name in PURE or is_exception(found))) and not is_known(found, seen):
                return False
    return True


def is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def is_known(value: object, seen: set[types.CodeType]) -> bool:
    """Whether a global of a function is a constant, a module of numbers, or a function like it."""
    if isinstance(value, types.FunctionType):
        return is_self_contained(value, seen)
    if isinstance(value, types.ModuleType):
        return value.__name__ in MODULES or value.__name__.partition(".")[0] == "numpy"
    if any(getattr(value, "__self__", None) is owner for owner in OWNERS):
        return True
    if isinstance(value, int | float | str | bool | type(None)) or is_exception(value):
        return True
    if getattr(value, "__name__", "") in NUMPY_EFFECTS:
        return False
    return str(getattr(value, "__module__", "")).partition(".")[0] == "numpy" or value in (math.floor, math.ceil)


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from codes_in(value)


# ------------------------------------------------------------------------------------------------ what draws


def numpy_functions() -> Mapping[str, Callable[..., object]]:
    """The functions, or those behind the methods, of `numpy.random` that draw from its own generator."""
    if numpy is None:
        return {}
    owner = numpy.random.rand.__self__
    found = {name: getattr(numpy.random, name) for name in dir(numpy.random)}
    methods = {name: function for name, function in found.items() if getattr(function, "__self__", None) is owner}
    drawing = {name: function.__func__ for name, function in methods.items() if hasattr(function, "__func__")}
    return {f"numpy.random.{name}": function for name, function in {**drawing, "seed": numpy.random.seed}.items()}


def numpy_methods() -> Mapping[str, Callable[..., object]]:
    """Those of `numpy.random.Generator` that draw."""
    if numpy is None:
        return {}
    kind = type(numpy.random.rand.__func__)
    found = {name: function for name, function in vars(numpy.random.Generator).items() if type(function) is kind}
    return {f"Generator.{name}": function for name, function in found.items() if name[0] != "_" and name != "spawn"}


def wrap_drawing(s: CaptureState, real: Callable[..., object], source: Source | None) -> Value:
    """A function of NumPy that draws; others of its type are not known."""
    return wrap_builtin(s, real, source) if real in HANDLERS else wrap_object(s, real, source)


CLOCKS: tuple[Callable[[], float], ...] = (
    *(time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns),
    *(time.process_time, time.process_time_ns, time.thread_time, time.thread_time_ns),
)


def reading(function: Callable[[], float]) -> Handler:
    """The handler of a clock: read in front of the region, where nothing of the program has run before, else in it,
    behind the last torch call."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        effects = any(isinstance(effect, CallEffect) for effect in s.effects)
        made = None if s.recorder.calls or effects else drawn(s, function, args, kwargs)
        if s.recorder.calls and not (args or kwargs or effects or s.function_modes or is_needed(s)):
            last = [from_torch(s, fake) for _, fake in tensors_of(s.recorder.calls[-1].result) if not fake.is_outer]
            return read_in_region(s, function.__name__, last)
        if made is None:
            raise SideEffectCall(function=function.__name__, why="what comes before it has to be done when it is read")
        return made

    return handler


def read_in_region(s: CaptureState, clock: str, last: list[Value]) -> Value:
    last = [record(s, "detach", [tensor], {}) for tensor in last]
    time_read = record(s, torch.ops.kiln_host.clock.default, [s.const(clock), List(last)], {})
    return time_read.get_attr(s, "item").call(s, [], {})


def register() -> None:
    for clock in CLOCKS:
        handles(clock)(reading(clock))
    for name in ("random", "getrandbits", "seed"):
        handles(getattr(random.Random, name))(drawing(f"random.{name}", getattr(random.Random, name)))
        if isinstance(getattr(random, name), types.BuiltinFunctionType):
            handles(getattr(random, name))(drawing(f"random.{name}", getattr(random, name)))
    for name, function in {**numpy_functions(), **numpy_methods()}.items():
        wraps(type(function))(wrap_drawing)
        handles(function)(drawing(name, function))
    for function in (torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal):
        handles(function)(drawing_from(function, function))
    handles(torch.Generator)(making(torch.Generator))
    for make in (numpy.random.RandomState, numpy.random.default_rng) if numpy is not None else ():
        handles(make)(making(make))
    handles(torch.Generator.manual_seed)(seed_own)
    for name in FILLS:
        handles(getattr(torch.Tensor, name))(drawing_from(filled, name))


register()
