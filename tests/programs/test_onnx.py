"""Programs as ONNX models: the text of a model, its file, and what ONNX Runtime computes from it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import kiln
from kiln.onnx import write_model
from kiln.programs.onnx_file import onnx_model
from kiln.support.errors import KilnError
from kiln.support.optional import load

BATCH, SIDE = kiln.Dim("batch", min=2, max=64), kiln.Dim("side", min=4, max=64)


class Net(nn.Module):
    """Results in a dict; sizes that are products and quotients of those of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, 5)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        y = torch.relu(self.conv(image)).flatten(2).transpose(1, 2)
        places = torch.arange(y.shape[1]) % 3
        return {"scores": self.out(y).softmax(-1), "kept": y[:, :, 0] * places, "rows": y.reshape(-1, 4)}


def exported() -> kiln.Program:
    return kiln.export(Net(), (torch.randn(2, 3, 8, 9),), dynamic_shapes={"image": {0: BATCH, 3: SIDE}})


def as_reals(x: Tensor) -> Tensor:
    """A complex number is a pair of reals in ONNX."""
    return torch.view_as_real(x) if x.is_complex() else x


def run_onnx(path: Path, program: kiln.Program, *args: Tensor) -> list[Tensor]:
    runtime: Any = load("onnxruntime")
    session = runtime.InferenceSession(str(path))
    names = [value.name for value in session.get_inputs() if value.name not in program.state]
    feed = {name: as_reals(arg).numpy() for name, arg in zip(names, args, strict=True)}
    return [torch.as_tensor(value) for value in session.run(None, feed)]


def test_text(golden: Callable[..., None]) -> None:
    golden(onnx_model(exported()).text())


def test_other_runtimes_compute_it(tmp_path: Path) -> None:
    onnx: Any = pytest.importorskip("onnx", reason="the package onnx is not installed")
    pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
    program, path = exported(), tmp_path / "net.onnx"
    program.save_onnx(path)
    onnx.checker.check_model(str(path), full_check=True)
    write_model(onnx_model(program), tmp_path / "apart.onnx", largest=0)
    onnx.checker.check_model(str(tmp_path / "apart.onnx"), full_check=True)
    for batch, side in ((2, 9), (3, 12), (5, 4)):
        image = torch.randn(batch, 3, 8, side)
        expected = list(program(image).values())  # type: ignore[attr-defined]
        assert_close(run_onnx(path, program, image), expected)
        assert_close(run_onnx(tmp_path / "apart.onnx", program, image), expected)


class Step(nn.Module):
    """A cache, and a number of calls that are returned, too."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Buffer(torch.zeros(2, 8, 4))
        self.calls = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor, place: Tensor) -> Any:
        self.calls += 1
        self.keys[:, place] = x
        return self.keys.sum(1), self.calls, x


def spaced(x: Tensor) -> Tensor:
    x = x.clone()
    x[::2] = 1
    x[:, 1::2] += 3
    return x


def nested(x: Tensor) -> Any:
    def inner(y: Tensor) -> Tensor:
        return torch.cond(y.max() > 1, torch.sin, lambda y: y * x.shape[0], (y,))

    turned = torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, inner(y) + x.sum()), (torch.tensor(0), x))
    return turned, scan(lambda h, row: (h * 0.5 + row, h * row), x[0], x)


def spectra(x: Tensor) -> Any:
    whole, half = torch.fft.fft2(x), torch.fft.rfft(x, norm="ortho")
    return (
        whole,
        half * 2j,
        torch.fft.irfft(half, n=5),
        torch.fft.ifft(whole, dim=0),
        torch.fft.irfft2(whole, norm="forward"),
    )


def windowed(x: Tensor) -> Any:
    window = torch.hann_window(16)
    bands = torch.stft(x, 16, 4, window=window, return_complex=True)
    return bands.abs(), torch.istft(bands * 0.5, 16, 4, window=window)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions, as Llama 4 writes them."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def of_complex(x: Tensor, y: Tensor) -> Any:
    return (
        x / y, x.abs(), x.angle(), x.exp(), x.log(), x.sqrt(), x.rsqrt(), x.sin(), x.cosh(), x**y, x.sgn(), x.prod(0),
        x == y, x.isnan(), x @ y.mT, torch.addmm(x[:, :3], x, y[:3].mT[:, :3]), nn.functional.pad(x, (1, 1), value=2),
        x.real + 2j, x.mean(0), torch.cat([x, y])[1:], x.to(torch.complex128), torch.tensor([1 + 2j]) * x.unsqueeze(1),
        torch.where(x.imag > 0, x, y), x[torch.tensor([0, 2])], x.view(torch.float32), 1 / y, torch.zeros_like(x),
    )  # fmt: skip


def scattered(x: Tensor, y: Tensor) -> Any:
    index = torch.tensor([[0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    kinds = ("sum", "mean", "prod", "amax", "amin")
    return [x.scatter_reduce(0, index, y, kind, include_self=own) for kind in kinds for own in (True, False)]


def averaged(x: Tensor) -> Any:
    flags = [(cut, border, divisor) for cut in (False, True) for border in (False, True) for divisor in (None, 5)]
    return [functional.avg_pool2d(x, 3, 2, 1, *some) for some in flags]


def unpooled(x: Tensor) -> Tensor:
    return functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), 2)  # type: ignore[call-overload]


A, B, IMAGE = torch.randn(3, 4), torch.randn(3, 4), torch.randn(2, 3, 8, 8)
SIGNED = torch.tensor([[0.0, -0.0, 1.0, -2.0]] * 3)
ROWS, EDGES = torch.tensor([5, 7, 200], dtype=torch.uint8), torch.tensor([-1.0, 0.0, 1.0])
ITEMS = torch.tensor([[0, 2, 1, 1], [2, 2, 2, 2]])
NAN, GAMMA = float("nan"), torch.tensor([0.0, -0.0, 1.0, 2.0, -1.0, -2.5, 1e-6, 1.0001, 100.0, 1e10, float("inf"), 0.3])
functional, bag = nn.functional, nn.functional.embedding_bag
# fmt: off
CALLS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], bool]] = {
    # what is written, its arguments, and whether the first dimension of all is free
    "state":      (Step(), (torch.randn(2, 4), torch.tensor(3)), False),
    "arguments":  (lambda x, y: (x.add_(1), y.mul_(x), x * y)[2], (A, B), True),
    "nested":     (nested, (A,), True),
    "numbers":    (lambda x: (x * x.shape[0] ** -0.5, x.shape[0], 3, None, True, 0.5, x), (A,), True),
    "floats":     (lambda x: (x * 2, 1 / x.shape[0], x.sum().item()), (A,), True),
    "lstm":       (nn.LSTM(4, 6, 2, bidirectional=True).eval(), (torch.randn(3, 5, 4),), True),
    "gru":        (nn.GRU(4, 6).eval(), (torch.randn(3, 5, 4),), False),
    "counted":    (lambda x: ((x > 0).nonzero(), x[x > 0], torch.where(x.sum(1) > 0)[0]), (A,), True),
    "read":       (lambda x, n: x[: n.item()].sum(0), (A, torch.tensor(2)), False),
    "near zero":  (lambda x: (x.mul(1e-4).expm1(), x.abs().mul(1e-4).log1p(), x.signbit()), (A,), True),
    "angles":     (lambda x, y: (torch.atan2(x, y), torch.copysign(y, x), torch.hypot(x, y)),
                   (SIGNED, SIGNED.flip(1)), True),
    "bits":       (lambda x, y: (x << 2, x >> 1, y >> 4, (x > 0) * (y > 6), y < 7),
                   (torch.tensor([-5, 7, 100]), ROWS), True),
    "views":      (lambda x: ((x @ x.mT).diagonal(), x.unfold(0, 2, 1), x.as_strided((2, 3), (1, 4))), (A,), True),
    "spaced":     (spaced, (A,), True),
    "stored":     (lambda x, y: (x.scatter(1, torch.tensor([[0, 1], [1, 2]]), y), x.masked_scatter(x > 0, y)),
                   (A, B), True),
    "ranges":     (lambda x: torch.linspace(0, 1, x.shape[0])[:, None] * x + torch.arange(0, 2, 0.5), (A,), True),
    "constants":  (lambda x: x[torch.triu_indices(3, 3)[0]] * torch.hann_window(4), (A,), False),
    "pools":      (lambda x: (functional.adaptive_avg_pool2d(x, 3), functional.adaptive_max_pool2d(x, (2, 5))),
                   (IMAGE,), True),
    "one image":  (lambda x: (functional.max_pool2d(x[0], 3), functional.avg_pool2d(x[1], 2)), (IMAGE,), True),
    "scaled":     (lambda x: functional.interpolate(functional.interpolate(x, scale_factor=1.7), None, 0.7, "bilinear"),
                   (IMAGE,), True),
    "cubic":      (lambda x: functional.interpolate(x, (5, 20), mode="bicubic"), (IMAGE,), True),
    "antialias":  (lambda x: functional.interpolate(x, (5, 5), mode="bilinear", antialias=True), (IMAGE,), True),
    "grid":       (lambda x, y: functional.grid_sample(x, y, padding_mode="border", align_corners=False),
                   (IMAGE, torch.randn(2, 4, 4, 2)), True),
    "columns":    (lambda x: functional.unfold(x, (3, 2), (1, 2), 1, 2), (IMAGE,), True),
    "images":     (lambda x: functional.fold(x, (4, 4), (2, 2), stride=2), (torch.randn(2, 12, 4),), True),
    "order":      (lambda x: (x.sort(), x.argsort(1, True), x.median(1), x.kthvalue(2, 1, True)), (A,), True),
    "bins":       (lambda x: (torch.bucketize(x, EDGES), torch.searchsorted(EDGES, x, right=True), x.histc(4, -1, 1)),
                   (A,), True),
    "products":   (lambda x, y: (torch.linalg.cross(x[:, :3], y[:, :3]), torch.cdist(x, y)), (A, B), True),
    "norm":       (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (A,), True),
    "running":    (lambda x: (x.cumprod(1), (x[:, :3] > 0).cumprod(1)), (A,), True),
    "erfc":       (lambda x: torch.erfc(3 * x), (A,), True),
    "bags":       (lambda x, y: (bag(ITEMS, x), bag(ITEMS, y, mode="mean", padding_idx=2), bag(ITEMS, x, mode="max"),
                                 bag(ITEMS[0], x, torch.tensor([0, 2, 2, 4]), include_last_offset=True)),
                   (A, B), False),
    "vdot":       (lambda x, y: torch.vdot(x[0], y[0]), (A, A), True),
    "weighed":    (lambda x: bag(ITEMS, x, mode="sum", per_sample_weights=torch.ones(2, 4) / 3), (A,), True),
    "spectra":    (spectra, (torch.rand(3, 4, 6) / 9,), True),
    "windowed":   (windowed, (torch.randn(2, 64),), True),
    "turned":     (turned, (torch.randn(3, 5, 8), torch.randn(3, 5, 4)), True),
    "complex":    (of_complex, (torch.complex(A, B), torch.complex(B, A)), False),
    "cells":      (lambda x: x.mul_(2j), (torch.complex(A, B),), True),
    "extremes":   (lambda x, y: (x.cummax(1), x.cummin(1), y.cummax(1), x.logcumsumexp(1)),
                   (SIGNED.clone().fill_diagonal_(NAN), (SIGNED * 2).int()), True),
    "gamma":      (lambda x: (x.lgamma(), x.digamma(), x.double().lgamma()), (GAMMA,), True),
    "medians":    (lambda x: (x.median(), x.nanmedian(), (x + NAN).nanmedian(), x.int().median()), (A,), True),
    "bags of n":  (lambda x: (x.bincount(minlength=2), x.bincount(x * 0.5)), (torch.tensor([1, 4, 1]),), True),
    "scattered":  (scattered, (A, B), False),
    "averaged":   (averaged, (IMAGE,), True),
    "unpooled":   (unpooled, (IMAGE,), True),
    "exact":      (lambda x: functional.interpolate(x, (5, 20), mode="nearest-exact"), (IMAGE,), True),
    "affine":     (lambda x: [functional.affine_grid(x, (3, 2, 5, 7), corners) for corners in (False, True)],
                   (torch.randn(3, 2, 3),), False),
    "one row":    (lambda x: functional.affine_grid(x, (3, 2, 1, 7), True), (torch.randn(3, 2, 3),), False),
    "distances":  (lambda x, y: [torch.cdist(x, y, p) for p in (0.0, 2.5, float("inf"))], (A, B), True),
    "one tensor": (lambda x: functional.scaled_dot_product_attention(x, x, x), (IMAGE,), True),
    "renorm":     (lambda x: (x.renorm(1, 1, 0.5), torch.ldexp(x, torch.tensor([1, -2, 0, 3]))), (A,), True),
    "lengths":    (lambda x: x.renorm(2, 1, 0.5), (A,), True),
    "determinant": (lambda x: torch.linalg.det(x / 9 + torch.eye(8)), (IMAGE,), True),
    "quotients":  (lambda x: (x // 0.3, x % 0.3, x // -2), (A,), True),
}
# fmt: on


@pytest.mark.parametrize("name", CALLS)
def test_results(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
    function, args, is_free = CALLS[name]
    path, batch = tmp_path / "net.onnx", kiln.Dim("batch", min=2, max=64)
    shapes = [{0: batch} if is_free else None for _ in args]
    with torch.no_grad():
        program = kiln.export(copy.deepcopy(function), copy.deepcopy(args), dynamic_shapes=shapes)
        program.save_onnx(path)
        for given in [args, tuple([torch.cat([arg, arg]) for arg in args])] if is_free else [args]:
            mine, module = copy.deepcopy(given), copy.deepcopy(function)
            expected = [torch.as_tensor(leaf) for leaf in tree_leaves(module(*mine)) if leaf is not None]
            state = dict(module.named_buffers()) if isinstance(module, nn.Module) else {}
            changed = [write.target.attrs["name"] for write in program.graph.writes]
            expected += [state[part] if part in state else mine["xy".index(part)] for part in changed]
            found = run_onnx(path, program, *given)
            expected = [as_reals(value) for value in expected]
            assert_close(
                found, expected, rtol=2e-5, atol=5e-6, equal_nan=True, check_dtype=name not in ("numbers", "floats")
            )


def test_random_numbers_are_distributed_alike(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")

    def drawn(x: Tensor) -> tuple[Tensor, ...]:
        shares = torch.tensor([[0.0, 3.0, 1.0]]).expand(40, 3)
        return (
            torch.rand_like(x), torch.randn(40, 50), torch.empty_like(x).uniform_(2, 4), x.clone().normal_(3, 2),
            torch.randint(-2, 5, (40, 50)), torch.bernoulli(x), torch.multinomial(shares, 50, replacement=True),
            torch.rand(40, 50, dtype=torch.bfloat16).float(),
        )  # fmt: skip

    x = torch.full((40, 50), 0.25)
    program, path = kiln.export(drawn, (x,)), tmp_path / "net.onnx"
    program.save_onnx(path)
    runtime: Any = load("onnxruntime")
    session = runtime.InferenceSession(str(path))
    found, other = [[torch.as_tensor(value) for value in session.run(None, {"x": x.numpy()})] for _ in range(2)]
    assert not any(torch.equal(left, right) for left, right in zip(found, other, strict=True))
    for left, right in zip(found, drawn(x), strict=True):
        assert (left.shape, left.dtype) == (right.shape, right.dtype)
        spread = float(right.double().std())
        assert abs(float(left.double().mean() - right.double().mean())) < spread / 5
        assert abs(float(left.double().std()) - spread) < spread / 5
    assert found[0].min() >= 0 and found[0].max() < 1 and set(found[4].flatten().tolist()) == set(range(-2, 5))


def test_random_numbers_stay_with_kiln_in_a_backend() -> None:
    """Its results are compared with eager's."""
    compiled = kiln.compile(lambda x: (x + torch.randn_like(x)) @ x, backend="onnxrt", options={"random": "eager"})
    x = torch.randn(4, 4)
    torch.manual_seed(1)
    found = compiled(x)
    torch.manual_seed(1)
    assert_close(found, (x + torch.randn_like(x)) @ x)


def test_grouped_product() -> None:
    """ONNX Runtime has no kernel for 16-bit products."""
    x, weights, ends = torch.randn(16, 16).bfloat16(), torch.randn(2, 16, 16).bfloat16(), torch.tensor([5, 16]).int()
    program = kiln.export(lambda x, w, ends: torch._grouped_mm(x, w, offs=ends), (x, weights, ends))
    assert [node.op for node in onnx_model(program).nodes].count("MatMul") == 2


def test_what_has_no_form(tmp_path: Path) -> None:
    for function in (lambda x: torch.linalg.eigvalsh(x), lambda x: torch.complex(x, x).tanh().abs()):
        with pytest.raises(KilnError, match=r"has no form in ONNX"):
            kiln.export(function, (torch.randn(3, 3),)).save_onnx(tmp_path / "m.onnx")


def test_draws_without_replacement(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
    weights, path = torch.tensor([[0.0, 1.0, 3.0, 1.0]]).expand(200, 4).contiguous(), tmp_path / "net.onnx"
    program = kiln.export(lambda x: torch.multinomial(x, 2), (weights,))
    program.save_onnx(path)
    (found,) = run_onnx(path, program, weights)
    assert found.min() == 1 and bool((found[:, 0] != found[:, 1]).all())
    assert 90 < int((found[:, 0] == 2).sum()) < 150
