"""How native code follows a source, step by step: `GuardPaths` gives equal paths equal numbers.

    self.__dict__['_modules']['layer']      (LOCAL, 'self', 0), (DICT_ATTR, '_modules', 0), (ITEM, 'layer', 0)
    torch.pi                                (CONST, 'torch', 0), (ITEM, 'pi', 0)

The numbers of accesses are those of csrc/frames/guard_tree.h; extents of tensors are no nodes of a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import kiln.runtime.guards.source as src
from kiln.runtime.guards.source import Source

# fmt: off
(LOCAL, GLOBALS, CELL, CONST, ATTR, DICT_ATTR, ITEM, DEFAULT,
 KW_DEFAULT, CLOSURE, TYPE, METHOD_FUNC, METHOD_SELF, KEY, MRO, CELL_OBJECT, CALL, VALUE, ARRAY,
 CLASS_FIELD, ANSWER) = range(21)
# fmt: on
SIZE, STRIDE, OFFSET = range(100, 103)

NodeRow: TypeAlias = tuple[int, int, int, int, int, object, int]
"""(access, parent, end of its subtree, first check, end of its checks, key, index)"""
CheckRow: TypeAlias = tuple[int, int, int, object]
"""(kind, number of the guard, node or -1, payload)"""
Steps: TypeAlias = tuple[tuple[int, object, int], ...]
"""(access, key, index) of each step."""
StepForms: TypeAlias = dict[type[Source], tuple[int, str | None, str | None] | Callable[..., Steps]]
"""By type of source: (access, field with the key, field with the index), or a function that gives the steps."""


def _default(source: src.DefaultSource) -> Steps:
    key = source.key
    return ((DEFAULT, None, key),) if isinstance(key, int) else ((KW_DEFAULT, key, 0),)


def _call(source: src.CallSource) -> Steps:
    return ((CALL, (source.arguments, source.keywords), 0),)


STEPS: StepForms = {
    src.LocalSource: (LOCAL, "name", None),
    src.CellSource: (CELL, "name", None),
    src.CellObjectSource: (CELL_OBJECT, "name", None),
    src.GlobalSource: lambda source: ((GLOBALS, None, 0), (ITEM, source.name, 0)),
    src.ModuleGlobalSource: lambda source: ((CONST, source.module, 0), (ITEM, source.name, 0)),
    src.BuiltinSource: lambda source: ((CONST, "builtins", 0), (ITEM, source.name, 0)),
    src.ImportSource: lambda source: ((CONST, "sys.modules", 0), (ITEM, source.module, 0)),
    src.AttrSource: (ATTR, "name", None),
    src.DictAttrSource: (DICT_ATTR, "name", None),
    src.ItemSource: (ITEM, "key", None),
    src.DefaultSource: _default,
    src.ClosureSource: (CLOSURE, None, "index"),
    src.TypeSource: (TYPE, None, None),
    src.MethodFuncSource: (METHOD_FUNC, None, None),
    src.MethodSelfSource: (METHOD_SELF, None, None),
    src.GradSource: lambda source: ((ATTR, "grad", 0),),
    src.KeysSource: (KEY, None, "index"),
    src.ValuesSource: (VALUE, None, "index"),
    src.MroSource: (MRO, None, "index"),
    src.ArraySource: (ARRAY, None, None),
    src.AnswerSource: (ANSWER, "function", None),
    src.ClassFieldSource: (CLASS_FIELD, "name", None),
    src.CallSource: _call,
    src.SizeSource: (SIZE, None, "dim"),
    src.StrideSource: (STRIDE, None, "dim"),
    src.OffsetSource: (OFFSET, None, None),
}
