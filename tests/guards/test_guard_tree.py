"""Each kind of guard and source alone; explanations; bindings; lifetimes."""

from __future__ import annotations

import enum
import gc
import sys
import warnings
import weakref
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kiln.native import _frames
from kiln.runtime.guards.constant import reference
from kiln.runtime.guards.guard import (
    AliasExpectation,
    Guard,
    GuardKind,
    SetExpectation,
    SetMember,
    ShapeRelation,
    function_expectation,
    tensor_expectation,
)
from kiln.runtime.guards.source import (
    AnswerSource,
    AttrSource,
    BuiltinSource,
    CallSource,
    CellObjectSource,
    CellSource,
    ClassFieldSource,
    ClosureSource,
    DefaultSource,
    DictAttrSource,
    GlobalSource,
    GradSource,
    ImportSource,
    ItemSource,
    KeysSource,
    LocalSource,
    MethodFuncSource,
    MethodSelfSource,
    ModuleGlobalSource,
    MroSource,
    OffsetSource,
    SizeSource,
    Source,
    StrideSource,
    TypeSource,
    ValuesSource,
)
from kiln.runtime.guards.tree import BadGuard, build_tree
from tests.guards.model_guards import module_guards, tensor_guard

X, Y = LocalSource("x"), LocalSource("y")
LIMIT = 10


def function(x, y=None):
    return x


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class Plain:
    shared = "class"

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def method(self) -> None:
        return None

    @property
    def computed(self) -> int:
        raise AssertionError("a guard must not run this")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("a guard must not run this")


def tree_of(*guards: Guard, collect: tuple[Source, ...] = ()) -> _frames.GuardTree:
    return build_tree(guards, collect=collect, function=function)


def holds(tree: _frames.GuardTree, x: Any, y: Any = None) -> bool:
    """Checked twice: the second time on the fast path that the first leaves, which must agree."""
    first = tree.check((x, y), globals())
    assert tree.check((x, y), globals()) == first
    assert (tree.explain((x, y), globals()) is None) == first
    return first


def guard(source: Source, kind: GuardKind, expected: object = None) -> Guard:
    return Guard(source, kind, expected)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    ("kind", "expected", "good", "bad"),
    [
        (GuardKind.TYPE_IS, reference(int), [1, 2], [True, 1.0, None]),
        (GuardKind.EQUALS, 1, [1], [True, 1.0, 2, "1"]),
        (GuardKind.EQUALS, float("nan"), [float("nan")], [1.0, None]),
        (GuardKind.EQUALS, 0.0, [0.0], [-0.0, 0, False]),
        (GuardKind.EQUALS, (1, (2.0, "a")), [(1, (2.0, "a"))], [(True, (2.0, "a")), [1, (2.0, "a")], (1, (2, "a"))]),
        (GuardKind.EQUALS, 10**30, [10**30], [10**30 + 1]),
        (GuardKind.EQUALS, "abc", ["abc", "".join(["a", "bc"])], ["abd", b"abc"]),
        (GuardKind.EQUALS, torch.float32, [torch.float32], [torch.float64]),
        (GuardKind.EQUALS, torch.device("cpu"), [torch.device("cpu")], [torch.device("meta"), "cpu"]),
        (GuardKind.EQUALS, torch.Size([2, 3]), [torch.Size([2, 3])], [(2, 3), torch.Size([2, 4])]),
        (GuardKind.IS, reference(Color.RED), [Color.RED], [Color.BLUE, 1]),
        (GuardKind.IS_NONE, None, [None], [0, False]),
        (GuardKind.LENGTH, 2, [[1, 2], (1, 2), {1: 1, 2: 2}, "ab", {1, 2}, range(2)], [[], (1,), "abc", 2]),
        (GuardKind.DICT_KEYS, ("a", 1), [{"a": 0, 1: 0}], [{1: 0, "a": 0}, {"a": 0}, {"a": 0, True: 0}, []]),
        (GuardKind.DICT_KEYS, ("a", "b"), [OrderedDict(a=1, b=2)], [OrderedDict(b=1, a=2)]),
        (GuardKind.HAS_ATTR, "method", [Plain()], [SimpleNamespace(), 1]),
        (GuardKind.HAS_ATTR, "computed", [Plain()], [SimpleNamespace(), 1]),
        (GuardKind.NO_ATTR, "q", [Plain(), SimpleNamespace(), 1], [Plain(q=1), SimpleNamespace(q=1)]),
        (GuardKind.EMPTY_DICT, None, [{}, None, OrderedDict()], [{1: 1}, [], 0]),
        (GuardKind.SET_ITEMS, SetExpectation((1, "a")), [{1, "a"}, frozenset({"a", 1})], [{1.0, "a"}, {1}, {1, 2}, ()]),
        (GuardKind.SET_ITEMS, SetExpectation(tuple({0, 8}), True), [{0, 8}, frozenset([0, 8])], [{8, 0}, {0, 9}]),
        (GuardKind.SET_HOLDS, SetMember(1, True), [{1, 2}, {1.0}, frozenset({True, *range(40)})], [{2}, set(), [1]]),
        (GuardKind.SET_HOLDS, SetMember("a", False), [{1}, set(), {*range(99)}], [{"a"}, {"a", *range(99)}, [1]]),
        (GuardKind.SET_HOLDS, SetMember("RED", False), [{1}, {"r"}], [{Color.RED}]),
        (GuardKind.SET_ITEMS, SetExpectation((reference(Color.RED),)), [{Color.RED}], [{Color.BLUE}, {1}, set()]),
    ],
)
def test_a_kind_of_guard(kind: GuardKind, expected: object, good: list[Any], bad: list[Any]) -> None:
    tree = tree_of(guard(X, kind, expected))
    inside = tree_of(guard(ItemSource(DictAttrSource(X, "held"), 0), kind, expected))
    for value in good:
        assert holds(tree, value)
        assert holds(inside, Plain(held=(value,)))
    for value in bad:
        assert not holds(tree, value)
        assert not holds(inside, Plain(held=(value,)))


def closed_over(value: Any) -> Any:
    def inner(a: Any = "default", *, key: Any = "keyword") -> Any:
        return value

    return inner


def fields_of(value: object) -> dict[str, object]:
    return dict(vars(value))


def held_by_slots(value: Any) -> Slotted:
    return Slotted(value)


@pytest.mark.parametrize(
    ("source", "make"),
    [
        (AttrSource(X, "a"), lambda v: Plain(a=v)),
        (DictAttrSource(X, "a"), lambda v: Plain(a=v)),
        (AttrSource(X, "held"), held_by_slots),
        (ItemSource(X, "a"), lambda v: {"a": v}),
        (ItemSource(X, 1), lambda v: [0, v]),
        (ItemSource(X, -1), lambda v: (0, v)),
        (ItemSource(ItemSource(X, 0), 0), lambda v: ((v,),)),
        (ItemSource(AttrSource(X, "a"), 1), lambda v: Plain(a=[0, v])),
        (ItemSource(AttrSource(X, "a"), "k"), lambda v: Plain(a=OrderedDict(k=v))),
        (KeysSource(AttrSource(X, "a"), 1), lambda v: Plain(a={"first": 0, v: 0})),
        (KeysSource(AttrSource(X, "a"), 0), lambda v: Plain(a={v})),
        (KeysSource(AttrSource(X, "a"), 1), lambda v: Plain(a=OrderedDict({"first": 0, v: 0}))),
        (ValuesSource(AttrSource(X, "a"), 1), lambda v: Plain(a=OrderedDict({0: 0, 1: v}))),
        (ValuesSource(AttrSource(X, "a"), 1), lambda v: Plain(a={0: 0, 1: v})),
        (KeysSource(X, 0), lambda v: frozenset([v])),
        (ClosureSource(X, 0), closed_over),
        (DictAttrSource(MroSource(TypeSource(X), 1), "a"), lambda v: type("B", (type("A", (), {"a": v}),), {})()),
        (DefaultSource(X, 0), lambda v: lambda a=v: a),
        (DefaultSource(X, "key"), lambda v: lambda *, key=v: key),
        (AttrSource(MethodSelfSource(X), "a"), lambda v: Plain(a=v).method),
        (AttrSource(MethodSelfSource(AttrSource(X, "m")), "a"), lambda v: Plain(m=Plain(a=v).method)),
        (AttrSource(AttrSource(X, "s"), "held"), lambda v: Plain(s=Slotted(v))),
        (AttrSource(AttrSource(AttrSource(X, "s"), "held"), "a"), lambda v: Plain(s=Slotted(Plain(a=v)))),
        (AttrSource(X, "value"), lambda v: SimpleNamespace(value=v)),
        (ClassFieldSource(TypeSource(X), "__name__"), lambda v: type(v, (), {})()),
        (ItemSource(ClassFieldSource(X, "__dict__"), "a"), lambda v: type("A", (), {"a": v})),
        (ItemSource(AnswerSource(X, reference(fields_of)), "a"), lambda v: Plain(a=v)),
    ],
    ids=lambda value: value.text() if isinstance(value, Source) else "",
)
def test_a_kind_of_source(source: Source, make: Any) -> None:
    tree = tree_of(guard(source, GuardKind.EQUALS, "right"), collect=(source,))
    for _ in range(3):
        right = make("right")
        assert holds(tree, right)
        assert tree.bindings == ("right",)
        assert not holds(tree, make("wrong"))
    kept = make("right")
    assert holds(tree, kept)
    gc.collect()
    assert holds(tree, kept)
    assert not holds(tree, None)


def test_sources_of_types_modules_and_builtins() -> None:
    tree = tree_of(
        guard(TypeSource(X), GuardKind.IS, reference(Plain)),
        guard(AttrSource(TypeSource(X), "shared"), GuardKind.EQUALS, "class"),
        guard(AttrSource(X, "shared"), GuardKind.EQUALS, "class"),
        guard(DictAttrSource(TypeSource(X), "method"), GuardKind.IS, reference(Plain.__dict__["method"])),
        guard(MethodFuncSource(AttrSource(X, "method")), GuardKind.IS, reference(Plain.method)),
        guard(BuiltinSource("len"), GuardKind.IS, reference(len)),
        guard(GlobalSource("LIMIT"), GuardKind.EQUALS, 10),
        guard(GlobalSource("len"), GuardKind.ABSENT),
        guard(ModuleGlobalSource(__name__, "LIMIT"), GuardKind.EQUALS, 10),
        guard(AttrSource(ImportSource("sys"), "maxsize"), GuardKind.EQUALS, sys.maxsize),
    )
    assert holds(tree, Plain())
    assert not holds(tree, Plain(shared="instance"))
    for namespace, name, value in ((Plain, "shared", "other"), (sys.modules[__name__], "LIMIT", 11)):
        before = getattr(namespace, name)
        setattr(namespace, name, value)
        assert not holds(tree, Plain())
        setattr(namespace, name, before)
        assert holds(tree, Plain())
    globals()["len"] = max
    assert not holds(tree, Plain())
    del globals()["len"]
    assert holds(tree, Plain())


def test_a_property_is_not_run() -> None:
    assert not holds(tree_of(guard(AttrSource(X, "computed"), GuardKind.EQUALS, 1)), Plain())
    assert not holds(tree_of(guard(AttrSource(X, "missing"), GuardKind.EQUALS, 1)), Plain())


def test_free_variables_are_looked_at_each_time() -> None:
    free = 1

    def inner(x: Any) -> Any:
        return free

    tree = build_tree([guard(CellSource("free"), GuardKind.EQUALS, 1)], function=inner)
    assert tree.check((0,), {}, inner.__closure__)
    assert tree.check((0,), {}, inner.__closure__)
    free = 2
    assert not tree.check((0,), {}, inner.__closure__)


def test_cells_are_told_apart_from_their_contents() -> None:
    def pair() -> Any:
        free = [1]
        return (lambda x: free), (lambda: free)

    (f, reader), (_, other) = pair(), pair()
    own, its = CellObjectSource("free"), ItemSource(AttrSource(X, "__closure__"), 0)
    tree = build_tree(
        [guard(own, GuardKind.TENSOR_ALIASES, AliasExpectation((own, its), (0, 0), "object"))], function=f
    )
    for _ in range(2):
        assert tree.check((reader,), {}, f.__closure__)
        assert not tree.check((other,), {}, f.__closure__)


def test_a_class_between_is_noticed() -> None:
    class Top:
        a = "top"

    class Middle(Top): ...

    class Bottom(Middle): ...

    order = TypeSource(X)
    tree = tree_of(
        guard(DictAttrSource(MroSource(order, 1), "a"), GuardKind.ABSENT),
        guard(DictAttrSource(MroSource(order, 2), "a"), GuardKind.EQUALS, "top"),
    )
    assert holds(tree, Bottom())
    Middle.a = "middle"
    assert not holds(tree, Bottom())
    del Middle.a
    assert holds(tree, Bottom())
    Bottom.__bases__ = (Top,)
    assert not holds(tree, Bottom())


def test_a_function_is_told_by_its_code() -> None:
    expected = closed_over(1)
    tree = tree_of(guard(X, GuardKind.FUNCTION_CODE, function_expectation(expected)))
    other = closed_over(2)
    assert holds(tree, other)
    other.__kwdefaults__ = None
    assert not holds(tree, other)
    other = closed_over(2)
    holder = Plain(f=other)
    tree = tree_of(guard(AttrSource(X, "f"), GuardKind.FUNCTION_CODE, function_expectation(expected)))
    assert holds(tree, holder)
    other.__code__ = (lambda value: lambda a=0, *, key=0: (value, 1))(1).__code__
    assert not holds(tree, holder)


def test_reordering_an_ordered_dict_is_noticed() -> None:
    holder = Plain(d=OrderedDict(a=1, b=2))
    tree = tree_of(guard(AttrSource(X, "d"), GuardKind.DICT_KEYS, ("a", "b")))
    assert holds(tree, holder)
    holder.d.move_to_end("a")
    assert not holds(tree, holder)


def test_tensors() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    tree = tree_of(guard(X, GuardKind.TENSOR, tensor_expectation(x, sizes=(None, 4), strides=(None, 1), is_leaf=True)))
    assert holds(tree, torch.randn(7, 4, requires_grad=True))
    assert holds(tree, torch.randn(7, 8, requires_grad=True).detach()[:, :4].requires_grad_())
    assert not holds(tree, torch.randn(7, 4, requires_grad=True) * 1)
    assert not holds(tree, torch.randn(7, 5, requires_grad=True))
    assert not holds(tree, torch.randn(7, 4))
    with torch.inference_mode():
        inference = torch.randn(7, 4)
    plain = tree_of(tensor_guard(X, torch.randn(7, 4)))
    assert not holds(plain, inference)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    assert not holds(plain, nested)


def test_gradients() -> None:
    x = torch.randn(3, requires_grad=True)
    tree = tree_of(guard(GradSource(X), GuardKind.IS_NONE))
    assert holds(tree, x)
    x.sum().backward()
    assert not holds(tree, x)


def test_aliases() -> None:
    base = torch.randn(4)
    z = ItemSource(Y, 0)
    apart = tree_of(guard(X, GuardKind.TENSOR_ALIASES, AliasExpectation((X, z), (0, 1))))
    same = tree_of(guard(X, GuardKind.TENSOR_ALIASES, AliasExpectation((X, z), (7, 7))))
    same_object = tree_of(guard(X, GuardKind.TENSOR_ALIASES, AliasExpectation((X, z), (0, 0), by="object")))
    for x, y, shared, identical in ((base, base, 1, 1), (base, base[1:], 1, 0), (base, base.clone(), 0, 0)):
        assert holds(apart, x, [y]) == (not shared)
        assert holds(same, x, [y]) == bool(shared)
        assert holds(same_object, x, [y]) == bool(identical)


def test_tied_parameters_of_a_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    guards, collect = module_guards(model, X)
    guards.append(guard(X, GuardKind.TENSOR_ALIASES, AliasExpectation(tuple(collect), tuple(range(4)))))
    tree = tree_of(*guards, collect=tuple(collect))
    assert holds(tree, model)
    model[0].weight.data = model[1].weight.data
    assert not holds(tree, model)
    model[0].weight.data = model[1].weight.data.clone()
    assert holds(tree, model)


@pytest.mark.parametrize(
    ("relation", "good", "bad"),
    [
        ("s0*2 <= s1", (2, 4), (3, 4)),
        ("s1 % s0 == 0", (3, 6), (4, 6)),
        ("s1 // s0 >= 2 and not s0 == 1", (2, 5), (1, 5)),
        ("min(s0, s1, 7) + max(s0, 3) - 1 == s0**2", (2, 2), (5, 5)),
        ("1 < s0 < s1 or s0 == 9", (9, 1), (4, 4)),
        ("-s0 // 2 == -2", (3, 0), (5, 0)),
        ("s1 // (s0 - 1) == 4", (2, 4), (1, 4)),
    ],
)
def test_shape_relations(relation: str, good: tuple[int, int], bad: tuple[int, int]) -> None:
    expected = ShapeRelation(relation, (("s0", SizeSource(X, 0)), ("s1", SizeSource(Y, -1))))
    tree = tree_of(guard(X, GuardKind.SHAPE_RELATION, expected))
    for (s0, s1), result in ((good, True), (bad, False)):
        assert holds(tree, torch.empty(s0, 1), torch.empty(1, s1)) is result


def test_relations_with_strides_offsets_and_python_ints() -> None:
    names = (("a", StrideSource(X, 0)), ("b", OffsetSource(X)), ("n", Y))
    tree = tree_of(guard(X, GuardKind.SHAPE_RELATION, ShapeRelation("a + b == n", names)))
    base = torch.empty(4, 6)
    assert holds(tree, base[1:], 12)
    assert not holds(tree, base, 12)
    assert not holds(tree, base[1:], 12.0)
    assert not holds(tree, base[1:], 2**80)
    assert holds(tree_of(guard(SizeSource(X, 1), GuardKind.EQUALS, 6)), base)


def test_overflow_is_a_failure_not_a_wrong_answer() -> None:
    tree = tree_of(guard(X, GuardKind.SHAPE_RELATION, ShapeRelation("n*n*n >= 0", (("n", X),))))
    assert holds(tree, 10)
    assert not holds(tree, 2**40)


@pytest.mark.parametrize("text", ["f(s0)", "s0 +", "s0 < 'a'", "s0 / 2 == 1", "s0 ** s1 == 2"])
def test_other_text_than_relations_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        tree_of(guard(X, GuardKind.SHAPE_RELATION, ShapeRelation(text, (("s0", X), ("s1", X)))))


@pytest.mark.parametrize(
    "bad",
    [
        guard(LocalSource("nobody"), GuardKind.IS_NONE),
        guard(CellSource("nobody"), GuardKind.IS_NONE),
        guard(SizeSource(X, 0), GuardKind.IS_NONE),
        guard(X, GuardKind.EQUALS, [1]),
        guard(X, GuardKind.EQUALS, Color.RED),
        guard(X, GuardKind.TENSOR, 1),
        guard(ModuleGlobalSource("no.such.module", "a"), GuardKind.IS_NONE),
        guard(X, GuardKind.SHAPE_RELATION, ShapeRelation("q == 1", ())),
    ],
)
def test_guards_that_cannot_be_checked_are_refused(bad: Guard) -> None:
    with pytest.raises(BadGuard):
        tree_of(bad)


def test_an_explanation_names_the_guard_and_shows_the_value() -> None:
    tree = tree_of(
        guard(X, GuardKind.TYPE_IS, reference(Plain)),
        guard(DictAttrSource(X, "config"), GuardKind.EQUALS, 1),
        tensor_guard(Y, torch.zeros(2)),
    )
    assert tree.explain((Plain(config=1), torch.zeros(2)), {}) is None
    assert tree.explain((Plain(config=2), torch.zeros(2)), {}) == (1, "2")
    assert tree.explain((Plain(), torch.zeros(2)), {}) == (1, "nothing")
    assert tree.explain((Plain(config=1), torch.zeros(2, 1)), {}) == (
        2,
        "Tensor of Float on cpu, sizes [2, 1], strides [1, 1]",
    )


def test_objects_at_a_recycled_address_are_looked_at_again() -> None:
    holder = Plain(pair=(1, 2), number=1000)
    tree = tree_of(
        guard(ItemSource(AttrSource(X, "pair"), 1), GuardKind.EQUALS, 2),
        guard(AttrSource(X, "number"), GuardKind.EQUALS, 1000),
        guard(ItemSource(Y, 0), GuardKind.EQUALS, 1.5),
    )
    for n in range(200):
        right = n % 3 != 0
        holder.pair = (n, 2 if right else 3)
        holder.number = 999 + (1 if n % 5 else 2)
        expected = right and n % 5 != 0 and n % 2 == 0
        assert holds(tree, holder, (1.5 if n % 2 == 0 else 2.5,)) == expected


def test_instances_that_come_and_go_are_told_apart() -> None:
    tree = tree_of(guard(AttrSource(X, "a"), GuardKind.EQUALS, 1), collect=(AttrSource(X, "b"),))
    for n in range(300):
        mine = object()
        instance = Plain(a=n % 2, b=mine)
        assert holds(tree, instance) == (n % 2 == 1)
        if n % 2:
            assert tree.bindings == (mine,)


def test_bindings_do_not_keep_a_dropped_model_alive() -> None:
    model = torch.nn.Linear(2, 2)
    guards, collect = module_guards(model, X)
    tree = tree_of(*guards, collect=tuple(collect))
    assert holds(tree, model)
    gone = weakref.ref(model.weight)
    del model
    gc.collect()
    assert gone() is None
    assert tree.bindings is None
    assert not holds(tree, None)
    assert holds(tree, torch.nn.Linear(2, 2))


def test_a_watched_object_may_outlive_the_tree() -> None:
    model = torch.nn.Linear(2, 2)
    guards, collect = module_guards(model, X)
    tree = tree_of(*guards, collect=tuple(collect))
    assert holds(tree, model)
    references = weakref.getweakrefs(model)
    del tree
    gc.collect()
    del model
    gc.collect()
    assert all(reference() is None for reference in references)


def test_a_tree_in_a_cycle_with_what_it_guards_is_freed() -> None:
    class Local:
        pass

    value = Local()
    value.tree = tree_of(  # type: ignore[attr-defined]
        guard(X, GuardKind.IS, reference(value)), collect=(DictAttrSource(X, "tree"),)
    )
    assert value.tree.check((value, None))  # type: ignore[attr-defined]
    gone = weakref.ref(value)
    del value
    gc.collect()
    assert gone() is None


def test_checks_leak_nothing() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    holder = Plain(model=model, s=Slotted(model))
    guards, collect = module_guards(model, AttrSource(X, "model"))
    guards += [
        guard(GradSource(AttrSource(AttrSource(X, "model"), "weight")), GuardKind.IS_NONE),
        guard(MethodSelfSource(AttrSource(X, "method")), GuardKind.TYPE_IS, reference(Plain)),
        guard(AttrSource(AttrSource(X, "s"), "held"), GuardKind.TYPE_IS, reference(torch.nn.Sequential)),
    ]
    tree = tree_of(*guards[:-3], *guards[-2:], collect=(*collect, AttrSource(AttrSource(X, "s"), "held")))
    things = [holder, model, model[0], model[0].weight, Plain, holder.__dict__, model[0]._parameters]
    assert holds(tree, holder)
    before = [sys.getrefcount(thing) for thing in things]
    for n in range(100_000):
        if n % 100 == 0:
            holder.extra = n
        assert tree.check((holder, None))
    assert [sys.getrefcount(thing) for thing in things] == before
    for _ in range(1000):
        assert not tree.check((model, None))
        assert tree.explain((model, None)) is not None
    assert [sys.getrefcount(thing) for thing in things] == before


def test_code_that_runs_when_old_bindings_die_does_not_change_ours() -> None:
    class Checks:
        def __del__(self) -> None:
            tree.check((other, None))

    tree = tree_of(guard(AttrSource(X, "a"), GuardKind.EQUALS, 1), collect=(AttrSource(X, "b"),))
    holder, other = Plain(a=1, b=Checks()), Plain(a=1, b="other")
    assert tree.check((other, None))
    assert tree.check((holder, None))
    holder.b = "mine"  # only the bindings hold the old one now
    assert tree.check((holder, None))
    assert tree.bindings == ("mine",)


def test_a_model_that_holds_its_dispatcher_is_freed() -> None:
    model = torch.nn.Linear(2, 2)
    guards, collect = module_guards(model, X)
    tree = tree_of(*guards, collect=tuple(collect))
    dispatcher = _frames.Dispatcher(function, lambda *a: None)
    dispatcher.set_entries([_frames.Entry(tree, _frames.BoundCall(tree, lambda x, y, bindings: bindings))])
    model.__dict__["compiled"] = dispatcher
    assert dispatcher(model) == (model.weight, model.bias)
    gone = weakref.ref(model), weakref.ref(dispatcher), weakref.ref(model.weight)
    del model, dispatcher, tree, guards, collect
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


def test_a_call_that_raises_leaves_no_error() -> None:
    """What it returned is missing; the next check asks again."""
    tree = tree_of(guard(CallSource(X, ("a",)), GuardKind.EQUALS, 1))
    table = {"a": 1}
    assert holds(tree, table.__getitem__)
    del table["a"]
    assert not holds(tree, table.__getitem__)
    table["a"] = 1
    assert holds(tree, table.__getitem__)
