"""A model of the suite `capture` as a program: exported, saved, and run in a process that has only the file.

    python -m kiln_bench.capture.exported net.kp inputs.pt results.pt transformers.models.bert.modeling_bert

The module is imported because the classes of results are those of the library. Caches of keys and values are
containers of tensors once transformers has been told so, as for `torch.export`.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kiln.api.exporting import export
from kiln.programs.file_reader import load_program
from kiln.support.optional import load_required

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


def exported(model: nn.Module) -> Callable[..., object]:
    """A function that exports a call of `model`, and returns what another process gets from the saved program.

    It raises KilnError if the call is not one whole program, and RuntimeError if the other process fails.
    """

    def run(**inputs: object) -> object:
        name_caches()
        with tempfile.TemporaryDirectory() as name:
            program, given, found = [Path(name) / file for file in ("net.kp", "inputs.pt", "results.pt")]
            export(model, (), inputs).save(program)
            torch.save(inputs, given)
            command = [sys.executable, "-m", __name__, *map(str, (program, given, found)), type(model).__module__]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr[-400:])
            return torch.load(found, weights_only=False)

    return run


def main() -> None:
    program, given, found, library = sys.argv[1:]
    importlib.import_module(library)
    name_caches()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    with torch.no_grad():
        results = load_program(program, libraries=("transformers",))(**torch.load(given, weights_only=False))
    torch.save(results, found)


if __name__ == "__main__":
    main()
