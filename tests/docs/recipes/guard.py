"""A guard that a container has an item, whatever it is."""

RECIPE = "A guard"
EDITS = [
    (
        "kiln/runtime/guards/guard.py",
        '    EMPTY_DICT = "empty_dict"',
        '    NOT_EMPTY = "not_empty"  # [None] a list or dict with an item\n    EMPTY_DICT = "empty_dict"',
    ),
    ("kiln/runtime/guards/tree.py", "ABSENT, EMPTY_DICT,", "ABSENT, NOT_EMPTY, EMPTY_DICT,"),
    ("kiln/runtime/guards/tree.py", "RELATION, GLOBAL_STATE) = range(15)", "RELATION, GLOBAL_STATE) = range(16)"),
    (
        "kiln/runtime/guards/tree.py",
        "    GuardKind.EMPTY_DICT: (",
        "    GuardKind.NOT_EMPTY: (NOT_EMPTY, lambda guard: None),\n    GuardKind.EMPTY_DICT: (",
    ),
    ("csrc/frames/guard_tree.h", "  kEmptyDict,\n", "  kNotEmpty,\n  kEmptyDict,\n"),
    (
        "csrc/frames/guard_tree.cpp",
        "    case Kind::kEmptyDict:\n",
        "    case Kind::kNotEmpty:\n"
        "      return (PyList_Check(value) && PyList_GET_SIZE(value) > 0) ||\n"
        "             (PyDict_Check(value) && PyDict_GET_SIZE(value) > 0);\n"
        "    case Kind::kEmptyDict:\n",
    ),
]


def check() -> None:
    from kiln.runtime.guards.guard import Guard, GuardKind
    from kiln.runtime.guards.source import LocalSource
    from kiln.runtime.guards.tree import build_tree
    from kiln.support.location import Location

    def function(x):
        return x

    guard = Guard(LocalSource("x"), GuardKind.NOT_EMPTY, None, Location("program.py", 1))
    tree = build_tree([guard], function=function)
    assert all(tree.check((x,)) for x in ([1], {"a": 1}))
    assert not any(tree.check((x,)) for x in ([], {}, 3))
