"""A compiled plan as a file; a process without the compiler makes a callable of it.

    data = save_bundle(plan, libraries, {})
    outs = load_bundle(data).executor()(x, weight)

A bundle holds the encoded programs, the kernel libraries and the constants. Loading imports no folder above `runtime`.
"""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch

from kiln.native._executor import Executor
from kiln.plan.encode import encode_program
from kiln.plan.plan import Plan
from kiln.runtime.cache.bundle import DamagedBundle, pack, unpack
from kiln.runtime.cache.store import content_key
from kiln.runtime.cuda_graphs.facts import GraphFacts, graph_facts, seeded_plan
from kiln.runtime.cuda_graphs.graphs import CudaGraphs
from kiln.runtime.cuda_graphs.host_part import HostFirst, PartOrder, split_host_part
from kiln.runtime.executor import Executable, Explain, load_executor
from kiln.runtime.kernels import Cubin, Libraries, instruction_sets
from kiln.support.errors import KilnError
from kiln.support.replaced_file import remove_file
from kiln.tensor.encoding import decode_tensor, encode_tensor

VERSION = 5  # of the manifest


class WrongMachine(KilnError, RuntimeError):
    code = "KILN6003"
    what = "the bundle was compiled for another machine"
    why = "this one lacks {lacking}"
    try_ = ("compile it here, or on a machine of this kind",)


def save_bundle(
    plan: Plan,
    libraries: Libraries,
    constants: Mapping[str, torch.Tensor],
    *,
    adapt: Collection[int] = (),
    program: bytes | None = None,
) -> bytes:
    """Everything that the plan needs to run. `adapt` as in `encode_program`; `program`: what that has given."""
    parts = None if adapt else split_host_part(plan)
    recorded = plan if parts is None else parts.recorded
    facts = graph_facts(recorded)
    sections = {"program": program or encode_program(plan, adapt)}
    if facts.seeds and not facts.refusal:
        sections["seeded"] = encode_program(seeded_plan(recorded), adapt)
    if parts is not None and not facts.refusal:
        sections["host"] = encode_program(parts.host)
        sections["recorded"] = encode_program(recorded)
    sections.update((f"constant/{key}", encode_tensor(tensor)) for key, tensor in constants.items())
    manifest = {
        "version": VERSION, "plan": plan.name, "inputs": [declared.name for declared in plan.inputs],
        "constants": list(plan.constants), "graph": asdict(facts),
        "parts": None if parts is None else asdict(parts.order), **kernel_sections(libraries, sections),
    }  # fmt: skip
    sections["manifest"] = json.dumps(manifest, sort_keys=True).encode()
    return pack(sections)


def kernel_sections(libraries: Libraries, sections: dict[str, bytes]) -> dict[str, object]:
    """Adds libraries and cubins, each once, to `sections`; returns their part of the manifest."""
    files = {path: path.read_bytes() for path in libraries.files()}
    names = {path: content_key(data) for path, data in files.items()}
    sections.update((f"library/{names[path]}", data) for path, data in files.items())
    sections.update((f"cubin/{symbol}", cubin.encode()) for symbol, cubin in libraries.cubins.items())
    return {
        "kernels": {symbol: names[path] for symbol, path in sorted(libraries.paths.items())},
        "cubins": sorted(libraries.cubins),
        "needs": sorted(instruction_sets()) if files else [],
    }


def load_plan(data: bytes, graphs: CudaGraphs | None = None, *, standalone: bool = True) -> Executable:
    """The executor of a bundle, as `CompiledPlan.executor` makes it. Raises KilnError."""
    loaded = load_bundle(data)
    return loaded.executor() if graphs is None else loaded.graphed(graphs, standalone=standalone)


def load_bundle(data: bytes) -> LoadedBundle:
    """Raises DamagedBundle, WrongMachine."""
    sections = unpack(data)
    manifest = json.loads(bytes(sections["manifest"]))
    if manifest["version"] != VERSION:
        raise DamagedBundle(problem=f"its format is version {manifest['version']}, this is version {VERSION}")
    lacking = set(manifest["needs"]) - instruction_sets()
    if lacking:
        raise WrongMachine(lacking=", ".join(sorted(lacking)))
    return LoadedBundle(sections, manifest)


@final
class LoadedBundle:
    """The plan of a bundle; executors are made on demand."""

    def __init__(self, sections: Mapping[str, memoryview], manifest: Mapping[str, Any]) -> None:
        self.sections, self.manifest = sections, manifest
        wanted = sorted(set(manifest["kernels"].values()))
        paths = {key: loadable_file(bytes(sections[f"library/{key}"])) for key in wanted}
        functions = {symbol: paths[key] for symbol, key in manifest["kernels"].items()}
        cubins = {symbol: Cubin.decode(bytes(sections[f"cubin/{symbol}"])) for symbol in manifest["cubins"]}
        self.libraries = Libraries(functions, (), cubins)
        for path in paths.values():
            weakref.finalize(self.libraries, remove_file, path)

    def executor(self) -> Executor:
        return self._load("program", self._constants())

    def graphed(self, graphs: CudaGraphs, *, standalone: bool) -> Callable[..., Any]:
        """The executor, recorded as CUDA graphs where that is possible."""
        constants, written = self._constants(), self.manifest["graph"]
        facts = GraphFacts(**{**written, "mutated": tuple(written["mutated"]), "bumped": tuple(written["bumped"])})
        order = self.manifest["parts"] if "host" in self.sections else None
        plain = self._load("program" if order is None else "recorded", constants)
        graphed = graphs.wrap(plain, lambda every: self._load("seeded", every), facts, constants, standalone=standalone)
        if order is None:
            return graphed
        if graphed is plain:
            return self._load("program", constants)
        results = tuple([(is_recorded, number) for is_recorded, number in order["results"]])
        parts = PartOrder(tuple(order["given"]), results, order["kept"])
        return HostFirst(self._load("host", constants), graphed, parts)

    def _constants(self) -> list[torch.Tensor]:
        return [decode_tensor(bytes(self.sections[f"constant/{key}"])) for key in self.manifest["constants"]]

    def _load(self, section: str, constants: Sequence[torch.Tensor]) -> Executor:
        explain = Explain(self.manifest["plan"], self.manifest["inputs"], self.libraries)
        return load_executor(bytes(self.sections[section]), self.libraries, constants, explain)


def loadable_file(data: bytes) -> Path:
    """A file with these contents that can be opened as a library; it may be removed once it is loaded."""
    path: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix="kiln-", suffix=".so")
        path = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return path
    except OSError:  # no temporary folder, or no space in it
        if path is not None:
            remove_file(path)
        return memory_file(data)


def memory_file(data: bytes) -> Path:
    """A file without a folder. It stays open: the dynamic linker knows a library by its path, which has the number."""
    handle = os.memfd_create("kiln")
    with os.fdopen(os.dup(handle), "wb") as file:
        file.write(data)
    return Path(f"/proc/self/fd/{handle}")
