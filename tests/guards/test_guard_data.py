"""Sources and guards as data: text, equality, serialisation."""

from __future__ import annotations

import json
import math
import operator
import types
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from kiln.native._frames import GuardTree
from kiln.runtime.guards.constant import NotSerialisable, constant_from_json, constant_to_json, reference, same_constant
from kiln.runtime.guards.guard import (
    AliasExpectation,
    Guard,
    GuardKind,
    SetExpectation,
    SetMember,
    ShapeRelation,
    function_expectation,
    guards_from_json,
    guards_to_json,
    tensor_expectation,
)
from kiln.runtime.guards.reference import path_of, resolve
from kiln.runtime.guards.source import (
    AttrSource,
    CallSource,
    CellObjectSource,
    ClosureSource,
    DefaultSource,
    DictAttrSource,
    GlobalSource,
    ItemSource,
    KeysSource,
    LocalSource,
    MethodFuncSource,
    ModuleGlobalSource,
    MroSource,
    SizeSource,
    Source,
    SourceTable,
    TypeSource,
    ValuesSource,
    sources_from_rows,
)
from kiln.runtime.guards.tree import tree_rows
from kiln.runtime.guards.tree_file import Misfit, read_tree, write_tree

SELF = LocalSource("self")
LAYER = ItemSource(DictAttrSource(SELF, "_modules"), "layer")
SOURCES: list[tuple[Source, str]] = [
    (LAYER, "self.__dict__['_modules']['layer']"),
    (AttrSource(TypeSource(SELF), "forward"), "type(self).forward"),
    (MethodFuncSource(AttrSource(SELF, "step")), "self.step.__func__"),
    (DefaultSource(GlobalSource("f"), 0), "globals()['f'].__defaults__[0]"),
    (DefaultSource(GlobalSource("f"), "eps"), "globals()['f'].__kwdefaults__['eps']"),
    (ClosureSource(GlobalSource("f"), 1), "globals()['f'].__closure__[1].cell_contents"),
    (KeysSource(ModuleGlobalSource("a.b", "TABLE"), 2), "list(a.b.TABLE)[2]"),
    (ValuesSource(ModuleGlobalSource("a.b", "TABLE"), 2), "list(a.b.TABLE.values())[2]"),
    (SizeSource(LocalSource("x"), 1), "x.size(1)"),
    (DictAttrSource(MroSource(TypeSource(SELF), 1), "run"), "type(self).__mro__[1].__dict__['run']"),
    (CellObjectSource("n"), "cell(n)"),
    (CallSource(GlobalSource("f"), (1, "a"), (("n", 2),)), "globals()['f'](1, 'a', n=2)"),
]


@pytest.mark.parametrize(("source", "text"), SOURCES)
def test_a_source_prints_as_python_and_comes_back_from_disk(source: Source, text: str) -> None:
    assert source.text() == text
    table = SourceTable()
    number = table.number(source)
    assert sources_from_rows(json.loads(json.dumps(table.rows)))[number] == source


def test_items_keep_the_type_of_their_key_apart() -> None:
    assert ItemSource(SELF, 1) != ItemSource(SELF, True)
    assert ItemSource(SELF, 1) != ItemSource(SELF, 1.0)


def test_the_root_is_the_first_step() -> None:
    assert LAYER.root() == SELF


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -0.0, math.nan, math.inf, 1 + 2j, b"x", (1, (2.0,)), frozenset({1, 2}), slice(1, None)),
        *(range(3), ..., torch.float32, torch.device("cpu"), torch.Size([2, 3]), torch.strided, torch.channels_last),
    ],
)
def test_constants_come_back_from_disk(value: object) -> None:
    assert same_constant(constant_from_json(json.loads(json.dumps(constant_to_json(value)))), value)


def test_constants_of_other_types_or_signs_differ() -> None:
    assert not same_constant(1, True)
    assert not same_constant(0.0, -0.0)
    assert not same_constant((1,), (1.0,))
    assert same_constant(math.nan, math.nan)


def test_guards_come_back_from_disk() -> None:
    x = LocalSource("x")
    guards = [
        Guard(x, GuardKind.TENSOR, tensor_expectation(torch.randn(3, 4), sizes=(None, 4), is_leaf=True)),
        Guard(SELF, GuardKind.TYPE_IS, reference(torch.nn.Linear)),
        Guard(x, GuardKind.SHAPE_RELATION, ShapeRelation("s0 % 2 == 0", (("s0", SizeSource(x, 0)),))),
        Guard(x, GuardKind.TENSOR_ALIASES, AliasExpectation((x, LocalSource("y")), (0, 0))),
        Guard(x, GuardKind.SET_ITEMS, SetExpectation((1, "a", reference(torch.nn.Linear)), True)),
        Guard(x, GuardKind.SET_HOLDS, SetMember("a", True)),
    ]
    assert from_disk(guards) == guards


def from_disk(guards: list[Guard]) -> list[Guard]:
    table = SourceTable()
    data = json.loads(json.dumps(guards_to_json(guards, table.number)))
    sources = sources_from_rows(json.loads(json.dumps(table.rows)))
    return guards_from_json(data, lambda number: sources[int(str(number))])


def test_code_is_told_by_its_contents() -> None:
    def made(offset: int) -> Any:
        return lambda x: x + offset

    def edited(offset: int) -> Any:
        return lambda x: x - offset

    def called(f: Any) -> None: ...

    guards = [Guard(LocalSource("f"), GuardKind.FUNCTION_CODE, function_expectation(made(1)))]
    data = json.loads(json.dumps(write_tree(tree_rows(guards, function=called), guards)))
    tree = read_tree(data, called, [made(2)])
    assert isinstance(tree, GuardTree) and tree.check([made(3)]) and not tree.check([edited(1)])
    for other in (edited(1), 3):
        assert read_tree(data, called, [other]) == Misfit(0, repr(other)[:100])
    (written,) = from_disk(guards)
    assert "code" in written.expected.code.path


def test_objects_are_found_where_they_stand() -> None:
    for value in (torch.abs, torch.nn.functional.gelu, operator.add, object.__setattr__, torch, torch._C, len,
                  torch.Tensor.add, torch.nn.Linear, torch.ops.aten.add.Tensor, type(None), types.CodeType,
                  dict.fromkeys, torch._C._get_tracing_state, OrderedDict.__new__):  # fmt: skip
        path = path_of(value)
        assert path and resolve(path) == value, value
    assert path_of(object()) == ""


def test_sources_share_rows() -> None:
    sources = [DictAttrSource(SELF, "a"), ItemSource(DictAttrSource(SELF, "a"), 1), ItemSource(SELF, True), SELF]
    table = SourceTable()
    numbers = [table.number(source) for source in sources]
    assert len(table.rows) == 4
    made = sources_from_rows(json.loads(json.dumps(table.rows)))
    assert [made[number] for number in numbers] == sources


def test_a_local_class_is_told_by_its_contents() -> None:
    class Local:
        pass

    (read,) = from_disk([Guard(SELF, GuardKind.TYPE_IS, reference(Local))])
    assert read.expected.path.startswith("#class:") and read.expected.path.count("Local") == 1


def test_objects_without_a_path_keep_guards_from_being_written() -> None:
    class Local:
        pass

    for guard in (
        Guard(SELF, GuardKind.IS, reference(Local())),
        Guard(SELF, GuardKind.SET_ITEMS, SetExpectation((reference(Local),))),
    ):
        with pytest.raises(NotSerialisable):
            write_tree(tree_rows([guard], function=lambda self: None), [guard])


def test_a_module_whose_import_raises_has_no_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "without_a_backend.py").write_text("raise RuntimeError('no backend')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotSerialisable, match="cannot be imported"):
        resolve("without_a_backend:layer")
