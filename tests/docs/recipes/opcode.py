"""`~x` of an integer is computed by an opcode with a name of its own."""

import sys

RECIPE = "An opcode, a CPython version"
VERSION = f"kiln/capture/bytecode/v3{sys.version_info.minor}.py"
EDITS = [
    (VERSION, "    **COMMON,\n", '    **COMMON,\n    "UNARY_INVERT": table.renamed("COMPLEMENT"),\n'),
    (VERSION, "annotations\n", "annotations\n\nfrom kiln.capture.bytecode import table\n"),
    (
        "kiln/capture/interpreter/opcodes/operators.py",
        '@opcode("UNARY_INVERT", ',
        '''@opcode("COMPLEMENT", pops=1)
def complement(frame: SymbolicFrame, arg: int) -> None:
    """-1 - x is ~x of an integer."""
    frame.stack.append(binary(frame.state, operator.sub, Constant(-1), frame.pop()))


@opcode("UNARY_INVERT", ''',
    ),
]


def check() -> None:
    import torch

    import kiln
    from tests.docs.dumped import dumped

    compiled = kiln.compile(lambda x: ~x, fullgraph=True)
    x = torch.arange(-4, 4)
    torch.testing.assert_close(compiled(x), ~x)
    assert "sub" in dumped("graph") and "bitwise_not" not in dumped("graph")
