"""Loads or compiles models of transformers: `python -m tests.persist.real_models <cache folder> <names>`.

Prints per model: compiles, loaded variants, variants that were not saved, largest difference from eager.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

import kiln

Call = tuple[torch.nn.Module, dict[str, torch.Tensor]]
WIDTHS = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {"input_ids": (2, 16)}
PICTURE = {"pixel_values": (2, 3, 32, 32)}
# fmt: off
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "bert":   ("BertModel", "BertConfig", WIDTHS | {"intermediate_size": 64}, TEXT),
    "gpt2":   ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4}, TEXT),
    "llama":  ("LlamaForCausalLM", "LlamaConfig", WIDTHS | {"intermediate_size": 64}, TEXT),
    "t5":     ("T5ForConditionalGeneration", "T5Config",
               {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
               TEXT | {"decoder_input_ids": (2, 8)}),
    "vit":    ("ViTModel", "ViTConfig", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
               "intermediate_size": 64, "image_size": 32, "patch_size": 8}, PICTURE),
    "resnet": ("ResNetModel", "ResNetConfig", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
               PICTURE),
}
# fmt: on


def made(name: str) -> Call:
    import transformers  # not needed by other tests

    kind, config, settings, shapes = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
    return model, {key: tensor(key, sizes) for key, sizes in shapes.items()}


def tensor(name: str, sizes: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(0, 99, sizes) if name.endswith("ids") else torch.rand(sizes)


def first_tensor(output: Any) -> torch.Tensor:
    found: torch.Tensor = next(value for value in output.values() if isinstance(value, torch.Tensor))
    return found


def main(folder: str, *names: str) -> None:
    torch.set_num_threads(1)
    for name in names:
        model, inputs = made(name)
        compiled: Callable[..., Any] = kiln.compile(model, options={"cache": True, "cache_dir": folder})
        with torch.no_grad():
            error = (first_tensor(compiled(**inputs)) - first_tensor(model(**inputs))).abs().max().item()
        report = kiln.report_of(compiled)
        print(name, report.compiles, report.loaded, len(report.unsaved), error < 1e-4)


if __name__ == "__main__":
    main(*sys.argv[1:])
