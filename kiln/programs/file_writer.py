"""Writes programs as files: a zip of JSON, text and tensors. No pickle, no compression, a version.

    manifest.json           what the program is, its signature, its constraints
    graph.txt               the graph of primitives, as `program.text("prims")` prints it
    state.safetensors       parameters, buffers and constants by name
    constants.safetensors   tensors of the graph by content key

Equal programs give equal bytes.
"""

from __future__ import annotations

import io
import json
import os
import zipfile

from kiln.graph.ir.text import graph_text
from kiln.programs.call.errors import NotSavable
from kiln.programs.call.fields import Json
from kiln.programs.call.tensors import is_within_memory, write_tensors
from kiln.programs.operators import called_overloads, refusal
from kiln.programs.program_parts import ProgramParts
from kiln.support.replaced_file import replaced_file

FORMAT, VERSION = "kiln.program", 1
MANIFEST, GRAPH, STATE, CONSTANTS = "manifest.json", "graph.txt", "state.safetensors", "constants.safetensors"
MEMBERS = (MANIFEST, GRAPH, STATE, CONSTANTS)
DATE = (1980, 1, 1, 0, 0, 0)  # of each member: equal contents are equal files


def program_bytes(program: ProgramParts) -> bytes:
    """The file. Raises NotSavable."""
    for target in called_overloads(program.graph):
        if target.startswith("aten.") and (problem := refusal(target, ())):
            raise NotSavable(place=f"the graph (`{target}`: {problem})", type="call")
    for row, node in zip(program.interface.signature.states, program.graph.inputs, strict=False):
        if not is_within_memory(node.tensor):
            raise NotSavable(place=f"tensor `{row.name}`", type=f"{node.spec}, a small part of a large tensor")
    members = {
        MANIFEST: json.dumps(manifest(program), indent=1).encode(),
        GRAPH: graph_text(program.graph).encode(),
        STATE: write_tensors(program.state),
        CONSTANTS: write_tensors(program.constants),
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, DATE), data)
    return file.getvalue()


def manifest(program: ProgramParts) -> dict[str, Json]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": program.name,
        "level": program.level if program.level != "torch" else "core",
        "signature": program.interface.signature.to_json(),
        **program.interface.rules.to_json(),
        "tied": dict(program.tied),
        "complex": [
            name for name, tensor in {**program.state, **program.constants}.items() if tensor.is_complex()
        ],
    }  # fmt: skip


def save_program(program: ProgramParts, path: str | os.PathLike[str]) -> None:
    """Write the file, or leave what was there."""
    data = program_bytes(program)
    with replaced_file(path) as file:
        file.write(data)
