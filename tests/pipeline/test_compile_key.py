"""What the keys of the on-disk cache say of the machine."""

from __future__ import annotations

from pathlib import Path

from kiln.pipeline.compile_key import gpu_names, models_of


def test_gpus_that_are_alike_are_known_before_cuda_is_used(tmp_path: Path) -> None:
    assert gpu_names(tmp_path / "missing") == gpu_names(tmp_path)
    for number, model in enumerate(("NVIDIA H200", "NVIDIA H200", "NVIDIA L4")):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 16\n")
        models_of.cache_clear()
        expected = "NVIDIA H200" if number < 2 else gpu_names(tmp_path / "missing")
        assert gpu_names(tmp_path) == expected
    models_of.cache_clear()
