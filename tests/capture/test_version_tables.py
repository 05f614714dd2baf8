"""What each version's table makes of raw opcodes, in text: `LOAD_SMALL_INT 5` is `LOAD_CONST 5` on CPython 3.14."""

from __future__ import annotations

import pytest

from kiln.capture.bytecode.table import Jump, RawInstruction
from kiln.capture.bytecode.versions import TABLES
from kiln.capture.interpreter.variables.hashed_key import is_quiet


def program(a, b):
    return a.method(b)[0] + 300


NEW_IN_314 = """
LOAD_FAST_BORROW 1                   =>  LOAD_FAST 'b'
LOAD_FAST_BORROW_LOAD_FAST_BORROW 1  =>  LOAD_FAST 'a', LOAD_FAST 'b'
LOAD_FAST_LOAD_FAST 16               =>  LOAD_FAST 'b', LOAD_FAST 'a'
LOAD_SMALL_INT 5                     =>  LOAD_CONST 5
LOAD_SMALL_INT 0                     =>  LOAD_CONST 0
LOAD_COMMON_CONSTANT 0               =>  LOAD_CONST <class 'AssertionError'>
LOAD_COMMON_CONSTANT 4               =>  LOAD_CONST <built-in function any>
BINARY_OP 0                          =>  BINARY_OP <built-in function add>
BINARY_OP 25                         =>  BINARY_OP <built-in function ixor>
BINARY_OP 26                         =>  BINARY_SUBSCR 26
LOAD_SPECIAL 0                       =>  LOAD_SPECIAL '__enter__'
LOAD_SPECIAL 3                       =>  LOAD_SPECIAL '__aexit__'
WITH_EXCEPT_START 0                  =>  WITH_EXCEPT_START 1
CALL_FUNCTION_EX 0                   =>  CALL_FUNCTION_EX 2
POP_ITER 0                           =>  POP_TOP 0
NOT_TAKEN 0                          =>
FOR_ITER 7                           =>  FOR_ITER to 109
LOAD_ATTR 1                          =>  LOAD_METHOD 'method'
LOAD_METHOD 0                        =>  not known
"""


def read(version: tuple[int, int], line: str) -> str:
    """A raw opcode with its argument, at code unit 100, as normal instructions."""
    table = TABLES[version]
    opname, argument = line.split()
    arg = int(argument)
    parts = [(name, arg & 15 if second else arg >> 4) for second, name in enumerate(table.pairs.get(opname, ()))]
    if opname in table.left_out:
        return ""
    made = []
    for name, value in parts or [(table.same.get(opname, opname), arg)]:
        row = table.rows.get(name)
        if row is None:
            return "not known"
        normal, decoded = row(RawInstruction(name, value, 100, 100, program.__code__))
        made.append(f"{normal} to {decoded.unit}" if isinstance(decoded, Jump) else f"{normal} {decoded!r}")
    return ", ".join(made)


@pytest.mark.parametrize("line", NEW_IN_314.strip().splitlines(), ids=lambda line: line.split("=>")[0].strip())
def test_of_314(line: str) -> None:
    raw, _, expected = line.partition("=>")
    assert read((3, 14), raw) == expected.strip()


def test_a_version_knows_only_its_own_opcodes():
    assert read((3, 13), "LOAD_SMALL_INT 5") == "not known"
    assert read((3, 13), "BINARY_SUBSCR 0") == "BINARY_SUBSCR 0"
    assert read((3, 13), "WITH_EXCEPT_START 0") == "WITH_EXCEPT_START 0"
    assert read((3, 13), "CALL_FUNCTION_EX 1") == "CALL_FUNCTION_EX 1"


class Key:
    def quiet_hash(self) -> int:
        return hash((type(self), id))

    def hash_by_method(self) -> int:
        return self.quiet_hash()

    def hash_by_super(self) -> int:
        return super().__hash__()

    def hash_by_global(self) -> int:
        return len(read((3, 13), "NOP 0"))

    def named(self) -> int:
        found = (self, 1)
        return hash(found[1])


def test_calls_in_a_hash_are_seen_however_the_version_writes_them():
    assert is_quiet(Key.named)
    loud = (Key.quiet_hash, Key.hash_by_method, Key.hash_by_super, Key.hash_by_global)
    assert not any(map(is_quiet, loud))
