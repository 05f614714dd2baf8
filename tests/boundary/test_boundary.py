"""The boundary with torch's own compiler, checked in fresh processes (static check: tools/boundary.py)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


def run(program: str) -> str:
    """Run `program` in a fresh process; its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_kiln_loads_no_compiler() -> None:
    output = run("""
        import sys, kiln
        print([name for name in sys.modules if name.startswith("kiln.")])
    """)
    assert output == "[]"


def test_compiling_a_torch_only_model_loads_nothing_forbidden() -> None:
    output = run("""
        import sys, torch, kiln
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
        compiled = kiln.compile(model, fullgraph=True)
        with torch.no_grad():
            compiled(torch.randn(2, 8))
        compiled(torch.randn(2, 8)).sum().backward()
        forbidden = ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "torch.onnx")
        print([name for name in sys.modules if name.startswith(forbidden)])
    """)
    assert output == "[]"


def test_reading_symbolic_sizes_loads_nothing_forbidden() -> None:
    output = run("""
        import sys, torch, kiln

        def f(x, w):
            assert x.ndim == 3 == x.dim() and len(x) == x.size(0) and x.is_contiguous()
            sums = torch.vmap(lambda row: (row @ w) * row.numel() + row.stride(0))(x)
            return sums + x.reshape(x.shape[0], -1).sum() * x.numel() + x.storage_offset()

        compiled = kiln.compile(f, fullgraph=True)
        for rows in (2, 3, 5):
            compiled(torch.randn(rows, 4, 8), torch.randn(8, 8))
        forbidden = ("torch._dynamo", "torch.distributed.tensor", "torch.fx.experimental.symbolic_shapes")
        print([name for name in sys.modules if name.startswith(forbidden)], kiln.report_of(compiled).compiles)
    """)
    by_plain_sizes = torch.__version__.startswith("2.11.")  # products under vmap: one more compile
    assert output == f"[] {3 if by_plain_sizes else 2}"


def test_a_module_that_torch_imports_while_tracing_may_change_what_was_read() -> None:
    """`unsqueeze_` of a symbolic size imports `torch.distributed.tensor`, which registers a class; vmap reads all."""
    output = run("""
        import torch, kiln

        def f(x):
            y = torch.vmap(lambda row: row * 2)(x)
            return y.unsqueeze_(0) + 1

        compiled = kiln.compile(f, backend="eager", options={"cache": False})
        for rows in (2, 3, 5):
            x = torch.randn(rows, 4)
            assert torch.equal(compiled(x), f(x))
        report = kiln.report_of(compiled)
        print(report.compiles, report.eager)
    """)
    assert output == "3 0"


FORBIDDEN_FOLDERS = ("_dynamo", "_inductor", "_functorch", "_decomp", "_refs", "_prims", "_prims_common",
                     "_subclasses", "fx/experimental", "_export", "export")  # fmt: skip

ALLOWED_FRAMES: dict[str, str] = {}
"""Functions of forbidden files that may run during a compile -> the reason."""


def test_no_frame_of_a_forbidden_file_runs_during_a_compile() -> None:
    output = run(f"""
        import os, sys, torch, transformers, kiln
        config = transformers.BertConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=2,
                                         intermediate_size=128, vocab_size=100)
        model = transformers.BertModel(config).eval()
        tokens = torch.randint(0, 100, (2, 16))
        folder = os.path.dirname(torch.__file__)
        forbidden = tuple(os.path.join(folder, name) + os.sep for name in {FORBIDDEN_FOLDERS!r})
        seen = set()
        def profile(frame, event, arg):
            if event == "call" and frame.f_code.co_filename.startswith(forbidden):
                seen.add(frame.f_code.co_filename[len(folder) + 1:] + ":" + frame.f_code.co_qualname)
        compiled = kiln.compile(model, fullgraph=True)
        sys.setprofile(profile)
        with torch.no_grad():
            compiled(input_ids=tokens)
        sys.setprofile(None)
        print("\\n".join(sorted(seen)))
    """)
    assert set(filter(None, output.splitlines())) <= set(ALLOWED_FRAMES)
