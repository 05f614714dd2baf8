"""Sections of a variant's file for what its transformed code calls: regions and checks of speculations.

{"region": ...}                   `region.py` writes it, `region_file.py` reads it
{"check": ..., "expected": ...}   the plan that computes the speculated truth values, and what they must be
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from kiln.pipeline.compiled_region import CompiledRegion
from kiln.pipeline.context import CompileContext
from kiln.pipeline.region_file import load_region, load_speculation
from kiln.runtime.bytecode_file import PartWriter
from kiln.runtime.cache.bundle import pack, unpack
from kiln.runtime.speculation_check import SpeculationCheck

REGION, CHECK = "region", "check"


def part_writer(regions: Sequence[CompiledRegion]) -> PartWriter:
    """Writes the constants of transformed code that only the pipeline knows."""

    def write(value: object) -> bytes | None:
        for region in regions:
            if value is region:
                return None if region.write is None else pack({REGION: region.write()})
        return write_check(value) if isinstance(value, SpeculationCheck) else None

    return write


def load_part(data: bytes, context: CompileContext) -> Callable[..., object]:
    """Raises KilnError."""
    sections = unpack(data)
    if REGION in sections:
        return load_region(bytes(sections[REGION]), context)
    return SpeculationCheck(load_speculation(bytes(sections[CHECK])), tuple(json.loads(bytes(sections["expected"]))))


def write_check(check: SpeculationCheck) -> bytes | None:
    if check.plan.write is None:
        return None
    return pack({CHECK: check.plan.write(), "expected": json.dumps(check.expected).encode()})
