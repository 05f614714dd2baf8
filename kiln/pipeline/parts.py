"""What the transformed code of a variant calls, as sections of its file: regions and checks of speculations.

{"kind": "region", ...}     `region.py` writes and reads it
{"kind": "check", ...}      the graph that computes the speculated truth values, as text
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from kiln.capture.interpreter.speculation import Check
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.pipeline.context import CompileContext
from kiln.pipeline.region import load_region
from kiln.pipeline.region_file import CompiledRegion
from kiln.runtime.cache.bundle import pack, unpack
from kiln.runtime.code_file import PartWriter
from kiln.runtime.loader import decode_tensor, encode_tensor

REGION, CHECK = "region", "check"


def part_writer(regions: Sequence[CompiledRegion]) -> PartWriter:
    """Writes the objects in transformed code that only this wing knows."""

    def write(value: object) -> bytes | None:
        for region in regions:
            if value is region.run:
                return None if region.write is None else pack({REGION: region.write()})
        return write_check(value) if isinstance(value, Check) else None

    return write


def load_part(data: bytes, context: CompileContext) -> Callable[..., Any]:
    """Raises KilnError."""
    sections = unpack(data)
    if REGION in sections:
        return load_region(bytes(sections[REGION]), context)
    return load_check(sections)


def write_check(check: Check) -> bytes:
    expected = json.dumps([bool(one) for one in check.expected]).encode()
    constants = {f"constant/{key}": encode_tensor(tensor) for key, tensor in check.constants.items()}
    return pack({CHECK: graph_text(check.graph).encode(), "expected": expected, **constants})


def load_check(sections: dict[str, memoryview]) -> Check:
    constants = {
        name.removeprefix("constant/"): decode_tensor(bytes(data))
        for name, data in sections.items()
        if name.startswith("constant/")
    }
    expected = tuple(json.loads(bytes(sections["expected"])))
    return Check(parse_graph(bytes(sections[CHECK]).decode()), expected, constants)
