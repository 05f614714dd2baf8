"""Methods of built-in containers, strings, generators and `object`."""

from __future__ import annotations

import operator
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.functions import fill, sort
from kiln.capture.interpreter.core import Args, CaptureState, Handler, Kwargs, Operator, Value, handles
from kiln.capture.interpreter.hashing import dict_key, entries_of, set_element
from kiln.capture.interpreter.native_calls import natives
from kiln.capture.interpreter.operations import compare, concatenate, contains, equal, fold, repeat, same, searched
from kiln.capture.interpreter.pure import is_written_in_c
from kiln.capture.interpreter.set_operators import operator_of_sets
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.classes import Class, refuse_finalizer, refuse_in_init, refuse_in_new
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.deferred_text import extend_list, text_of
from kiln.capture.interpreter.variables.iterators import Generator
from kiln.capture.interpreter.variables.mapping import Dict, DictView, dict_iterator, found_at, token_in
from kiln.capture.interpreter.variables.native_object import PLAIN as BUILT_IN_BASES
from kiln.capture.interpreter.variables.object import Object, find_attr, new_object
from kiln.capture.interpreter.variables.sequence import (
    List,
    Sequence,
    SequenceIterator,
    Tuple,
    all_items,
    held_items,
    is_plain_tuple,
    one_by_one,
    tuple_items,
)
from kiln.capture.interpreter.variables.sets import Set, tokens_of

NONE = Constant(None)
DICTS = (dict, OrderedDict, defaultdict, types.MappingProxyType)
SETS = (set, frozenset)
SEQUENCES = (list, tuple)
COMBINATIONS = ("union", "intersection", "difference", "symmetric_difference")
SET_OPERATORS = ("__or__", "__and__", "__sub__", "__xor__")
SET_CHANGES = ("update", *[f"{name}_update" for name in COMBINATIONS[1:]])
"""Of COMBINATIONS, in place."""
K = TypeVar("K", bound=Value)
Method = Callable[[CaptureState, K, Args, Kwargs], "Value | None"]


def native(value: Value) -> Value:
    """The container inside an object of a derived class, else the value."""
    inner: Value | None = getattr(value, "native", None)
    return inner if inner is not None else value


def method(kind: type[K], types_: tuple[type, ...], *names: str) -> Callable[[Method[K]], Method[K]]:
    """Register a method of several types. The handler gets the container itself; returning None means Python's None."""

    def register(handler: Method[K]) -> Method[K]:
        for owner in types_:
            for name in names:
                if hasattr(owner, name):
                    handles(getattr(owner, name))(on_native(kind, getattr(owner, name), handler))
        return handler

    return register


def on_native(kind: type[K], function: Callable[..., object], method: Method[K]) -> Handler:
    """The handler of a method: `method` on containers of this `kind`, the function itself on other objects."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        target = native(args[0])
        if not isinstance(target, kind):
            return natives(s).call(function, args, kwargs)
        result = method(s, target, args[1:], kwargs)
        if result is target:
            return args[0] if args[0] is target or not isinstance(result, Tuple) else plain_tuple(s, result)
        return NONE if result is None else result

    return handler


def plain_tuple(s: CaptureState, inner: Tuple) -> Tuple:
    """What is inside of an object whose class derives from `tuple`, as a tuple."""
    return Tuple([*inner.items(s)])


def methods(kind: type[K], types_: tuple[type, ...], handlers: Mapping[str, Method[K]]) -> None:
    for name, handler in handlers.items():
        method(kind, types_, name)(handler)


def own_iterator(s: CaptureState, items: Value) -> Value:
    """By the method of the built-in class."""
    return SequenceIterator(items) if isinstance(items, Sequence) else items.iterate(s)


def view(what: str) -> Method[Dict]:
    return lambda s, items, args, kwargs: DictView(items, what)


def new_set(name: str) -> Method[Set]:
    return lambda s, items, args, kwargs: items.combine(s, name, args)


def changed_set(name: str) -> Method[Set]:
    return lambda s, items, args, kwargs: items.combine_in_place(s, name, args)


def set_operator(name: str) -> Method[Set]:
    """`frozenset.__or__` and its kin: NotImplemented for what is no set."""
    handler = operator_of_sets(name)

    def apply(s: CaptureState, items: Set, args: Args, kwargs: Kwargs) -> Value:
        other = native(args[0])
        made = None if isinstance(other, DictView) else handler(s, items, other)
        return made or Constant(NotImplemented)

    return apply


def set_operator_in_place(method: str) -> Method[Set]:
    def change(s: CaptureState, items: Set, args: Args, kwargs: Kwargs) -> Value:
        other = native(args[0])
        if not isinstance(other, Set):
            return Constant(NotImplemented)
        items.combine_in_place(s, method, [other])
        return items

    return change


# fmt: off
methods(Value, (*SEQUENCES, *SETS, range, *DICTS), {
    "__len__":      lambda s, items, args, kwargs: Constant(items.length(s)),
})
methods(Value, (*SEQUENCES, *SETS, *DICTS), {
    "__iter__":     lambda s, items, args, kwargs: own_iterator(s, items),
    "__contains__": lambda s, items, args, kwargs: Constant(contains(s, items, args[0])),
})
methods(Value, (list, *DICTS), {
    "__setitem__":  lambda s, items, args, kwargs: items.set_item(s, args[0], args[1]),
    "__delitem__":  lambda s, items, args, kwargs: items.del_item(s, args[0]),
})
methods(Value, SEQUENCES, {
    "__getitem__":  lambda s, items, args, kwargs: items.get_item(s, args[0]),
    "count":  lambda s, items, args, kwargs: Constant(sum(equal(s, item, args[0]) for item in held_items(s, items))),
})
methods(List, (list,), {
    "append":       lambda s, items, args, kwargs: items.append(s, args[0]),
    "reverse":      lambda s, items, args, kwargs: items.change(s).reverse(),
    "copy":         lambda s, items, args, kwargs: List(list(items.items(s))),
    "clear":        lambda s, items, args, kwargs: items.change(s).clear(),
})
methods(Dict, DICTS, {
    "__reversed__": lambda s, items, args, kwargs: dict_iterator(s, items, "keys", backwards=True),
    "clear":        lambda s, items, args, kwargs: items.change(s).clear(),
    "__init__":     lambda s, items, args, kwargs: fill(s, items, args, kwargs),
    "update":       lambda s, items, args, kwargs: fill(s, items, args, kwargs),
    **{name: view(name) for name in ("keys", "values", "items")},
})
methods(Set, SETS, {
    "isdisjoint":   lambda s, items, args, kwargs: Constant(not any(held_of(s, items, args[0]))),
    "issuperset":   lambda s, items, args, kwargs: Constant(all(held_of(s, items, args[0]))),
    "issubset":     lambda s, items, args, kwargs: Constant(items.items(s).keys() <= tokens_of(s, args[0]).keys()),
    "copy":         lambda s, items, args, kwargs: items if items.cls is frozenset else items.combine(s, "copy", args),
    **{name: new_set(name) for name in COMBINATIONS},
    **{name: set_operator(name) for name in ("__le__", "__lt__", "__ge__", "__gt__", *SET_OPERATORS)},
})
methods(Set, (set,), {
    "clear":        lambda s, items, args, kwargs: items.combine_in_place(s, "intersection_update", [Tuple([])]),
    **{name: changed_set(name) for name in SET_CHANGES},
    **{f"__i{name[2:]}": set_operator_in_place(to) for name, to in zip(SET_OPERATORS, SET_CHANGES, strict=True)},
})
# fmt: on


@method(List, (list,), "extend")
def list_extend(s: CaptureState, target: List, args: Args, kwargs: Kwargs) -> None:
    extend_list(s, target, args[0])


@method(List, (list,), "__iadd__")
def list_extend_in_place(s: CaptureState, target: List, args: Args, kwargs: Kwargs) -> Value:
    list_extend(s, target, args, kwargs)
    return target


@method(List, (list,), "insert")
def list_insert(s: CaptureState, target: List, args: Args, kwargs: Kwargs) -> None:
    try:
        target.change(s).insert(args[0].constant(s), args[1])
    except (TypeError, OverflowError) as error:
        raise s.error(type(error), *error.args) from None


@method(List, (list,), "pop")
def list_pop(s: CaptureState, target: List, args: Args, kwargs: Kwargs) -> Value:
    index = args[0].constant(s) if args else -1
    try:
        return target.change(s).pop(index)
    except (IndexError, TypeError, OverflowError) as error:
        raise s.error(type(error), *error.args) from None


@method(List, (list,), "remove")
def list_remove(s: CaptureState, target: List, args: Args, kwargs: Kwargs) -> None:
    index = position(s, target, args[0])
    if index is None:
        raise s.error(ValueError, "list.remove(x): x not in list")
    del target.change(s)[index]


@method(List, (list,), "sort")
def list_sort(s: CaptureState, target: List, args: Args, kwargs: Kwargs) -> None:
    items = target.change(s)
    items[:] = sort(s, list(items), kwargs)


@method(Value, SEQUENCES, "index")
def sequence_index(s: CaptureState, target: Value, args: Args, kwargs: Kwargs) -> Value:
    start, stop = [arg.constant(s) for arg in args[1:]] + [None] * (3 - len(args))
    if None in (start, stop)[: len(args) - 1]:
        raise s.error(TypeError, "slice indices must be integers or have an __index__ method")
    bounds, items = slice(start, stop), held_items(s, target)
    found = position(s, List(items[bounds]), args[0])
    if found is None:  # the error, with the text of this version of Python
        empty, search = (Tuple([]), tuple.index) if target.python_type() is tuple else (List([]), list.index)
        return natives(s).call(search, [empty, args[0]], {})
    return Constant(found + bounds.indices(len(items))[0])


def position(s: CaptureState, container: Value, wanted: Value) -> int | None:
    for index, item in enumerate(held_items(s, container)):
        if equal(s, item, wanted):
            return index
    return None


@handles(*{kind.__getitem__ for kind in DICTS})
def dict_get_item(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Asks the `__missing__` of a class that derives from `dict`."""
    owner, key = args
    target = native(owner)
    if not isinstance(target, Dict):
        return natives(s).call(dict.__getitem__, args, kwargs)
    if isinstance(owner, Object) and s.classes.lookup(owner.cls, "__missing__") is not None:
        found = target.find(s, dict_key(s, key))
        return found if found is not None else s.call_special(owner, "__missing__", [key], {})
    return target.get_item(s, key)


@method(Value, (*SEQUENCES, *SETS, *DICTS), "__eq__")
def equal_(s: CaptureState, target: Value, args: Args, kwargs: Kwargs) -> Value:
    """NotImplemented for containers of another kind: the other operand is asked next."""
    other = native(args[0])
    if isinstance(target, Dict) and target.cls is types.MappingProxyType:  # it compares the mapping that it shows
        return compare(s, operator.eq, target.behind or Dict(target.items(s)), args[0])
    if isinstance(other, Dict) and other.cls is types.MappingProxyType:
        return Constant(NotImplemented)
    kinds = (Dict, Set) if not isinstance(target, Sequence) else (List,) if isinstance(target, List) else (Tuple,)
    if not any(isinstance(target, kind) and isinstance(other, kind) for kind in kinds):
        return Constant(NotImplemented)
    return Constant(equal(s, target, other))


@handles(range.__iter__, str.__iter__, bytes.__iter__)
def iterate_constant(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return List([s.wrap(item, None) for item in args[0].constant(s)]).iterate(s)


@method(Dict, DICTS, "get")
def dict_get(s: CaptureState, target: Dict, args: Args, kwargs: Kwargs) -> Value | None:
    found = found_at(s, target, args[0])
    if found is not None:
        return found
    return args[1] if len(args) > 1 else kwargs.get("default")


@method(Dict, DICTS, "__ior__")
def dict_update_in_place(s: CaptureState, target: Dict, args: Args, kwargs: Kwargs) -> Value:
    fill(s, target, args, kwargs)
    return target


@handles(OrderedDict.copy)
def ordered_copy(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`type(x)(x)`."""
    (target,) = args
    return s.wrap(target.python_type(), None).call(s, [target], {})


@method(Dict, (dict, defaultdict, types.MappingProxyType), "copy")
def dict_copy(s: CaptureState, target: Dict, args: Args, kwargs: Kwargs) -> Value:
    made = Dict(dict(target.items(s)), target.cls if target.cls in DICTS[:3] else dict)
    made.factory = target.factory
    return made


@handles(types.MappingProxyType)
def mapping_proxy(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    (mapping,) = args
    if not isinstance(mapping, Dict) or mapping.cls not in (dict, OrderedDict):
        raise UnsupportedCall(function="mappingproxy", why=f"it shows a {mapping.type_name()}")
    made = Dict(mapping.items(s), types.MappingProxyType)
    made.behind = mapping
    return made


@method(Dict, DICTS, "pop")
def dict_pop(s: CaptureState, target: Dict, args: Args, kwargs: Kwargs) -> Value:
    token = token_in(s, target, args[0])
    found = target.find(s, token)
    if found is not None:
        del target.change(s)[token]
        return found
    default = args[1] if len(args) > 1 else kwargs.get("default")
    if default is None:
        raise s.error(KeyError, args[0])
    return default


@method(Dict, DICTS, "popitem")
def dict_popitem(s: CaptureState, target: Dict, args: Args, kwargs: Kwargs) -> Value:
    items = target.change(s)
    if not items:
        raise s.error(KeyError, "popitem(): dictionary is empty")
    if is_last(s, args, kwargs):
        return Tuple(list(items.popitem()[1]))
    return Tuple(list(items.pop(next(iter(items)))))


def is_last(s: CaptureState, args: Args, kwargs: Kwargs) -> bool:
    """The argument `last` of the methods of OrderedDict."""
    found = args[0] if args else kwargs.get("last")
    return found is None or found.truth(s)


@method(Dict, DICTS, "setdefault")
def dict_setdefault(s: CaptureState, target: Dict, args: Args, kwargs: Kwargs) -> Value:
    found = target.find(s, token_in(s, target, args[0]))
    if found is not None:
        return found
    value = args[1] if len(args) > 1 else kwargs.get("default", NONE)
    target.set_item(s, args[0], value)
    return value


@method(Dict, (OrderedDict,), "move_to_end")
def move_to_end(s: CaptureState, target: Dict, args: Args, kwargs: Kwargs) -> None:
    token = token_in(s, target, args[0])
    items = target.change(s)
    if token not in items:
        raise s.error(KeyError, args[0])
    moved = items.pop(token)
    if is_last(s, args[1:], kwargs):
        items[token] = moved
    else:
        rest = dict(items)
        items.clear()
        items.update({token: moved, **rest})


@handles(dict.fromkeys)
def dict_fromkeys(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    value = args[1] if len(args) > 1 else NONE
    return Dict(entries_of(s, [(key, value) for key in all_items(s, args[0])]))


def held_of(s: CaptureState, items: Set, other: Value) -> Iterator[bool]:
    """For each item of an iterable whether the set holds it; it may be asked for some of them only."""
    if isinstance(other, Set):
        return (token in items.items(s) for token in other.items(s))
    return (set_element(s, item) in items.items(s) for item in one_by_one(s, other))


@method(Set, (set,), "add")
def set_add(s: CaptureState, target: Set, args: Args, kwargs: Kwargs) -> None:
    target.add(s, args[0])


@method(Set, (set,), "discard")
def set_discard(s: CaptureState, target: Set, args: Args, kwargs: Kwargs) -> None:
    key = searched(s, args[0])
    if key in target.items(s):
        del target.change(s)[key]


@method(Set, (set,), "remove")
def set_remove(s: CaptureState, target: Set, args: Args, kwargs: Kwargs) -> None:
    if target.change(s).pop(searched(s, args[0]), None) is None:
        raise s.error(KeyError, args[0])


@method(Set, (set,), "pop")
def set_pop(s: CaptureState, target: Set, args: Args, kwargs: Kwargs) -> Value:
    items = target.change(s)
    if not items:
        raise s.error(KeyError, "pop from an empty set")
    if len(items) > 1:
        raise UnsupportedCall(function="set.pop", why="which item it takes is not known while tracing")
    return items.popitem()[1]


@method(Value, (list, set), "__init__")
def container_init(s: CaptureState, target: Value, args: Args, kwargs: Kwargs) -> None:
    if len(args) > 1:
        kind = "list" if isinstance(target, List) else "set"
        raise s.error(TypeError, f"{kind} expected at most 1 argument, got {len(args)}")
    if isinstance(target, Set):
        target.change(s).clear()
        target.combine_in_place(s, "update", args)
    elif isinstance(target, List):
        target.change(s).clear()
        for arg in args:
            target.extend(s, arg)


def tuple_operator(function: Callable[..., object], apply: Operator) -> Handler:
    """The handler of `tuple.__mul__` and its kin. As the operator does, it may give the tuple itself."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        plain = args[0].python_type() is tuple and args[1].python_type() in (tuple, int)
        made = apply(s, args[0], args[1]) if plain else None
        return natives(s).call(function, args, kwargs) if made is None else made

    return handler


handles(tuple.__add__)(tuple_operator(tuple.__add__, concatenate))
handles(tuple.__mul__)(tuple_operator(tuple.__mul__, repeat))
handles(tuple.__rmul__)(tuple_operator(tuple.__rmul__, repeat))


@handles(tuple.__new__)
def tuple_new(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0].constant(s)
    if cls is tuple and len(args) > 1 and isinstance(args[1], Tuple) and args[1].cls is tuple:
        return args[1]
    items = tuple_items(s, args[1]) if len(args) > 1 else []
    if is_plain_tuple(s, cls):
        return Tuple(items, cls)
    made = Object(cls)
    made.native = Tuple(items)
    return made


def new_of(kind: type) -> Handler:
    """The handler of `int.__new__` and its kin: an instance of a class of the program that derives from `kind`."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        cls = args[0].constant(s) if isinstance(args[0], Class) else None
        if cls is None or is_written_in_c(cls) or not issubclass(cls, kind):
            return natives(s).call(kind.__new__, args, kwargs)
        refuse_finalizer(s, cls)
        return natives(s).construct(cls, kind, args[1:], kwargs)

    return handler


for _kind in (*BUILT_IN_BASES, frozenset):
    handles(_kind.__new__)(new_of(_kind))


@handles(object.__new__, dict.__new__, list.__new__, OrderedDict.__new__, set.__new__)
def object_new(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    refuse_finalizer(s, args[0].constant(s))
    made = new_object(s, args[0].constant(s))
    if len(args) > 1 or kwargs:
        refuse_in_new(s, made)
    return made


@handles(object.__init__)
def object_init(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > 1 or kwargs:
        refuse_in_init(s, args[0])
    return NONE


@handles(types.SimpleNamespace.__init__)
def namespace_init(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    made, *others = args
    if others or not isinstance(made, Object):
        raise UnsupportedCall(function="SimpleNamespace.__init__", why="it gets more than keywords")
    for name, value in kwargs.items():
        made.store_attr(s, name, value)
    return NONE


@handles(object.__init_subclass__, object.__dict__["__init_subclass__"])
def object_init_subclass(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if kwargs:
        name = args[0].constant(s).__name__
        raise s.error(TypeError, f"{name}.__init_subclass__() takes no keyword arguments")
    return NONE


@handles(object.__getattribute__)
def object_getattribute(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    name = args[1].constant(s)
    if not isinstance(name, str):
        raise s.error(TypeError, f"attribute name must be string, not '{type(name).__name__}'")
    found = find_attr(s, args[0], name)
    if found is None:
        s.class_lacks(args[0], name)
        if not isinstance(args[0], Object) or not args[0].had_attr(name):
            s.hides_nothing(args[0], name)
        raise s.error(AttributeError, f"'{args[0].type_name()}' object has no attribute '{name}'")
    return found


@handles(object.__setattr__)
def object_setattr(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    store = args[0].store_attr if isinstance(args[0], Object) else args[0].set_attr
    store(s, args[1].constant(s), args[2])
    return NONE


@handles(object.__delattr__)
def object_delattr(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    store = args[0].store_attr if isinstance(args[0], Object) else args[0].set_attr
    store(s, args[1].constant(s), None)
    return NONE


@handles(object.__str__, object.__format__)
def object_text(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    spec = args[1].constant(s) if len(args) > 1 else ""
    return fold(s, format, args[0].constant(s), spec)


@handles(object.__eq__)
def object_eq(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(same(s, args[0], args[1]) or NotImplemented)


@handles(str.join)
def str_join(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    items = all_items(s, args[1])
    made = text_of(s, str.join, [args[0], Tuple(items)])
    return made or Constant(args[0].constant(s).join([item.constant(s) for item in items]))


@handles(type.mro)
def class_list(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(args[0], Class)
    return List([s.wrap(cls, None) for cls in args[0].constant(s).__mro__])


def own_generator(value: Value) -> Generator:
    """A generator made in the frame; the body of one from outside cannot be interpreted."""
    if not isinstance(value, Generator):
        raise UnsupportedCall(function="generator", why="it was made outside of the graph")
    return value


def yielded(s: CaptureState, generator: Generator, item: Value | None) -> Value:
    if item is None:
        raise generator.stop(s)
    return item


@handles(types.GeneratorType.__iter__)
def generator_iter(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return args[0]


@handles(types.GeneratorType.send, types.CoroutineType.send)
def generator_send(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    generator = own_generator(args[0])
    return yielded(s, generator, generator.send(s, args[1]))


@handles(types.GeneratorType.throw, types.CoroutineType.throw)
def generator_throw(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    generator, kind, *rest = args
    generator = own_generator(generator)
    given = rest[0] if rest and not s.is_none(rest[0]) else None
    error = kind
    if isinstance(kind, Class) and issubclass(kind.cls, BaseException):
        known = given is not None and issubclass(given.python_type(), kind.cls)
        arguments = all_items(s, given) if isinstance(given, Tuple) else [given] if given is not None else []
        error = given if known and given is not None else kind.call(s, arguments, {})
    elif issubclass(kind.python_type(), BaseException):
        if given is not None:
            raise s.error(TypeError, "instance exception may not have a separate value")
    else:
        wanted = "exceptions must be classes or instances deriving from BaseException"
        raise s.error(TypeError, f"{wanted}, not {kind.type_name()}")
    return yielded(s, generator, generator.throw(s, error))


@handles(types.GeneratorType.close, types.CoroutineType.close)
def generator_close(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    own_generator(args[0]).close(s)
    return NONE


@handles(types.GeneratorType.__next__)
def generator_next(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    generator = own_generator(args[0])
    return yielded(s, generator, generator.next(s))


@handles(types.MethodType)
def bound_method(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return BoundMethod(args[0], args[1])


@handles(types.FunctionType.__get__)
def function_get(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    function, *owner = args
    return function if not owner or s.is_none(owner[0]) else BoundMethod(function, owner[0])
