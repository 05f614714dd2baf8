"""A model of the suite `capture` as a program: exported, saved, and run in a process that has only the file.

    exported = ExportedModel(model, "kiln", free=True)        sizes of batches and sequences are free
    exported.results([inputs, more_rows])                     what the other process gets, or why it refuses the sizes

    python -m kiln_bench.capture.exported net.kp inputs.pt results.pt transformers.models.bert.modeling_bert

The module is imported because the classes of results are those of the library. Caches of keys and values are
containers of tensors once transformers has been told so, as for `torch.export`.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kiln.api.exporting import export
from kiln.programs.dims import Dim
from kiln.programs.file_reader import load_program
from kiln.programs.program import Numerics
from kiln.support.errors import KilnError
from kiln.support.optional import load_required
from kiln_bench.candidates import export_by_torch
from kiln_bench.capture.subject import Inputs

SEED = 3


def name_caches() -> None:
    """Tell pytree what the caches of transformers hold."""
    pair = load_required("transformers", purpose="its caches as results").EncoderDecoderCache
    importlib.import_module("transformers.integrations.executorch").register_dynamic_cache_export_support()
    if pair not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(
            pair,
            lambda cache: ([cache.self_attention_cache, cache.cross_attention_cache], None),
            lambda caches, context: pair(*caches),
            serialized_type_name=f"{pair.__module__}.{pair.__name__}",
        )


def free_sizes(inputs: Inputs) -> object:
    """`dynamic_shapes` of a call: rows of tensors, and columns of those with numbers of tokens, may change."""

    def of(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return None
        return dict.fromkeys(range(min(value.dim(), 1 if value.is_floating_point() else 2)), Dim.AUTO)

    return {name: pytree.tree_map(of, value) for name, value in inputs.items()}


@final
class ExportedModel:
    """A model that is exported by Kiln, or, to compare how long that takes, by torch.

    `seconds`: processor time of the export.
    """

    def __init__(self, model: nn.Module, exporter: str, free: bool, strict: bool = False) -> None:
        self.model, self.exporter, self.free, self.strict = model, exporter, free, strict
        self.seconds = 0.0

    def results(self, calls: list[Inputs]) -> list[object]:
        """What another process gets from the saved program, for calls whose sizes it does not refuse, else None.

        Raises KilnError if the first call is not one whole program, and RuntimeError if the other process fails.
        """
        name_caches()
        shapes = free_sizes(calls[0]) if self.free else None
        start = time.process_time()
        if self.exporter != "kiln":
            export_by_torch(self.model, calls[0], shapes)
            self.seconds = time.process_time() - start
            return []
        numerics: Numerics = "strict" if self.strict else "fast"
        program = export(self.model, (), calls[0], dynamic_shapes=shapes, numerics=numerics)
        self.seconds = time.process_time() - start
        with tempfile.TemporaryDirectory() as name:
            saved, given, found = [Path(name) / file for file in ("net.kp", "inputs.pt", "results.pt")]
            program.save(saved)
            torch.save(calls, given)
            command = [sys.executable, "-m", __name__, *map(str, (saved, given, found)), type(self.model).__module__]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr[-400:])
            results: list[object] = torch.load(found, weights_only=False)
            return results


def main() -> None:
    program, given, found, library = sys.argv[1:]
    importlib.import_module(library)
    name_caches()
    torch.set_num_threads(1)
    run = load_program(program, libraries=("transformers",))
    results = []
    for inputs in torch.load(given, weights_only=False):
        torch.manual_seed(SEED)
        try:
            with torch.no_grad():
                results.append(run(**inputs))
        except KilnError as refused:
            if refused.code != "KILN5104" or not results:
                raise
            results.append(None)
    torch.save(results, found)


if __name__ == "__main__":
    main()
