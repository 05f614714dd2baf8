"""Reads programs from files; nothing in a file is trusted.

Every field is checked, the graph goes through the verifier, operators come from a list (`operators.py`), sizes of
tensors are those of the graph. A file that fails a check raises KILN6102. `file_writer.py` describes the format.
"""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import cast

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.verify import verify
from kiln.graph.trace.constants import content_key
from kiln.programs.call.errors import DamagedProgram
from kiln.programs.call.fields import Fields, Json, read_json
from kiln.programs.call.shapes import rules_from_fields
from kiln.programs.call.signature import signature_from_json
from kiln.programs.call.tensors import in_memory_of, is_within_memory, read_tensors
from kiln.programs.file_writer import CONSTANTS, FORMAT, GRAPH, MANIFEST, MEMBERS, STATE, VERSION
from kiln.programs.operators import called_overloads, refusal
from kiln.programs.program import LEVELS, Level, Program, interface_of
from kiln.programs.symbols import check_symbols
from kiln.support.errors import KilnError
from kiln.tensor.spec import TensorSpec


def load_program(path: str | os.PathLike[str], *, libraries: Collection[str] = ()) -> Program:
    """The program of a file that `Program.save` wrote.

    Args:
        path: the file.
        libraries: namespaces of custom operators that the program may call.

    Raises:
        DamagedProgram: what is wrong with the file.
    """
    return program_from_bytes(Path(path).read_bytes(), libraries=libraries)


def program_from_bytes(data: bytes, *, libraries: Collection[str] = ()) -> Program:
    """Inverse of `program_bytes`. Raises DamagedProgram."""
    try:
        return _read(data, libraries)
    except DamagedProgram:
        raise
    except KilnError as problem:
        raise DamagedProgram(problem=problem.reason.partition("\n")[0]) from problem
    except (MemoryError, RecursionError) as problem:
        raise DamagedProgram(problem="it is nested too deeply, or too large") from problem
    except Exception as problem:  # of the readers of texts, on texts that nobody has printed
        raise DamagedProgram(problem=f"{type(problem).__name__}: {problem}"[:200]) from problem


def _read(data: bytes, libraries: Collection[str]) -> Program:
    members = read_members(data)
    fields = Fields(read_json(members[MANIFEST], MANIFEST), MANIFEST)
    if fields.text("format") != FORMAT:
        raise DamagedProgram(problem="it is another kind of file")
    if (version := fields.integer("version", 1 << 16)) != VERSION:
        raise DamagedProgram(problem=f"its format has version {version}, this is version {VERSION}")
    graph = parse_graph(members[GRAPH].decode())
    verify(graph, after="load")
    for target in called_overloads(graph):
        if problem := refusal(target, libraries):
            raise DamagedProgram(problem=f"it calls `{target}`: {problem}")
    name, level = fields.text("name"), cast(Level, fields.choice("level", LEVELS[1:]))
    signature = signature_from_json(fields.take("signature"), len(graph.inputs), len(graph.outputs))
    rules = rules_from_fields(fields)
    tied = _tied(fields.take("tied"))
    are_complex = set(fields.texts("complex"))
    fields.finish()
    check_symbols(graph, interface_of(graph, signature, rules))
    state = {key: restored(key, each, are_complex) for key, each in read_tensors(members[STATE]).items()}
    constants = {key: restored(key, each, are_complex) for key, each in read_tensors(members[CONSTANTS]).items()}
    for row, node in zip(signature.states, graph.inputs, strict=False):
        state[row.name] = placed(row.name, state.get(row.name), node.spec)
    if not set(tied.values()) <= state.keys() or tied.keys() & state.keys():
        raise DamagedProgram(problem="a tied name is of no tensor, or of two")
    check_constants(graph, constants)
    return Program(name, graph, signature, rules, state, constants, tied, level)


def read_members(data: bytes) -> dict[str, bytes]:
    """The members of the zip; each is stored once, without compression."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if sorted(entry.filename for entry in entries) != sorted(MEMBERS):
                raise DamagedProgram(problem="its members are not those of a program")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise DamagedProgram(problem="its members are compressed")
            if sum(entry.file_size for entry in entries) > len(data):
                raise DamagedProgram(problem="its members are larger than the file")
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, ValueError) as problem:
        raise DamagedProgram(problem=f"it is not a zip file, or a part of one ({problem})") from problem


def _tied(data: Json) -> dict[str, str]:
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise DamagedProgram(problem="`tied` is not an object of texts")
    return {str(key): str(value) for key, value in data.items()}


def restored(name: str, tensor: torch.Tensor, are_complex: Collection[str]) -> torch.Tensor:
    if name not in are_complex:
        return tensor
    if not tensor.dtype.is_floating_point or not tensor.dim() or tensor.shape[-1] != 2:
        raise DamagedProgram(problem=f"tensor {name[:40]!r} is not complex")
    return torch.view_as_complex(tensor)


def placed(name: str, tensor: torch.Tensor | None, spec: object) -> torch.Tensor:
    """A tensor in the layout that the graph expects, on its device."""
    if tensor is None or not isinstance(spec, TensorSpec):
        raise DamagedProgram(problem=f"there is no tensor {name[:40]!r}")
    if tensor.dtype != spec.dtype or tuple(tensor.shape) != spec.sizes:
        raise DamagedProgram(problem=f"tensor {name[:40]!r} is not {spec}")
    if is_within_memory(spec):
        if spec.device.type == "cpu" and tuple(tensor.stride()) == spec.strides and spec.offset == 0:
            return tensor
        with contextlib.suppress(RuntimeError):  # elements that share memory
            return in_memory_of(tensor, spec)
    raise DamagedProgram(problem=f"tensor {name[:40]!r} has the layout {spec}")


def check_constants(graph: Graph, constants: Mapping[str, torch.Tensor]) -> None:
    """Each constant is there once, with the contents that its key names."""
    nodes = {str(node.attrs["key"]): node for node in graph.nodes if node.op.name == "constant_tensor"}
    if nodes.keys() != constants.keys():
        raise DamagedProgram(problem="its constants are not those of the graph")
    for key, tensor in constants.items():
        spec = nodes[key].tensor
        if tensor.dtype != spec.dtype or tuple(tensor.shape) != spec.sizes or content_key(tensor) != key:
            raise DamagedProgram(problem=f"the constant {key[:40]!r} has other contents")
