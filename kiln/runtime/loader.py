"""Compiled plans as a file; a process without the compiler makes callables of it.

    data = save_bundle({"main": plan}, libraries, {})
    loaded = load_bundle(data)
    outs = loaded.executor("main")(x, weight)

A bundle holds the encoded programs, the plans as JSON (to read, or to compile their kernels for another machine), the
kernel libraries and the constants. Loading imports no folder above `runtime`.
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
from kiln.plan.region import RegionSpec
from kiln.plan.serialize import decode_plan, encode_plan
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

VERSION = 4
MAIN = "main"
"""The name of the plan in a bundle of one plan."""


class WrongMachine(KilnError, RuntimeError):
    code = "KILN6003"
    what = "the bundle was compiled for another machine"
    why = "this one lacks {lacking}"
    try_ = ("compile it here, or on a machine of this kind",)


def save_bundle(
    plans: Mapping[str, Plan],
    libraries: Libraries,
    constants: Mapping[str, torch.Tensor],
    *,
    adapt: Mapping[str, Collection[int]] | None = None,
    specs: Mapping[str, RegionSpec] | None = None,
    programs: Mapping[str, bytes] | None = None,
    readable: bool = True,
) -> bytes:
    """Everything that the plans need to run. `adapt` as in `encode_program`, `specs` of differentiable regions.
    `programs`: plans that have been encoded.

    Without `readable` the plans as JSON are left out.
    """
    sections: dict[str, bytes] = {}
    entries: dict[str, object] = {}
    for name, plan in plans.items():
        own = (adapt or {}).get(name, ())
        parts = None if own else split_host_part(plan)
        recorded = plan if parts is None else parts.recorded
        facts = graph_facts(recorded)
        sections[f"program/{name}"] = (programs or {}).get(name) or encode_program(plan, own)
        if readable:
            sections[f"plan/{name}"] = encode_plan(plan)
        if facts.seeds and not facts.refusal:
            sections[f"seeded/{name}"] = encode_program(seeded_plan(recorded), own)
        if parts is not None and not facts.refusal:
            sections[f"host/{name}"] = encode_program(parts.host)
            sections[f"recorded/{name}"] = encode_program(recorded)
        inputs = [declared.name for declared in plan.inputs]
        entries[name] = {
            "plan": plan.name, "inputs": inputs, "constants": list(plan.constants), "graph": asdict(facts),
            "parts": None if parts is None else asdict(parts.order),
        }  # fmt: skip
    sections.update((f"region/{name}", encode_plan(spec)) for name, spec in (specs or {}).items())
    sections.update((f"constant/{key}", encode_tensor(tensor)) for key, tensor in constants.items())
    kernels = kernel_sections(libraries, sections)
    sections["manifest"] = json.dumps({"version": VERSION, "entries": entries, **kernels}, sort_keys=True).encode()
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
    if graphs is None:
        return loaded.executor(MAIN)
    return loaded.graphed(MAIN, graphs, standalone=standalone)


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
    """Plans of a bundle by name; executors are made on demand."""

    def __init__(self, sections: Mapping[str, memoryview], manifest: Mapping[str, Any]) -> None:
        self.sections = sections
        self.entries: Mapping[str, Any] = manifest["entries"]
        wanted = sorted(set(manifest["kernels"].values()))
        paths = {key: loadable_file(bytes(sections[f"library/{key}"])) for key in wanted}
        functions = {symbol: paths[key] for symbol, key in manifest["kernels"].items()}
        cubins = {symbol: Cubin.decode(bytes(sections[f"cubin/{symbol}"])) for symbol in manifest["cubins"]}
        self.libraries = Libraries(functions, (), cubins)
        for path in paths.values():
            weakref.finalize(self.libraries, remove_file, path)

    def names(self) -> list[str]:
        return sorted(self.entries)

    def executor(self, name: str) -> Executor:
        return self._load("program", name, self._constants(name))

    def graphed(self, name: str, graphs: CudaGraphs, *, standalone: bool) -> Callable[..., Any]:
        """The executor, recorded as CUDA graphs where that is possible."""
        constants = self._constants(name)
        written = self.entries[name]["graph"]
        facts = GraphFacts(**{**written, "mutated": tuple(written["mutated"]), "bumped": tuple(written["bumped"])})
        order = self.entries[name]["parts"] if f"host/{name}" in self.sections else None
        plain = self._load("program" if order is None else "recorded", name, constants)
        graphed = graphs.wrap(
            plain, lambda every: self._load("seeded", name, every), facts, constants, standalone=standalone
        )
        if order is None:
            return graphed
        if graphed is plain:
            return self._load("program", name, constants)
        results = tuple([(is_recorded, number) for is_recorded, number in order["results"]])
        parts = PartOrder(tuple(order["given"]), results, order["kept"])
        return HostFirst(self._load("host", name, constants), graphed, parts)

    def _constants(self, name: str) -> list[torch.Tensor]:
        return [decode_tensor(bytes(self.sections[f"constant/{key}"])) for key in self.entries[name]["constants"]]

    def _load(self, kind: str, name: str, constants: Sequence[torch.Tensor]) -> Executor:
        entry = self.entries[name]
        program = bytes(self.sections[f"{kind}/{name}"])
        explain = Explain(entry["plan"], entry["inputs"], self.libraries)
        return load_executor(program, self.libraries, constants, explain)

    def plan(self, name: str) -> Plan:
        """For reading, and for the Python executor."""
        plan: Plan = decode_plan(bytes(self.sections[f"plan/{name}"]))
        return plan

    def region(self, name: str) -> RegionSpec:
        spec: RegionSpec = decode_plan(bytes(self.sections[f"region/{name}"]))
        return spec


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
