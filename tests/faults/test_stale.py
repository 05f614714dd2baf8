"""Compiled code notices what changed since it was compiled.

Each program reads one thing; the test changes it between two calls and compares with eager.
"""

from __future__ import annotations

import abc
import builtins
import enum
import functools
import os
import subprocess
import sys
import textwrap
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pytest
import torch

import kiln
from tests.child import search_path
from tests.faults.outcome import assert_like_eager

X = torch.linspace(-2.0, 2.0, 5)
ROOT = Path(__file__).resolve().parents[2]


@final
@dataclass
class Change:
    """A program, and the change that its result depends on."""

    program: Callable[..., Any]
    change: Callable[[], Any]
    arguments: tuple[Any, ...] = (X,)
    undo: Callable[[], Any] = lambda: None


Make = Callable[[], Change]
CHANGES: dict[str, Make] = {}


def change(make: Make) -> Make:
    CHANGES[make.__name__] = make
    return make


def class_of(text: str, **scope: Any) -> Any:
    """The class `C` that `text` defines, apart from those of other tests."""
    exec(text, scope)
    return scope["C"]


@change
def storage_offset() -> Change:
    base = torch.arange(10.0)
    views = [base[:5]]

    def program(x: torch.Tensor) -> Any:
        return x * views[0].storage_offset()

    return Change(program, lambda: views.__setitem__(0, base[5:]))


@change
def storage_offset_of_a_view() -> Change:
    base = torch.arange(10.0)
    views = [base[:5]]

    def program(x: torch.Tensor) -> Any:
        return x + views[0][1:].storage_offset()

    return Change(program, lambda: views.__setitem__(0, base[3:8]))


@change
def cleared_cache() -> Change:
    scale = [2.0]

    @functools.lru_cache
    def factor(n: int) -> float:
        return n * scale[0]

    def clear() -> None:
        scale[0] = 3.0
        factor.cache_clear()

    return Change(lambda x: x * factor(3), clear)


@change
def cache_that_is_not_cleared() -> Change:
    scale = [2.0]

    @functools.lru_cache
    def factor(n: int) -> float:
        return n * scale[0]

    return Change(lambda x: x * factor(3), lambda: scale.__setitem__(0, 3.0))


@change
def cached_method_of_a_class() -> Change:
    scale = [2.0]

    class Table:
        @staticmethod
        @functools.lru_cache
        def factor(n: int, power: int = 1) -> float:
            return float(n**power * scale[0])

    def clear() -> None:
        scale[0] = 3.0
        Table.factor.cache_clear()

    return Change(lambda x: x * Table.factor(3, power=2), clear)


@change
def module_getattr() -> Change:
    module = types.ModuleType("kiln_test_lazy")
    scale = [2.0]

    def lookup(name: str) -> float:
        if name == "scale":
            return scale[0]
        raise AttributeError(name)

    module.__dict__["__getattr__"] = lookup
    sys.modules[module.__name__] = module
    return Change(
        lambda x: x * module.scale,
        lambda: scale.__setitem__(0, 3.0),
        undo=lambda: sys.modules.pop(module.__name__),
    )


@change
def module_attribute_that_appears() -> Change:
    module = types.ModuleType("kiln_test_appears")
    sys.modules[module.__name__] = module
    return Change(
        lambda x: x + (1 if hasattr(module, "scale") else 2),
        lambda: setattr(module, "scale", 3.0),
        undo=lambda: sys.modules.pop(module.__name__),
    )


@change
def name_that_its_first_look_up_makes() -> Change:
    class Namespace(types.ModuleType):
        def __getattr__(self, name: str) -> float:
            if name.startswith("_"):
                raise AttributeError(name)
            setattr(self, name, 2.0)
            return 2.0

    module = Namespace("kiln_test_namespace")
    sys.modules[module.__name__] = module
    return Change(
        lambda x: x * module.scale,
        lambda: setattr(module, "scale", 3.0),
        undo=lambda: sys.modules.pop(module.__name__),
    )


@change
def attribute_of_a_module_class() -> Change:
    class Settings(types.ModuleType):
        values = {"scale": 2.0}

        @property
        def scale(self) -> float:
            return Settings.values["scale"]

    module = Settings("kiln_test_settings")
    sys.modules[module.__name__] = module
    return Change(
        lambda x: x * module.scale,
        lambda: Settings.values.update(scale=3.0),
        undo=lambda: sys.modules.pop(module.__name__),
    )


class Shape(abc.ABC):  # noqa: B024
    pass


def abc_and_class() -> tuple[Any, Any]:
    base = class_of("import abc\nclass C(abc.ABC): pass")
    cls = class_of("class C: pass")
    return base, cls


@change
def abc_register() -> Change:
    base, cls = abc_and_class()
    return Change(lambda x, o: x + 1 if isinstance(o, base) else x - 1, lambda: base.register(cls), (X, cls()))


@change
def abc_register_and_issubclass() -> Change:
    base, cls = abc_and_class()
    return Change(lambda x: x + 1 if issubclass(cls, base) else x - 1, lambda: base.register(cls))


@change
def abc_register_of_a_local_object() -> Change:
    base, cls = abc_and_class()
    return Change(lambda x: x + 1 if isinstance(cls(), base) else x - 1, lambda: base.register(cls))


@change
def abc_register_and_match() -> Change:
    base, cls = abc_and_class()

    def program(x: torch.Tensor, o: object) -> torch.Tensor:
        match o:
            case base():
                return x + 1
            case _:
                return x - 1

    return Change(program, lambda: base.register(cls), (X, cls()))


@change
def instance_check() -> Change:
    meta = class_of("class C(type):\n    def __instancecheck__(cls, o): return True")
    cls = meta("Checked", (), {})

    def replaced(cls: type, o: object) -> bool:
        return False

    return Change(
        lambda x, o: x + 1 if isinstance(o, cls) else x - 1,
        lambda: setattr(meta, "__instancecheck__", replaced),
        (X, Shape()),
    )


@change
def state_of_an_instance_check() -> Change:
    accepted = [True]
    meta = class_of("class C(type):\n    def __instancecheck__(cls, o): return accepted[0]", accepted=accepted)
    cls = meta("Checked", (), {})
    return Change(
        lambda x, o: x + 1 if isinstance(o, cls) else x - 1, lambda: accepted.__setitem__(0, False), (X, Shape())
    )


@change
def instance_check_that_appears() -> Change:
    meta = class_of("class C(type): pass")
    cls = meta("Checked", (), {})
    return Change(
        lambda x, o: x + 1 if isinstance(o, cls) else x - 1,
        lambda: setattr(meta, "__instancecheck__", lambda cls, o: True),
        (X, Shape()),
    )


@change
def subclass_check() -> Change:
    meta = class_of("class C(type):\n    def __subclasscheck__(cls, o): return True")
    cls = meta("Checked", (), {})
    return Change(
        lambda x: x + 1 if issubclass(Shape, cls) else x - 1,
        lambda: setattr(meta, "__subclasscheck__", lambda cls, o: False),
    )


def patched_tensor(name: str, replacement: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    own = torch.Tensor.__dict__.get(name)

    def undo() -> None:
        if own is not None:
            setattr(torch.Tensor, name, own)
        elif name in torch.Tensor.__dict__:
            delattr(torch.Tensor, name)

    return lambda: setattr(torch.Tensor, name, replacement), undo


@change
def tensor_method() -> Change:
    patch, undo = patched_tensor("relu", lambda self: self * 3)
    return Change(lambda x: x.relu(), patch, undo=undo)


@change
def tensor_method_of_torch_in_python() -> Change:
    patch, undo = patched_tensor("norm", lambda self: self.sum() * 3)
    return Change(lambda x: x * x.norm(), patch, undo=undo)


@change
def tensor_method_through_the_class() -> Change:
    patch, undo = patched_tensor("relu", lambda self: self * 3)
    return Change(lambda x: torch.Tensor.relu(x), patch, undo=undo)


@change
def tensor_operator() -> Change:
    patch, undo = patched_tensor("__add__", lambda self, other: self * 3)
    return Change(lambda x: x + 1, patch, undo=undo)


@change
def tensor_operator_reflected() -> Change:
    patch, undo = patched_tensor("__rsub__", lambda self, other: self * 3)
    return Change(lambda x: 1 - x, patch, undo=undo)


@change
def tensor_operator_in_place() -> Change:
    patch, undo = patched_tensor("__iadd__", lambda self, other: self * 3)

    def program(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        x += 1
        return x

    return Change(program, patch, undo=undo)


@change
def tensor_unary() -> Change:
    patch, undo = patched_tensor("__neg__", lambda self: self * 3)
    return Change(lambda x: -x, patch, undo=undo)


@change
def tensor_comparison() -> Change:
    patch, undo = patched_tensor("__gt__", lambda self, other: self * 3)
    return Change(lambda x: x > 0, patch, undo=undo)


@change
def tensor_property() -> Change:
    patch, undo = patched_tensor("ndim", property(lambda self: 7))
    return Change(lambda x: x * x.ndim, patch, undo=undo)


@change
def tensor_metadata_method() -> Change:
    patch, undo = patched_tensor("dim", lambda self: 7)
    return Change(lambda x: x * x.dim(), patch, undo=undo)


@change
def tensor_method_of_the_program() -> Change:
    patch, undo = patched_tensor("kiln_test_method", lambda self: self * 2)
    patch()
    return Change(
        lambda x: x.kiln_test_method(),
        lambda: setattr(torch.Tensor, "kiln_test_method", lambda self: self * 3),
        undo=undo,
    )


@change
def tensor_method_that_reads_state() -> Change:
    scale = [2.0]
    patch, undo = patched_tensor("relu", lambda self: self * scale[0])
    patch()
    return Change(lambda x: x.relu(), lambda: scale.__setitem__(0, 3.0), undo=undo)


@change
def tensor_has_a_name() -> Change:
    patch, undo = patched_tensor("kiln_test_name", 1)
    return Change(lambda x: x + 1 if hasattr(x, "kiln_test_name") else x - 1, patch, undo=undo)


@change
def result_has_a_name() -> Change:
    patch, undo = patched_tensor("kiln_test_name", 1)
    return Change(lambda x: x + 1 if hasattr(x * 2, "kiln_test_name") else x - 1, patch, undo=undo)


@change
def tensor_instance_has_a_name() -> Change:
    held = [torch.ones(5)]

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if hasattr(held[0], "kiln_test_name") else x - 1

    return Change(program, lambda: setattr(held[0], "kiln_test_name", 1))


@change
def tensor_instance_loses_a_name() -> Change:
    held: list[Any] = [torch.ones(5)]
    held[0].kiln_test_name = 1

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if hasattr(held[0], "kiln_test_name") else x - 1

    return Change(program, lambda: delattr(held[0], "kiln_test_name"))


@change
def function_of_torch() -> Change:
    own = torch.sin
    return Change(
        lambda x: torch.sin(x), lambda: setattr(torch, "sin", torch.cos), undo=lambda: setattr(torch, "sin", own)
    )


@change
def threads() -> Change:
    count = torch.get_num_threads()
    return Change(
        lambda x: x * torch.get_num_threads(),
        lambda: torch.set_num_threads(count + 1),
        undo=lambda: torch.set_num_threads(count),
    )


def setting(owner: str, name: str, read: str = "{owner}.{name}") -> Change:
    """A program that reads the attribute `name` of `owner`, an import path, in the way that `read` spells."""
    module = eval(owner)
    before = getattr(module, name)
    return Change(
        eval(f"lambda x: x + 1 if {read.format(owner=owner, name=name)} else x - 1"),
        lambda: set_flag(module, name, not before),
        undo=lambda: set_flag(module, name, before),
    )


def set_flag(owner: Any, name: str, value: object) -> None:
    """Also where torch's own test helpers were imported, which allow changes of flags by context managers only."""
    with torch.backends.__allow_nonbracketed_mutation():
        setattr(owner, name, value)


@change
def mkldnn_enabled() -> Change:
    return setting("torch.backends.mkldnn", "enabled")


@change
def cudnn_benchmark() -> Change:
    return setting("torch.backends.cudnn", "benchmark")


@change
def cudnn_deterministic() -> Change:
    return setting("torch.backends.cudnn", "deterministic")


@change
def flag_that_getattr_reads() -> Change:
    return setting("torch.backends.cudnn", "deterministic", "getattr({owner}, {name!r})")


@change
def tf32_in_products() -> Change:
    return setting("torch.backends.cuda.matmul", "allow_tf32")


@change
def precision_of_products() -> Change:
    before = torch.get_float32_matmul_precision()
    return Change(
        lambda x: x + len(torch.get_float32_matmul_precision()),
        lambda: torch.set_float32_matmul_precision("medium"),
        undo=lambda: torch.set_float32_matmul_precision(before),
    )


@change
def autocast_cache() -> Change:
    return Change(
        lambda x: x + 1 if torch.is_autocast_cache_enabled() else x - 1,
        lambda: torch.set_autocast_cache_enabled(False),
        undo=lambda: torch.set_autocast_cache_enabled(True),
    )


@change
def autocast_dtype_that_is_off() -> Change:
    before = torch.get_autocast_dtype("cpu")
    return Change(
        lambda x: x.to(torch.get_autocast_dtype("cpu")),
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        undo=lambda: torch.set_autocast_dtype("cpu", before),
    )


@change
def field_of_a_named_tuple() -> Change:
    pair = namedtuple("pair", "left right")
    return Change(lambda x, p: x * p.left, lambda: setattr(pair, "left", property(lambda self: 7)), (X, pair(2, 3)))


@change
def fields_of_a_named_tuple_swapped() -> Change:
    pair: Any = namedtuple("pair", "left right")

    def swap() -> None:
        pair.left, pair.right = pair.right, pair.left

    return Change(lambda x, p: x * p.left, swap, (X, pair(2, 3)))


def descriptor() -> tuple[Any, Any, Any]:
    kind = class_of("class C:\n    def __get__(self, o, t): return 2.0")
    owner = class_of("class C: pass")
    owner.scale = kind()
    instance = owner()
    instance.__dict__["scale"] = 5.0
    return kind, owner, instance


@change
def descriptor_gains_set() -> Change:
    kind, _, instance = descriptor()
    return Change(lambda x, o: x * o.scale, lambda: setattr(kind, "__set__", lambda s, o, v: None), (X, instance))


@change
def descriptor_loses_set() -> Change:
    kind, _, instance = descriptor()
    kind.__set__ = lambda self, o, v: None
    return Change(lambda x, o: x * o.scale, lambda: delattr(kind, "__set__"), (X, instance))


@change
def class_attribute_gains_get() -> Change:
    kind = class_of("class C:\n    def __init__(self): self.value = 2.0")
    owner = class_of("class C: pass")
    owner.part = kind()
    other = kind()
    other.value = 3.0
    return Change(lambda x, o: x * o.part.value, lambda: setattr(kind, "__get__", lambda s, o, t: other), (X, owner()))


@change
def descriptor_changes_get() -> Change:
    kind, owner, _ = descriptor()
    return Change(lambda x, o: x * o.scale, lambda: setattr(kind, "__get__", lambda s, o, t: 3.0), (X, owner()))


@change
def descriptor_read_through_the_class() -> Change:
    kind, owner, _ = descriptor()
    return Change(lambda x: x * owner.scale, lambda: setattr(kind, "__get__", lambda s, o, t: 3.0))


@change
def metaclass_gains_a_property() -> Change:
    meta = class_of("class C(type): pass")
    cls = meta("Made", (), {"scale": 2.0})
    return Change(lambda x: x * cls.scale, lambda: setattr(meta, "scale", property(lambda cls: 3.0)))


@change
def metaclass_gains_a_call() -> Change:
    meta = class_of("class C(type): pass")
    cls = meta("Made", (), {"scale": 2.0})
    return Change(
        lambda x: x * cls().scale,
        lambda: setattr(meta, "__call__", lambda cls: types.SimpleNamespace(scale=3.0)),
    )


@change
def metaclass_gains_a_getattr() -> Change:
    meta = class_of("class C(type): pass")
    cls = meta("Made", (), {})
    return Change(lambda x: x * getattr(cls, "scale", 2.0), lambda: setattr(meta, "__getattr__", lambda cls, name: 3.0))


@change
def metaclass_gains_an_attribute() -> Change:
    meta = class_of("class C(type): pass")
    cls = meta("Made", (), {})
    return Change(lambda x: x * getattr(cls, "scale", 2.0), lambda: setattr(meta, "scale", 3.0))


@change
def class_gains_an_attribute() -> Change:
    cls = class_of("class C: pass")
    return Change(lambda x: x * getattr(cls, "scale", 2.0), lambda: setattr(cls, "scale", 3.0))


@change
def base_class_replaced() -> Change:
    first = class_of("class C:\n    scale = 2.0")
    second = class_of("class C:\n    scale = 3.0")
    cls = class_of("class C(Base): pass", Base=first)
    return Change(lambda x, o: x * o.scale, lambda: setattr(cls, "__bases__", (second,)), (X, cls()))


@change
def init_that_appears() -> Change:
    cls = class_of("class C:\n    scale = 2.0")

    def init(self: Any) -> None:
        self.scale = 3.0

    return Change(lambda x: x * cls().scale, lambda: setattr(cls, "__init__", init))


@change
def new_that_appears() -> Change:
    cls = class_of("class C:\n    scale = 2.0")
    return Change(
        lambda x: x * cls().scale,
        lambda: setattr(cls, "__new__", lambda cls: types.SimpleNamespace(scale=3.0)),
    )


@change
def call_that_appears() -> Change:
    cls = class_of("class C: pass")
    return Change(
        lambda x, o: x + 1 if callable(o) else x - 1, lambda: setattr(cls, "__call__", lambda self: 1), (X, cls())
    )


@change
def truth_that_appears() -> Change:
    cls = class_of("class C: pass")
    return Change(lambda x, o: x + 1 if o else x - 1, lambda: setattr(cls, "__bool__", lambda self: False), (X, cls()))


@change
def length_that_appears() -> Change:
    cls = class_of("class C: pass")
    return Change(lambda x, o: x + 1 if o else x - 1, lambda: setattr(cls, "__len__", lambda self: 0), (X, cls()))


@change
def equality_that_appears() -> Change:
    cls = class_of("class C: pass")
    a, b = cls(), cls()
    return Change(
        lambda x, a, b: x + 1 if a == b else x - 1,
        lambda: setattr(cls, "__eq__", lambda self, other: True),
        (X, a, b),
    )


@change
def inference_tensor() -> Change:
    held = [torch.ones(5)]
    with torch.inference_mode():
        other = torch.ones(5)
    return Change(lambda x: x + 1 if held[0].is_inference() else x - 1, lambda: held.__setitem__(0, other))


@change
def value_of_an_enum() -> Change:
    kind = enum.Enum("kind", {"A": 2})
    return Change(lambda x: x * kind.A.value, lambda: setattr(kind.A, "_value_", 3))


@change
def value_of_an_enum_argument() -> Change:
    kind = enum.Enum("kind", {"A": 2})
    return Change(lambda x, k: x * k.value, lambda: setattr(kind.A, "_value_", 3), (X, kind.A))


@change
def added_read_of_an_enum() -> Change:
    class Mode(enum.Enum):
        A = 2

    def read(self: Any, name: str) -> Any:
        return 7.5 if name == "value" else object.__getattribute__(self, name)

    return Change(lambda x, mode: x * mode.value, lambda: setattr(Mode, "__getattribute__", read), (X, Mode.A))


@change
def missing_attribute_of_an_enum() -> Change:
    class Mode(enum.Enum):
        A = 2

        def __getattr__(self, name: str) -> Any:
            if name == "scale":
                return 5
            raise AttributeError(name)

    change = functools.partial(setattr, Mode, "__getattr__", lambda self, name: 9)
    return Change(lambda x, mode: x * mode.scale, change, (X, Mode.A))


@change
def attribute_of_an_enum() -> Change:
    kind: Any = enum.Enum("kind", {"A": 2})
    kind.A.scale = 2.0
    return Change(lambda x, k: x * k.scale, lambda: setattr(kind.A, "scale", 3.0), (X, kind.A))


@change
def class_of_an_object_that_is_identified() -> Change:
    class Item:
        scale = 2.0

    class Other(Item):
        scale = 3.0

    first, second = Item(), Item()

    def program(x: torch.Tensor, first: Item, second: Item) -> torch.Tensor:
        return x * first.scale * second.scale + len({first, second})

    return Change(program, lambda: setattr(second, "__class__", Other), (X, first, second))


@change
def global_that_was_missing() -> Change:
    space: dict[str, Any] = {}
    text = "def program(x):\n    try:\n        return x * missing\n    except NameError:\n        return x - 1"
    exec(text, space)
    return Change(space["program"], lambda: space.update(missing=3.0))


@change
def builtin_that_was_missing() -> Change:
    space: dict[str, Any] = {"__builtins__": builtins}
    text = "def program(x):\n    try:\n        return x * kiln_missing\n    except NameError:\n        return x - 1"
    exec(text, space)
    return Change(
        space["program"],
        lambda: setattr(builtins, "kiln_missing", 3.0),
        undo=lambda: delattr(builtins, "kiln_missing"),
    )


@change
def property_of_an_enum() -> Change:
    class Mode(enum.Enum):
        FAST = 2

        @property
        def factor(self) -> float:
            return self.value * 10.0

    return Change(lambda x: x * Mode.FAST.factor, lambda: setattr(Mode, "factor", property(lambda self: 3.0)))


@change
def value_of_a_flag() -> Change:
    class Bits(enum.Flag):
        A = 1
        B = 2

    bits = Bits.A | Bits.B
    return Change(lambda x: x + 1 if Bits.B in bits else x - 1, lambda: setattr(bits, "_value_", 1))


class Direct:
    """At the top of a module, so that its functions have import paths."""

    def __getattribute__(self, name: str) -> float:
        return 2.0


@change
def code_of_a_special_method() -> Change:
    function: Any = Direct.__getattribute__
    code = function.__code__

    def replaced(self: Direct, name: str) -> float:
        return 3.0

    return Change(
        lambda x, direct: x * direct.scale,
        lambda: setattr(function, "__code__", replaced.__code__),
        (X, Direct()),
        undo=lambda: setattr(function, "__code__", code),
    )


@change
def lookup_of_a_metaclass() -> Change:
    class Meta(type):
        pass

    class Holder(metaclass=Meta):
        scale = 2.0

    def replaced(cls: type, name: str) -> Any:
        return 3.0 if name == "scale" else type.__getattribute__(cls, name)

    return Change(lambda x: x * Holder.scale, lambda: setattr(Meta, "__getattribute__", replaced))


@pytest.fixture
def changed(request: pytest.FixtureRequest) -> Iterator[Change]:
    made = CHANGES[request.param]()
    yield made
    made.undo()


@pytest.mark.filterwarnings("error:(?s).*KILN9000")
@change
def a_name_that_becomes_a_builtin() -> Change:
    def program(x: torch.Tensor) -> Any:
        try:
            return x * undefined_so_far  # type: ignore[name-defined]
        except NameError:
            return x - 1

    return Change(
        program,
        lambda: setattr(builtins, "undefined_so_far", 3),
        undo=lambda: delattr(builtins, "undefined_so_far"),
    )


@change
def a_call_of_a_nested_module_class() -> Change:
    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x)

    outer = Outer()
    return Change(lambda x: outer(x), lambda: setattr(Inner, "__call__", lambda self, x: x * 5))


@change
def a_reflected_operator_of_tensors() -> Change:
    kept = torch.Tensor.__rsub__
    return Change(
        lambda x: 2 - x,
        lambda: setattr(torch.Tensor, "__rsub__", lambda self, other: self * 7),
        undo=lambda: setattr(torch.Tensor, "__rsub__", kept),
    )


@change
def memory_that_two_views_shared() -> Change:
    """A result that is a view of the second is not one of the first any more."""
    first, other = torch.arange(10.0), -torch.arange(10.0)
    views = [first[:8], first[2:5]]

    def program(x: torch.Tensor) -> Any:
        return x + views[0].sum(), views[1].view(3, 1)

    return Change(program, lambda: views.__setitem__(1, other[2:5]))


@pytest.mark.parametrize("changed", CHANGES, indirect=True)
def test_a_change_is_noticed(changed: Change) -> None:
    compiled = kiln.compile(changed.program)
    for _ in range(3):  # the third call is on the fast path of the guards
        assert_like_eager_on(compiled, changed)
    changed.change()
    assert_like_eager_on(compiled, changed)


def assert_like_eager_on(compiled: Callable[..., Any], made: Change) -> None:
    torch.testing.assert_close(compiled(*made.arguments), made.program(*made.arguments))


PROGRAMS = {
    "patched function": """
        import os, torch
        if os.environ["CHANGED"] == "1":
            torch.sin = torch.cos
        from torch import sin
        def program(x): return sin(x)
    """,
    "function of Python in its place": """
        import os, torch, functools
        if os.environ["CHANGED"] == "1":
            torch.sin = functools.wraps(torch.sin)(lambda x: x * 3)
        from torch import sin
        def program(x): return sin(x)
    """,
    "function of torch in Python": """
        import os, torch, torch.nn.functional as F
        if os.environ["CHANGED"] == "1":
            F.gelu = F.relu = lambda x: x * 3
        def program(x): return F.relu(x)
    """,
    "patched method": """
        import os, torch
        if os.environ["CHANGED"] == "1":
            torch.Tensor.relu = lambda self: self * 3
        def program(x): return x.relu()
    """,
    "patched operator": """
        import os, torch
        if os.environ["CHANGED"] == "1":
            torch.Tensor.__add__ = lambda self, other: self * 3
        def program(x): return x + 1
    """,
    "enum": """
        import enum, os
        Mode = enum.Enum("Mode", {"FAST": 2 + int(os.environ["CHANGED"])})
        Mode.__module__ = __name__
        def program(x): return x * Mode.FAST.value
    """,
    "class of an enum": """
        import enum, os
        class Mode(enum.Enum):
            FAST = 2 + int(os.environ["CHANGED"])
        def program(x, mode=Mode.FAST): return x * mode.value if mode is Mode.FAST else x
    """,
    "named tuple": """
        import collections, os
        names = "left right" if os.environ["CHANGED"] == "0" else "right left"
        Pair = collections.namedtuple("Pair", names)
        pair = Pair(2, 3)
        def program(x): return x * pair.left
    """,
    "named tuple made inside": """
        import collections, os
        names = "left right" if os.environ["CHANGED"] == "0" else "right left"
        Pair = collections.namedtuple("Pair", names)
        def program(x): return x * Pair(2, 3).left
    """,
    "cached function": """
        import functools, os
        @functools.lru_cache
        def factor(n): return n * (2 + int(os.environ["CHANGED"]))
        def program(x): return x * factor(2)
    """,
    "operator": """
        import os, torch
        if os.environ["CHANGED"] == "1":
            torch.ops.aten.sin = torch.ops.aten.cos
        def program(x): return torch.ops.aten.sin(x)
    """,
    "registry": """
        import abc, os
        class Base(abc.ABC): pass
        class Other: pass
        if os.environ["CHANGED"] == "1":
            Base.register(Other)
        other = Other()
        def program(x): return x + 1 if isinstance(other, Base) else x - 1
    """,
    "setting": """
        import os, torch
        torch.set_num_threads(1 + int(os.environ["CHANGED"]))
        def program(x): return x * torch.get_num_threads()
    """,
}
RUN = """
import sys, torch, {module}, kiln
x = torch.linspace(-2.0, 2.0, 5)
compiled = kiln.compile({module}.program, options=dict(cache=True, cache_dir=sys.argv[1]))
torch.testing.assert_close(compiled(x), {module}.program(x))
print(kiln.report_of(compiled).compiles, kiln.report_of(compiled).loaded)
"""


def in_process(folder: Path, module: str, changed: int) -> str:
    """Compiles or loads and runs the program in a process of its own; how many regions it compiled and loaded."""
    command = [sys.executable, "-c", RUN.format(module=module), str(folder / "cache")]
    env = os.environ | {"CHANGED": str(changed), "PYTHONPATH": search_path(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_operator_is_looked_up_for_the_first_time() -> None:
    """The look-up makes the name in its namespace."""
    library = torch.library.Library("kiln_test_first_use", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    compiled = kiln.compile(lambda x: torch.ops.kiln_test_first_use.twice.default(x), fullgraph=True)
    assert "twice" not in vars(torch.ops.kiln_test_first_use)
    torch.testing.assert_close(compiled(X), X * 2)


SUBSCRIPT = """
import torch, kiln
x = torch.linspace(-2.0, 2.0, 5)
program = lambda x: x[1:]
compiled = kiln.compile(program, options=dict(cache=False))
for _ in range(3):
    torch.testing.assert_close(compiled(x), program(x))
torch.Tensor.__getitem__ = lambda self, key: self * 3
torch.testing.assert_close(compiled(x), program(x))
"""


def test_a_replaced_subscript_is_noticed() -> None:
    """In a process of its own: CPython keeps the slot of sequences when `__getitem__` is deleted from a class again,
    and `torch.tensor([x.sum()])` raises from then on."""
    env = os.environ | {"PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SUBSCRIPT], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("table", ["_parameters", "_buffers", "_modules"])
@pytest.mark.parametrize("content", [None, 5, []])
def test_a_module_keeps_its_members_in_something_else(table: str, content: object) -> None:
    """torch's own `__getattr__` looks into each table in turn."""
    net = torch.nn.Sequential()
    net.add_module("inner", torch.nn.Identity())

    def program(x: torch.Tensor) -> torch.Tensor:
        return net.inner(x) + 1

    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    compiled(X)
    net.__dict__[table] = content
    assert_like_eager(compiled, program, X)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_another_process_is_not_given_stale_code(name: str, tmp_path: Path) -> None:
    (tmp_path / "stale_program.py").write_text(textwrap.dedent(PROGRAMS[name]))
    assert in_process(tmp_path, "stale_program", 0) == "1 0"
    assert in_process(tmp_path, "stale_program", 0) == "0 1"
    assert in_process(tmp_path, "stale_program", 1) == "1 0"


class Plain:
    def __init__(self, v: int) -> None:
        self.v = v


class Answers(Plain):
    def __getattr__(self, name: str) -> int:
        if name != "other":
            raise AttributeError(name)
        return 5


class Computes(Plain):
    def __getattribute__(self, name: str) -> object:
        return 7 if name == "v" else super().__getattribute__(name)


class Covers(Plain):
    @property
    def v(self) -> int:
        return 9

    @v.setter
    def v(self, value: int) -> None:
        pass


READS: tuple[Callable[[Any], Any], ...] = (
    lambda held: hasattr(held, "other"), lambda held: held.v, lambda held: getattr(held, "other", None),
)  # fmt: skip


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("named", [Plain, Answers, Computes, Covers])
def test_a_class_is_known_from_another_object(named: type[Plain], read: Callable[[Any], Any]) -> None:
    """What guards say of a class on the path of one object holds for another only while that has the class."""

    def program(x: torch.Tensor, held: Plain) -> Any:
        return x + named(0).v, read(held)

    compiled = kiln.compile(program, backend="eager")
    for kind in (named, Plain, Answers, Computes, Covers):
        assert_like_eager(compiled, program, X, kind(3))


def test_the_code_of_the_compiled_function() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled, first = kiln.compile(program), program.__code__
    for code in (first, (lambda x: x * 5).__code__, (lambda x, y=2: x - y).__code__, first):
        program.__code__ = code
        assert_like_eager(compiled, program, X)


def test_uninitialised_memory_under_deterministic_algorithms() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.empty(3), torch.empty_like(x), x.new_empty(2, dtype=torch.int8), torch.empty(2, dtype=torch.bool)

    compiled = kiln.compile(program, options={"cache": False})
    compiled(X)
    torch.use_deterministic_algorithms(True)
    try:
        assert_like_eager(compiled, program, X)
        torch.utils.deterministic.fill_uninitialized_memory = False
        compiled(X)
        assert "fill_uninitialized_memory" in str(kiln.report_of(compiled))
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Doubling:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize("cls", [Scaled, Doubling])
def test_a_call_set_on_the_class_of_the_compiled_object(cls: type) -> None:
    original = cls.__call__
    instance = cls()
    compiled = kiln.compile(instance, options={"cache": False})
    calls: list[Any] = [
        lambda self, x: original(self, x) * 3,
        lambda self, x, y=2: x - y,
        functools.partialmethod(lambda self, y, x: x * y, 5),
    ]
    assert_like_eager(compiled, instance, X)
    for call in calls:
        cls.__call__ = call  # type: ignore[method-assign]
        try:
            for _ in range(2):
                assert_like_eager(compiled, instance, X)
        finally:
            if cls is Scaled:
                del cls.__call__
            else:
                cls.__call__ = original  # type: ignore[method-assign]
        assert_like_eager(compiled, instance, X)


class Registry(type):
    factor = 3


class Counted(metaclass=Registry):
    total = 0
    items = (1,)

    def read(self, x: torch.Tensor) -> Any:
        kind = type(self)
        return x + kind.total, kind.items, type(self).factor, getattr(type(self), "late", -1)

    def count(self, x: torch.Tensor) -> Any:
        type(self).total = type(self).total + 1
        return x * type(self).total, self.total


def test_attributes_through_the_class_of_an_object() -> None:
    """`type(o).total` is known by a path through `o`: it was taken for a constant."""
    counted = Counted()
    compiled = kiln.compile(lambda x: counted.read(x), backend="eager", options={"cache": False})
    compiled(X)
    for owner, name, value in (
        (Counted, "total", 5), (Counted, "items", (2, 3)), (Registry, "factor", 7), (Counted, "late", 1),
    ):  # fmt: skip
        setattr(owner, name, value)
        assert_like_eager(compiled, lambda x: counted.read(x), X)


def test_a_class_counts_its_calls() -> None:
    counted = Counted()
    compiled = kiln.compile(lambda x: counted.count(counted.count(x)[0]), backend="eager", options={"cache": False})
    Counted.total = 0
    for calls in range(1, 4):
        assert compiled(X)[1] == Counted.total == 2 * calls
