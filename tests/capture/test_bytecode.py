"""Reading code objects: normal instructions, handlers, liveness; the tables of other CPython versions."""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import dis
import inspect
import shutil
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

from kiln.capture.bytecode.assemble import Instr, parsed
from kiln.capture.bytecode.decode import decode
from kiln.capture.bytecode.liveness import live_locals
from kiln.capture.bytecode.versions import TABLES
from kiln.capture.interpreter.capture import REGISTERED
from kiln.capture.interpreter.codegen import EMITTERS
from kiln.capture.interpreter.frame import OPCODES
from kiln.runtime.guards.source import SOURCES, FormulaSource

SAMPLE = """
def sample(a, b, *rest, flag=True):
    total = 0
    for i, c in enumerate(rest):
        if c is None or not flag:
            continue
        total += a.method(c)[1:i] if a > b else [x for x in rest if x]
    try:
        with b as handle:
            return total, handle.attr, {**{"k": a}}, f"{a!r:>3}"
    except (ValueError, KeyError) as error:
        raise RuntimeError("x") from error
    finally:
        del total
"""

PROBE = (
    SAMPLE
    + """
from kiln.capture.bytecode.decode import decode
from kiln.capture.bytecode.liveness import live_locals
import collections, contextlib, dataclasses, inspect, types
codes = [sample.__code__]
def nested(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from nested(const)
for module in (collections, contextlib, dataclasses, inspect):
    for value in list(vars(module).values()):
        if isinstance(value, types.FunctionType):
            codes.extend(nested(value.__code__))
names = set()
for code in codes:
    decoded = decode(code)
    live_locals(decoded)
    for one in decoded.instructions:
        names.add(one.arg if one.name == "UNKNOWN" else one.name)
        assert one.name != "UNKNOWN", one
print(*sorted(names))
"""
)


def sample(a, b):
    x = a + 1
    if b:
        return x
    return a


def test_live_locals():
    decoded = decode(sample.__code__)
    live = live_locals(decoded)
    branch = next(i for i, instruction in enumerate(decoded.instructions) if instruction.name == "POP_JUMP_IF_FALSE")
    assert live[0] == {"a", "b"}
    assert live[branch + 1] == {"x"}
    assert live[decoded.instructions[branch].arg] == {"a"}


def test_instructions_are_those_that_are_assembled():
    """From 3.13 on some raw instructions are two; an index means the same in both lists."""

    def pairs(a, b):
        c = d = a
        for a, b in zip(c, d):  # noqa: B905
            c, d = b, a
        return c, d, lambda: a

    for code in (pairs.__code__, *codes_of(collections, contextlib, inspect)):
        made = [item for item in parsed(code) if isinstance(item, Instr)]
        decoded = decode(code)
        assert len(made) == len(decoded)
        for index, item in enumerate(made):
            assert item.name == decoded.raw(index).opname and item.name not in TABLES[sys.version_info[:2]].pairs


INTERNAL = {"CACHE", "EXTENDED_ARG", "RESERVED", "INTERPRETER_EXIT", "EXIT_INIT_CHECK", "ENTER_EXECUTOR"}
"""Opcodes that CPython puts into code only while it runs."""


def test_every_opcode_has_a_handler():
    version = TABLES[sys.version_info[:2]]
    missing = [
        name
        for name, number in dis.opmap.items()
        if number < 256  # larger numbers do not occur in code objects
        and name not in version.rows
        and name not in version.pairs
        and name not in version.same
        and name not in version.left_out
        and name not in INTERNAL
        and not name.startswith(("<", "INSTRUMENTED"))
    ]
    assert missing == []
    assert REGISTERED


def test_the_tables_are_filled_by_importing_the_interpreter():
    root = Path(__file__).parents[2]
    files = sorted((root / "kiln/capture/interpreter").rglob("*.py"))
    names = {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for file in files}
    program = "import sys, kiln.capture.interpreter; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=True)
    late = {"kiln.capture.interpreter.fully_shard_polyfills"}  # where the program has loaded FSDP2
    assert names - late <= set(result.stdout.split())


OF_CLASS_BODIES = {
    *("LOAD_NAME", "STORE_NAME", "DELETE_NAME", "LOAD_CLASSDEREF"),
    *("LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS"),
}
"""A class body is no frame that is resumed."""


def test_what_may_break_says_how_many_operands_it_takes():
    unknown = {name for name, row in OPCODES.items() if row.breaks and row.handler.__name__ != "not_modelled"}
    unknown = {name for name in unknown if OPCODES[name].pops is None}
    assert unknown <= {"SEND", "LOAD_LOCALS", "SETUP_ANNOTATIONS", *OF_CLASS_BODIES}


def test_declared_operands_and_results_are_those_of_cpython():
    checked = set()
    for code in codes_of(collections, contextlib, dataclasses, inspect, textwrap, ast):
        decoded = decode(code)
        for index, instruction in enumerate(decoded.instructions):
            raw = decoded.raw(index)
            row = OPCODES[instruction.name]
            if row.pops is None or raw.opname == "CALL":  # 3.11 splits a call in two
                continue
            argument = raw.arg if dis.opmap[raw.opname] >= dis.HAVE_ARGUMENT else None
            effect = dis.stack_effect(dis.opmap[raw.opname], argument, jump=False)
            assert row.results(instruction.arg) - row.operands(instruction.arg) == effect, instruction
            checked.add(instruction.name)
    assert len(checked) > 40


def codes_of(*modules):
    codes = [value.__code__ for module in modules for value in vars(module).values() if inspect.isfunction(value)]
    while codes:
        code = codes.pop()
        codes.extend(const for const in code.co_consts if isinstance(const, types.CodeType))
        yield code


def test_every_source_can_be_loaded():
    assert {kind.__name__ for kind in (*SOURCES.values(), FormulaSource)} == {kind.__name__ for kind in EMITTERS}


@pytest.mark.parametrize("python", ["python3.11", "python3.12", "python3.13", "python3.14"])
def test_decodes_the_standard_library_of(python):
    found = shutil.which(python)
    works = found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
    if not works:
        pytest.skip(f"no {python}")
    root = Path(__file__).parents[2]
    result = subprocess.run([found, "-c", PROBE], capture_output=True, text=True, cwd=root, check=False)
    assert result.returncode == 0, result.stderr
    names = set(result.stdout.split())
    assert names <= set(OPCODES), sorted(names - set(OPCODES))
