"""The rows of the suites with fewer layers, smaller widths and images, but the same programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kiln_bench.suite import SuiteRow, load_suite

ENCODER = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "bert-base": {**ENCODER, "vocab_size": 100},
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 100, "n_positions": 64, "bos_token_id": 0},
    "vit-b16": {**ENCODER, "image_size": 32, "patch_size": 8},
    "resnet50": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2]},
    "mobilenet-v2": {"image_size": 32, "depth_multiplier": 0.25},
    "t5-small": {"num_layers": 2, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, "vocab_size": 100},
    "llama-4x512": {**ENCODER, "num_key_value_heads": 2, "vocab_size": 100},
    "llama-16x1024": {**ENCODER, "num_key_value_heads": 2, "vocab_size": 100},
    "mobilebert": {
        **ENCODER, "vocab_size": 100, "embedding_size": 16, "intra_bottleneck_size": 16, "intermediate_size": 32,
        "num_feedforward_networks": 2,
    },
}  # fmt: skip
TIMM: Mapping[str, str] = {
    "resnet50": "test_resnet", "vit-b16": "test_vit", "efficientnet-b0": "test_efficientnet",
    "convnext-b": "test_convnext",
}  # fmt: skip
"""timm's own models for tests, of the same families; their images have 160 pixels a side."""


def tiny(row: SuiteRow, batch: int | None = None, length: int = 16) -> SuiteRow:
    """`row` with a small model and small inputs."""
    if "timm" in row.data:
        return replace(row, data={**row.data, "timm": TIMM[row.name], "batch": batch or 2, "side": 160})
    data = {**row.data, "settings": {**row.data.get("settings", {}), **SETTINGS[row.name]}}
    data["batch"] = batch or (2 if row.data["input"] == "image" else row.data["batch"])
    if "length" in data:
        data["length"] = length
    return replace(row, data=data)


def rows(train: bool) -> tuple[SuiteRow, ...]:
    """The rows with an inference (or training) run, full size."""
    return load_suite("cpu", train=train).rows
