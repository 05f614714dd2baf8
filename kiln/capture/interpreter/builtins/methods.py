"""Methods of built-in containers, strings, generators and `object`."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

from kiln.capture.interpreter.breaks import Raised, UnsupportedCall
from kiln.capture.interpreter.builtins.functions import fill, sort
from kiln.capture.interpreter.core import Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.capture.interpreter.operations import all_items, contains, equal
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.function import BoundMethod
from kiln.capture.interpreter.variables.iterators import Generator
from kiln.capture.interpreter.variables.mapping import Dict, Set, View
from kiln.capture.interpreter.variables.object import Object, find_attr, new_object
from kiln.capture.interpreter.variables.sequence import List, Tuple

NONE = Constant(None)
DICTS = (dict, OrderedDict, defaultdict, types.MappingProxyType)


def native(value: Value) -> Any:
    """The container inside an object of a derived class, else the value."""
    inner = getattr(value, "native", None)
    return inner if inner is not None else value


def method(types_: tuple[type, ...], *names: str) -> Callable[[Handler], Handler]:
    """Register a handler for a method of several types; `args[0]` is the container itself."""

    def register(handler: Handler) -> Handler:
        def on_native(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
            return handler(s, [native(args[0]), *args[1:]], kwargs)

        for one in types_:
            for name in names:
                if hasattr(one, name):
                    handles(getattr(one, name))(on_native)
        return handler

    return register


@method((list,), "append")
def list_append(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].append(s, args[1])  # type: ignore[attr-defined]
    return NONE


@method((list,), "extend", "__iadd__")
def list_extend(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    items = all_items(s, args[1])
    args[0].change(s).extend(items)  # type: ignore[attr-defined]
    return NONE


@method((list,), "insert")
def list_insert(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].change(s).insert(args[1].constant(s), args[2])  # type: ignore[attr-defined]
    return NONE


@method((list,), "pop")
def list_pop(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    index = args[1].constant(s) if len(args) > 1 else -1
    try:
        popped: Value = args[0].change(s).pop(index)  # type: ignore[attr-defined]
        return popped
    except IndexError as error:
        raise s.error(IndexError, *error.args) from None


@method((list,), "remove")
def list_remove(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    index = position(s, args[0], args[1])
    del args[0].change(s)[index]  # type: ignore[attr-defined]
    return NONE


@method((list,), "clear")
def list_clear(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].change(s).clear()  # type: ignore[attr-defined]
    return NONE


@method((list,), "reverse")
def list_reverse(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].change(s).reverse()  # type: ignore[attr-defined]
    return NONE


@method((list,), "sort")
def list_sort(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    items = args[0].change(s)  # type: ignore[attr-defined]
    items[:] = sort(s, list(items), kwargs)
    return NONE


@method((list,), "copy")
def list_copy(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return List(all_items(s, args[0]))


@method((list, tuple), "index")
def sequence_index(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    bounds = slice(*(arg.constant(s) for arg in args[2:])) if len(args) > 3 else None
    if len(args) == 3:
        bounds = slice(args[2].constant(s), None)
    if bounds is None:
        return Constant(position(s, args[0], args[1]))
    items = all_items(s, args[0])
    return Constant(position(s, List(items[bounds]), args[1]) + bounds.indices(len(items))[0])


def position(s: CaptureState, container: Value, item: Value) -> int:
    for index, one in enumerate(all_items(s, container)):
        if equal(s, one, item):
            return index
    raise s.error(ValueError, "x is not in the sequence")


@method((list, tuple), "count")
def sequence_count(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(sum(equal(s, one, args[1]) for one in all_items(s, args[0])))


@method((list, tuple, *DICTS), "__getitem__")
def get_item(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return args[0].get_item(s, args[1])


@method((list, *DICTS), "__setitem__")
def set_item(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_item(s, args[1], args[2])
    return NONE


@method((list, *DICTS), "__delitem__")
def del_item(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].del_item(s, args[1])
    return NONE


@method((list, tuple, set, frozenset, range, *DICTS), "__len__")
def length(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(args[0].length(s))


@method((list, tuple, set, frozenset, *DICTS), "__iter__")
def iterate(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return args[0].iterate(s)


@method((list, tuple, set, frozenset, *DICTS), "__contains__")
def contains_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(contains(s, args[0], args[1]))


@method((list, tuple, set, frozenset, *DICTS), "__eq__")
def equal_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(equal(s, args[0], native(args[1])))


@handles(range.__iter__, str.__iter__, bytes.__iter__)
def iterate_constant(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return List([s.wrap(item, None) for item in args[0].constant(s)]).iterate(s)


@method(DICTS, "get")
def dict_get(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    found = args[0].find(s, args[1].key(s))  # type: ignore[attr-defined]
    if found is not None:
        return found  # type: ignore[no-any-return]
    return args[2] if len(args) > 2 else kwargs.get("default", NONE)


@method(DICTS, "keys")
def dict_keys(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return View(native(args[0]), "keys")


@method(DICTS, "values")
def dict_values(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return View(native(args[0]), "values")


@method(DICTS, "items")
def dict_items(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return View(native(args[0]), "items")


@method(DICTS, "update", "__init__", "__ior__")
def dict_update(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    fill(s, native(args[0]), list(args[1:]), kwargs)
    return NONE


@method(DICTS, "copy")
def dict_copy(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    source = native(args[0])
    made = Dict(dict(source.items(s)), source.cls if source.cls in DICTS[:3] else dict)
    made.factory = source.factory
    return made


@method(DICTS, "pop")
def dict_pop(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    token = args[1].key(s)
    found = args[0].find(s, token)  # type: ignore[attr-defined]
    if found is not None:
        del args[0].change(s)[token]  # type: ignore[attr-defined]
        return found  # type: ignore[no-any-return]
    default = args[2] if len(args) > 2 else kwargs.get("default")
    if default is None:
        raise s.error(KeyError, token)
    return default


@method(DICTS, "popitem")
def dict_popitem(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    items = args[0].change(s)  # type: ignore[attr-defined]
    if not items:
        raise s.error(KeyError, "popitem(): dictionary is empty")
    if is_last(s, args[1:], kwargs):
        return Tuple(list(items.popitem()[1]))
    return Tuple(list(items.pop(next(iter(items)))))


def is_last(s: CaptureState, args: Args, kwargs: Kwargs) -> bool:
    """The argument `last` of the methods of OrderedDict."""
    found = args[0] if args else kwargs.get("last")
    return found is None or found.truth(s)


@method(DICTS, "setdefault")
def dict_setdefault(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    found = args[0].find(s, args[1].key(s))  # type: ignore[attr-defined]
    if found is not None:
        return found  # type: ignore[no-any-return]
    value = args[2] if len(args) > 2 else NONE
    args[0].set_item(s, args[1], value)
    return value


@method(DICTS, "clear")
def dict_clear(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].change(s).clear()  # type: ignore[attr-defined]
    return NONE


@method((OrderedDict,), "move_to_end")
def move_to_end(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    items = args[0].change(s)  # type: ignore[attr-defined]
    token = args[1].key(s)
    if token not in items:
        raise s.error(KeyError, token)
    moved = items.pop(token)
    if is_last(s, args[2:], kwargs):
        items[token] = moved
    else:
        rest = dict(items)
        items.clear()
        items.update({token: moved, **rest})
    return NONE


@handles(dict.fromkeys)
def dict_fromkeys(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    value = args[1] if len(args) > 1 else NONE
    return Dict({key.key(s): (key, value) for key in all_items(s, args[0])})


@method((set,), "add")
def set_add(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].change(s).setdefault(args[1].key(s), args[1])  # type: ignore[attr-defined]
    return NONE


@method((set,), "discard")
def set_discard(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].change(s).pop(args[1].key(s), None)  # type: ignore[attr-defined]
    return NONE


@method((set,), "remove")
def set_remove(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if args[0].change(s).pop(args[1].key(s), None) is None:  # type: ignore[attr-defined]
        raise s.error(KeyError, args[1])
    return NONE


@method((set,), "clear")
def set_clear(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].change(s).clear()  # type: ignore[attr-defined]
    return NONE


@method((set, frozenset), "isdisjoint")
def set_is_disjoint(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    other = {item.key(s) for item in all_items(s, args[1])}
    return Constant(not other & native(args[0]).items(s).keys())


@method((set, frozenset), "issuperset")
def set_is_superset(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant({item.key(s) for item in all_items(s, args[1])} <= native(args[0]).items(s).keys())


def symmetric(s: CaptureState, left: Value, right: Value) -> dict[Any, Value]:
    """What is in one of two only."""
    mine = native(left).items(s)
    other = {item.key(s): item for item in all_items(s, right)}
    both = mine.keys() & other.keys()
    return {token: item for token, item in {**mine, **other}.items() if token not in both}


@method((set, frozenset), "symmetric_difference")
def set_symmetric_difference(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Set(symmetric(s, args[0], args[1]), native(args[0]).cls)


@method((set,), "symmetric_difference_update")
def set_symmetric_difference_update(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    replace_items(s, args[0], symmetric(s, args[0], args[1]))
    return NONE


@method((set,), "difference_update")
def set_difference_update(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    replace_items(s, args[0], set_difference(s, args, {}).items(s))  # type: ignore[attr-defined]
    return NONE


@method((set,), "intersection_update")
def set_intersection_update(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    replace_items(s, args[0], set_intersection(s, args, {}).items(s))  # type: ignore[attr-defined]
    return NONE


def replace_items(s: CaptureState, value: Value, items: dict[Any, Value]) -> None:
    mine = value.change(s)  # type: ignore[attr-defined]
    kept = dict(items)
    mine.clear()
    mine.update(kept)


@method((set,), "pop")
def set_pop(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    items = args[0].change(s)  # type: ignore[attr-defined]
    if not items:
        raise s.error(KeyError, "pop from an empty set")
    if len(items) > 1:
        raise UnsupportedCall(function="set.pop", why="which item it takes is not known while tracing")
    popped: Value = items.popitem()[1]
    return popped


@method((set,), "update")
def set_update(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    for arg in args[1:]:
        args[0].change(s).update({item.key(s): item for item in all_items(s, arg)})  # type: ignore[attr-defined]
    return NONE


@method((set, frozenset), "union", "copy")
def set_union(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    items = {item.key(s): item for arg in args for item in all_items(s, arg)}
    return Set(items, native(args[0]).cls)


@method((set, frozenset), "intersection")
def set_intersection(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    keys = [{item.key(s) for item in all_items(s, arg)} for arg in args[1:]]
    kept = {k: v for k, v in native(args[0]).items(s).items() if all(k in one for one in keys)}
    return Set(kept, native(args[0]).cls)


@method((set, frozenset), "difference")
def set_difference(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    keys = {item.key(s) for arg in args[1:] for item in all_items(s, arg)}
    return Set({k: v for k, v in native(args[0]).items(s).items() if k not in keys}, native(args[0]).cls)


@method((set, frozenset), "issubset")
def set_issubset(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(native(args[0]).items(s).keys() <= {item.key(s) for item in all_items(s, args[1])})


@method((list, set), "__init__")
def container_init(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > 1:
        items = all_items(s, args[1])
        container = args[0]
        if isinstance(container, Set):
            container.change(s).update({item.key(s): item for item in items})
        else:
            container.change(s).extend(items)  # type: ignore[attr-defined]
    return NONE


@handles(tuple.__new__)
def tuple_new(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Tuple(all_items(s, args[1]) if len(args) > 1 else [], args[0].constant(s))


@handles(object.__new__, dict.__new__, list.__new__, OrderedDict.__new__, set.__new__, BaseException.__new__)
def object_new(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return new_object(s, args[0].constant(s))


@handles(object.__init__, object.__init_subclass__)
def object_init(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return NONE


@handles(BaseException.__init__, Exception.__init__)
def exception_init(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Object):
        args[0].attrs["args"] = Tuple(list(args[1:]))
    return NONE


@handles(object.__getattribute__)
def object_getattribute(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    name = args[1].constant(s)
    found = find_attr(s, args[0], name)
    if found is None:
        raise s.error(AttributeError, f"'{args[0].type_name()}' object has no attribute '{name}'")
    return found


@handles(object.__setattr__)
def object_setattr(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].store_attr(s, args[1].constant(s), args[2])  # type: ignore[attr-defined]
    return NONE


@handles(object.__delattr__)
def object_delattr(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].store_attr(s, args[1].constant(s), None)  # type: ignore[attr-defined]
    return NONE


@handles(object.__str__, object.__format__)
def object_text(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    spec = args[1].constant(s) if len(args) > 1 else ""
    return Constant(format(args[0].constant(s), spec))


@handles(object.__eq__)
def object_eq(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(True if args[0] is args[1] else NotImplemented)


@handles(str.join)
def str_join(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(args[0].constant(s).join([item.constant(s) for item in all_items(s, args[1])]))


@handles(type.mro)
def class_list(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(args[0], Class)
    return List([s.wrap(one, None) for one in args[0].constant(s).__mro__])


def own_generator(value: Value) -> Generator:
    """One whose body is interpreted; that of a generator from outside has begun to run in Python."""
    if not isinstance(value, Generator):
        raise UnsupportedCall(function="generator", why="it was made outside of the graph")
    return value


@handles(types.GeneratorType.__iter__)
def generator_iter(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return args[0]


@handles(types.GeneratorType.send)
def generator_send(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    item = own_generator(args[0]).send(s, args[1])
    if item is None:
        raise s.error(StopIteration)
    return item


@handles(types.GeneratorType.throw)
def generator_throw(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    error = args[1] if len(args) == 2 or args[2].is_constant else args[2]
    item = own_generator(args[0]).throw(s, error.call(s, [], {}) if isinstance(error, Class) else error)
    if item is None:
        raise s.error(StopIteration)
    return item


@handles(types.GeneratorType.close)
def generator_close(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    try:
        own_generator(args[0]).throw(s, s.error(GeneratorExit).value)
    except Raised as raised:
        if not issubclass(raised.value.python_type(), (GeneratorExit, StopIteration)):
            raise
    return NONE


@handles(types.GeneratorType.__next__)
def generator_next(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    item = own_generator(args[0]).next(s)
    if item is None:
        raise s.error(StopIteration)
    return item


@handles(types.MethodType)
def bound_method(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return BoundMethod(args[0], args[1])


@handles(types.FunctionType.__get__)
def function_get(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return args[0]
