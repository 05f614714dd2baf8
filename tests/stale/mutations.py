"""Everything that a module reaches, one change at a time.

for change in changes(module): undo = change.apply(); ...; undo()

SCALE = 3.0                        a global; also attributes of objects and classes, items of containers
shift.__code__: constant + 1       parts of functions: code, defaults, cells
Base.__getattr__ is added          special methods that a class lacked
thing.__class__ = a subclass       classes, bases
torch.relu is wrapped              functions of torch whose names the module's code uses
torch.set_num_threads(2)           settings of torch
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Undo = Callable[[], object]
MISSING = object()


@dataclass(frozen=True)
class Change:
    text: str
    apply: Callable[[], Undo]
    library: bool = False
    """It must be undone before anything else is done with torch."""


def changes(module: types.ModuleType) -> list[Change]:
    walk = Walk(module)
    walk.attributes(module.__name__, module, vars(module))
    return [*walk.found, *library_changes(walk.names), *SETTINGS]


class Walk:
    """Follows what belongs to the module, each object once."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self.found: list[Change] = []
        self.seen: set[int] = set()
        self.names: set[str] = set()
        self.pool = [value for name, value in vars(module).items() if not name.startswith("__")]

    def add(self, text: str, apply: Callable[[], Undo]) -> None:
        self.found.append(Change(text, apply))

    def owns(self, value: object) -> bool:
        return getattr(value, "__module__", None) == self.module.__name__

    def attributes(self, path: str, owner: Any, space: Any) -> None:
        """Each attribute of `owner` gets other values or vanishes, and is followed."""
        for name, value in list(space.items()):
            if name in UNTOUCHED or isinstance(value, types.ModuleType | types.GetSetDescriptorType):
                continue
            where = f"{path}.{name}"
            for text, other in self.others(value):
                self.add(f"{where} = {text}", lambda name=name, other=other: set_attribute(owner, name, other))
            self.add(f"del {where}", lambda name=name: set_attribute(owner, name, MISSING))
            self.follow(where, value)
        if not isinstance(owner, types.ModuleType):
            self.add(f"{path}.added = 9.0", lambda: set_attribute(owner, "added", 9.0))
            for name in ("bonus", "missing", "looks", "note"):
                self.add(f"{path}.{name} = 9.0", lambda name=name: set_attribute(owner, name, 9.0))
        else:
            for name in ("missing", "len", "sum", "isinstance", "hasattr", "super", "range"):
                self.add(f"{path}.{name} = lambda", lambda name=name: set_attribute(owner, name, lambda *a: 4.0))

    def others(self, value: Any) -> Iterator[tuple[str, object]]:
        """Values to put in the place of `value`."""
        if isinstance(value, bool):
            yield "not", not value
        elif isinstance(value, enum.Enum):
            yield from ((f"member {member.name}", member) for member in type(value) if member is not value)
        elif isinstance(value, int | float):
            yield from (
                ("+1", value + 1),
                ("negative", -value),
                ("other type", float(value) if isinstance(value, int) else int(value)),
            )
        elif isinstance(value, str):
            yield from (("longer", value + "x"), ("slow", "slow"), ("empty", ""))
        elif isinstance(value, torch.Tensor):
            yield from tensors(value)
        elif isinstance(value, types.FunctionType):
            yield "wrapped", wrapped(value)
        elif isinstance(value, property) and value.fget is not None:
            yield "other getter", property(wrapped(value.fget))
        elif isinstance(value, staticmethod | classmethod):
            yield "wrapped", type(value)(wrapped(value.__func__))
        elif isinstance(value, type) and not isinstance(value, enum.EnumMeta):
            yield "subclass", subclass(value)
        elif type(value) in (list, tuple, set, frozenset, dict):
            yield from containers(value)
        elif callable(value):
            yield "wrapped", wrapped(value)
        yield "None", None
        for other in self.pool:
            if type(other) is type(value) and other is not value:
                yield "another of its type", other

    def follow(self, path: str, value: Any) -> None:
        if id(value) in self.seen:
            return
        self.seen.add(id(value))
        if isinstance(value, types.FunctionType):
            self.function(path, value)
        elif isinstance(value, staticmethod | classmethod):
            self.follow(f"{path}.__func__", value.__func__)
        elif isinstance(value, property):
            self.follow(f"{path}.fget", value.fget)
        elif isinstance(value, type):
            if self.owns(value):
                self.type(path, value)
        elif isinstance(value, dict):
            self.mapping(path, value)
        elif isinstance(value, list):
            self.sequence(path, value)
        elif isinstance(value, set):
            for text, apply in (
                ("add", lambda: refill(value, value | {2, "fast", 77})),
                ("clear", lambda: refill(value, set())),
            ):
                self.add(f"{path} {text}", apply)
        elif isinstance(value, torch.Tensor):
            self.add(f"{path}.note = 1", lambda: set_attribute(value, "note", 1))
            self.add(f"{path}.requires_grad", lambda: toggled_gradient(value))
            self.add(f"{path}.data", lambda: set_attribute(value, "data", value.detach() * 2))
        elif hasattr(value, "__dict__") or self.owns(type(value)):
            self.instance(path, value)

    def instance(self, path: str, value: Any) -> None:
        if hasattr(value, "__dict__"):
            self.attributes(path, value, vars(value))
        if self.owns(type(value)):
            self.add(f"{path}.__class__", lambda: set_attribute(value, "__class__", subclass(type(value))))
            self.follow(f"type({path})", type(value))
        if isinstance(value, torch.nn.Module):
            self.add(f"{path}.train()", lambda: trained(value))
            self.add(f"{path} gets a hook", lambda: value.register_forward_hook(lambda m, i, o: o + 1).remove)

    def function(self, path: str, value: types.FunctionType) -> None:
        if value.__globals__ is not vars(self.module):
            return
        self.names.update(value.__code__.co_names)
        code = changed_code(value.__code__)
        if code is not None:
            self.add(f"{path}.__code__", lambda: set_attribute(value, "__code__", code))
        for part in ("__defaults__", "__kwdefaults__"):
            held = getattr(value, part)
            if held:
                other = changed_items(held)
                self.add(f"{path}.{part}", lambda part=part, other=other: set_attribute(value, part, other))
                self.add(f"{path}.{part} vanish", lambda part=part: set_attribute(value, part, None))
        for cell in value.__closure__ or ():
            for text, other in self.others(cell.cell_contents):
                self.add(
                    f"cell of {path} = {text}",
                    lambda cell=cell, other=other: set_attribute(cell, "cell_contents", other),
                )
            self.follow(f"cell of {path}", cell.cell_contents)
        self.attributes(path, value, vars(value))

    def type(self, path: str, cls: type) -> None:
        self.attributes(path, cls, vars(cls))
        for name, function in ADDED.items():
            if isinstance(cls, enum.EnumMeta) and name == "__get__":
                continue  # CPython looks members up without it or with it, by version
            self.add(f"{path}.{name} is added", lambda name=name, function=function: set_attribute(cls, name, function))
        if type(cls) is not type and self.owns(type(cls)):
            self.follow(f"type({path})", type(cls))
        bases = tuple(subclass(base) if self.owns(base) else base for base in cls.__bases__)
        if bases != cls.__bases__:
            self.add(f"{path}.__bases__", lambda: set_attribute(cls, "__bases__", bases))
        if isinstance(cls, enum.EnumMeta):
            for member in cls:
                self.add(f"{path}.{member.name}._value_", lambda member=member: set_attribute(member, "_value_", 77))
        if hasattr(cls, "register") and hasattr(cls, "_abc_impl"):
            for other in self.pool:
                if isinstance(other, type) and not issubclass(other, cls):
                    self.add(f"{path}.register({other.__name__})", lambda other=other: registered(cls, other))

    def mapping(self, path: str, value: dict[Any, Any]) -> None:
        for key, held in list(value.items()):
            for text, other in self.others(held):
                self.add(f"{path}[{key!r}] = {text}", lambda key=key, other=other: refill(value, {**value, key: other}))
            self.add(
                f"del {path}[{key!r}]", lambda key=key: refill(value, {k: v for k, v in value.items() if k != key})
            )
            self.follow(f"{path}[{key!r}]", held)
        self.add(f"{path} gets a key", lambda: refill(value, {**value, "q": 3.0}))
        self.add(f"{path} is turned round", lambda: refill(value, dict(reversed(value.items()))))

    def sequence(self, path: str, value: list[Any]) -> None:
        for index, held in enumerate(value):
            for text, other in self.others(held):
                items = [*value[:index], other, *value[index + 1 :]]
                self.add(f"{path}[{index}] = {text}", lambda items=items: refill(value, items))
            self.follow(f"{path}[{index}]", held)
        self.add(f"{path}.pop()", lambda: refill(value, value[:-1]))
        self.add(f"{path}.append(6)", lambda: refill(value, [*value, 6]))
        self.add(f"{path} is turned round", lambda: refill(value, value[::-1]))


UNTOUCHED = frozenset((
    "__name__", "__doc__", "__dict__", "__weakref__", "__builtins__", "__module__", "__qualname__", "__annotations__",
    "__spec__", "__loader__", "__package__", "__file__", "__slots__", "__dataclass_fields__", "__dataclass_params__",
    "__match_args__", "_abc_impl", "__abstractmethods__", "__wrapped__", "program", "__firstlineno__", "__orig_bases__",
    "_member_names_", "_member_map_", "_value2member_map_", "_unhashable_values_", "_new_member_", "_use_args_",
    "_member_type_", "_value_repr_", "_sort_order_", "__objclass__", "_backward_cls", "__new__",
))  # fmt: skip
ADDED: dict[str, Callable[..., object]] = {
    "__getattribute__": lambda self, name: (
        7.0 if name in ("gain", "value", "size", "width") else object.__getattribute__(self, name)
    ),
    "__getattr__": lambda self, name: 7.0 if not name.startswith("_") else getattr(None, name),
    "__bool__": lambda self: False,
    "__len__": lambda self: 2,
    "__call__": lambda self, *args: 5.0,
    "__eq__": lambda self, other: False,
    "__ne__": lambda self, other: False,
    "__lt__": lambda self, other: False,
    "__hash__": lambda self: 5,
    "__contains__": lambda self, item: False,
    "__iter__": lambda self: iter((1.0, 2.0)),
    "__getitem__": lambda self, key: 2.0,
    "__add__": lambda self, other: [1.0, 2.0],
    "__radd__": lambda self, other: 1.0,
    "__enter__": lambda self: 2.0,
    "__exit__": lambda self, *error: True,
    "__missing__": lambda self, key: 1.0,
    "__get__": lambda self, item, owner: 12.0,
    "__set__": lambda self, item, value: None,
    "__instancecheck__": lambda cls, item: False,
    "__subclasscheck__": lambda cls, item: True,
    "__init__": lambda self, *args, **named: None,
}


def set_attribute(owner: Any, name: str, value: object) -> Undo:
    """Sets, or deletes for MISSING; the function that puts back what was there."""
    space = getattr(owner, "__dict__", {})
    if isinstance(owner, type) and name not in ("__bases__",):
        before = space.get(name, MISSING)
    elif name in space:
        before = space[name]
    else:
        before = getattr(owner, name, MISSING) if name.startswith("__") or not space else space.get(name, MISSING)
    if name in ("data", "_value_", "cell_contents"):
        before = getattr(owner, name)

    def put(content: object) -> None:
        if content is MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, content)

    put(value)
    return lambda: put(before)


def refill(container: Any, content: Any) -> Undo:
    before = type(content)(container)

    def fill(items: Any) -> None:
        container.clear()
        container.extend(items) if isinstance(container, list) else container.update(items)

    fill(content)
    return lambda: fill(before)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        result = function(*args, **named)
        return result + 1 if isinstance(result, int | float | torch.Tensor) else result

    return call


def subclass(cls: type) -> type:
    body = {
        name: wrapped(value)
        for name, value in vars(cls).items()
        if type(value) is types.FunctionType and not name.startswith("__")
    }
    return type(cls)(cls.__name__, (cls,), {**body, "__slots__": ()})


def tensors(value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    plain = value.detach()
    made = [
        ("doubled", plain * 2),
        ("float64", plain.double()),
        ("shorter", plain[..., :1]),
        ("a parameter", torch.nn.Parameter(plain.clone())),
    ]
    if plain.dim():
        made.append(("strided", torch.stack([plain, plain], -1)[..., 1]))
    for text, other in made:
        yield text, torch.nn.Parameter(other) if isinstance(value, torch.nn.Parameter) and other.is_leaf else other


def containers(value: Any) -> Iterator[tuple[str, object]]:
    yield "empty", type(value)()
    if isinstance(value, list | tuple) and value:
        yield "turned round", type(value)(reversed(value))
        yield "other items", changed_items(value) if isinstance(value, tuple) else [*value, 1]


def changed_items(held: Any) -> Any:
    """A tuple or dict with other numbers."""
    if isinstance(held, dict):
        return {key: changed_number(item) for key, item in held.items()}
    return tuple(changed_number(item) for item in held)


def changed_number(value: object) -> object:
    return value + 1 if isinstance(value, int | float) else value


def changed_code(code: types.CodeType) -> types.CodeType | None:
    """The code with other numbers among its constants."""
    consts = tuple(item if isinstance(item, bool) else changed_number(item) for item in code.co_consts)
    return code.replace(co_consts=consts) if consts != code.co_consts else None


def toggled_gradient(value: torch.Tensor) -> Undo:
    value.requires_grad_(not value.requires_grad)
    return lambda: value.requires_grad_(not value.requires_grad)


def trained(module: torch.nn.Module) -> Undo:
    module.train(not module.training)
    return lambda: module.train(not module.training)


def registered(cls: Any, other: type) -> Undo:
    cls.register(other)
    return lambda: None


def library_changes(names: set[str]) -> Iterator[Change]:
    """Functions, methods and classes of torch and builtins under names that the program uses."""
    for owner in (torch, F, torch.Tensor, torch.nn.Linear, torch.nn.Module, torch.nn.ReLU):
        for name in sorted(names & set(dir(owner))):
            value = vars(owner).get(name)
            if callable(value) and not isinstance(value, type) and name not in ("apply", "linspace", "ones", "zeros"):
                yield Change(
                    f"{owner.__name__}.{name} is wrapped",
                    lambda o=owner, n=name, v=value: set_attribute(o, n, wrapped(v)),
                    True,
                )
    for name in ("__add__", "__mul__", "forward"):
        owner = torch.nn.Linear if name == "forward" else torch.Tensor
        yield Change(
            f"{owner.__name__}.{name} is wrapped",
            lambda o=owner, n=name: set_attribute(o, n, wrapped(getattr(o, n))),
            True,
        )


def setting(text: str, get: Callable[[], Any], put: Callable[[Any], object], other: Callable[[Any], Any]) -> Change:
    def apply() -> Undo:
        before = get()
        put(other(before))
        return lambda: put(before)

    return Change(text, apply, True)


def flag(owner: Any, name: str) -> Change:
    return setting(
        f"{name} of {owner.__name__}", lambda: getattr(owner, name), lambda v: setattr(owner, name, v), lambda v: not v
    )


SETTINGS = (
    setting("set_grad_enabled", torch.is_grad_enabled, torch.set_grad_enabled, lambda v: not v),
    setting("set_num_threads", torch.get_num_threads, torch.set_num_threads, lambda v: v + 1),
    setting("set_default_dtype", torch.get_default_dtype, torch.set_default_dtype, lambda v: torch.float64),
    setting("float32_matmul_precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision,
            lambda v: "high"),
    setting("deterministic", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms,
            lambda v: not v),
    setting("autocast", lambda: torch.is_autocast_enabled("cpu"), lambda v: torch.set_autocast_enabled("cpu", v),
            lambda v: not v),
    flag(torch.backends.mkldnn, "enabled"), flag(torch.backends.cudnn, "benchmark"),
    flag(torch.backends.cuda.matmul, "allow_tf32") if hasattr(torch.backends.cuda.matmul, "__name__") else
    setting("allow_tf32", lambda: torch.backends.cuda.matmul.allow_tf32,
            lambda v: setattr(torch.backends.cuda.matmul, "allow_tf32", v), lambda v: not v),
)  # fmt: skip
