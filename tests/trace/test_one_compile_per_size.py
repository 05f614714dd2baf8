"""Two compiles for all sizes: one for the first, one with symbols. Results, gradients and strides are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kiln
from kiln.graph.trace.symbolic_probe import probe_symbols
from kiln.symbolic import Expr, Relation, ShapeEnv, rel_eq, rel_lt
from kiln.tensor.spec import CPU, Spec, TensorSpec, contiguous_strides

Program = Callable[..., Any]
torch.manual_seed(0)
EIGHT = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()


def rows(*sizes: int) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(size, 4),) for size in sizes]


def images(*sizes: int) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(2, 3, size, size + 1),) for size in sizes]


def matrices(*sizes: int) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(size, size) + 9 * torch.eye(size),) for size in sizes]


def signals(*sizes: int) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(size),) for size in sizes]


def sequences(*sizes: int) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(size, 5, 4),) for size in sizes]


def grid(x: Tensor) -> Tensor:
    theta = torch.eye(2, 3).expand(x.shape[0], 2, 3)
    return F.affine_grid(theta, list(x.shape), align_corners=False)


@torch.enable_grad()
def gradients_of_least_squares(x: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_()
    torch.linalg.lstsq(leaf[:, :2], leaf[:, 2:]).solution.square().sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def scaled(mode: str, factor: Any) -> Program:
    return lambda x: F.interpolate(x, scale_factor=factor, mode=mode)


BAG = nn.EmbeddingBag(10, 4)
STACKED = torch.randn(3, 6, 4)
LINEAR = nn.Linear(4, 6)
LAYERS: dict[str, nn.Module] = {
    "lstm": nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True),
    "lstm without bias": nn.LSTM(4, 6, bias=False),
    "gru": nn.GRU(4, 6, 2, batch_first=True, bidirectional=True),
    "rnn": nn.RNN(4, 6, nonlinearity="relu"),
    "lstm cell": nn.LSTMCell(4, 6),
    "gru cell": nn.GRUCell(4, 6),
    "rnn cell": nn.RNNCell(4, 6, bias=False),
}
FUNCTIONS: dict[str, tuple[Program, list[tuple[Tensor, ...]]]] = {
    **{f"interpolate {mode}": (scaled(mode, 2), images(4, 5, 6, 9)) for mode in ("nearest", "bilinear", "bicubic")},
    "interpolate by halves": (scaled("nearest-exact", (0.5, 1.5)), images(4, 5, 6, 9)),
    "interpolate to sizes": (lambda x: F.interpolate(x, (2 * x.shape[2], 7), mode="bilinear"), images(4, 5, 6, 9)),
    "grid": (grid, images(4, 5, 7, 9)),
    "grids": (grid, [(torch.randn(size, 3, size, size + 1),) for size in (4, 5, 7, 9)]),
    "rows around": (lambda x: F.pad(x, [1, 2, 3, 1], mode="circular"), images(4, 5, 7, 9)),
    "filled diagonal": (lambda x: x.clone().fill_diagonal_(1 / x.shape[0]), matrices(4, 5, 7, 9)),
    "stacked layers": (
        lambda x: torch.vmap(F.linear, (None, 0, 0))(x, STACKED, STACKED[:, :, 0]),
        [(torch.randn(size, size + 2, 4),) for size in (4, 5, 7, 9)],
    ),
    "rows of a layer": (lambda x: torch.vmap(LINEAR)(x), [(torch.randn(n, 3, n, 4),) for n in (4, 5, 7)]),
    "linear of transposed rows": (
        lambda x: F.linear(x.transpose(0, 1), torch.ones(6, 4), torch.ones(6)),
        sequences(3, 5, 6, 9),
    ),
    "chunk": (lambda x: [part * 2 for part in x.chunk(3)], rows(6, 9, 12, 15)),
    "split": (lambda x: [part * 2 for part in x.split(x.shape[0] // 2)], rows(6, 8, 12, 14)),
    "rfft": (torch.fft.rfft, signals(8, 10, 11, 13)),
    "stft without a window": (
        lambda x: torch.stft(x, 16, return_complex=True).abs(),
        signals(64, 80, 100, 97),
    ),
    "stft": (
        lambda x: torch.stft(x, 16, return_complex=True, window=torch.hann_window(16)).abs(),
        signals(64, 80, 100, 97),
    ),
    "histc": (lambda x: torch.histc(x, 5), signals(6, 9, 12, 15)),
    "tensor of sizes": (lambda x: torch.tensor([[x.shape[0], 1]]) * 2, rows(6, 9, 12, 15)),
    "inv": (torch.linalg.inv, matrices(3, 5, 6, 9)),
    "det": (torch.linalg.det, matrices(3, 5, 6, 9)),
    "svdvals": (torch.linalg.svdvals, rows(3, 5, 6, 9)),
    "qr": (lambda x: torch.linalg.qr(x)[1].abs(), rows(3, 5, 2, 6)),
    "qr of wide matrices": (lambda x: torch.linalg.qr(x)[1].abs(), [(torch.randn(n, 70),) for n in (3, 5, 60)]),
    "least squares": (lambda x: tuple(torch.linalg.lstsq(x[:, :2], x[:, 2:])), rows(3, 5, 6, 9)),
    "residuals of least squares": (
        lambda x: tuple(torch.linalg.lstsq(x[:, :2], x[:, 2:], driver="gels")),
        rows(3, 5, 6, 9),
    ),
    "gradients of least squares": (gradients_of_least_squares, rows(3, 5, 6, 9)),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.mT), matrices(3, 5, 6, 9)),
    "three products in one": (lambda x: torch.einsum("nd,nd,e->nde", x, x, x[0]), rows(3, 5, 6, 9)),
    "kron": (lambda x: torch.kron(x, x[:2]), rows(3, 5, 6, 9)),
    "kron of other dimensions": (lambda x: torch.kron(x, x[0]), rows(3, 5, 6, 9)),
    "places in a lower triangle": (lambda x: torch.tril_indices(len(x), len(x)), rows(3, 5, 6, 200)),
    "places below a diagonal": (lambda x: torch.tril_indices(len(x), len(x), -1), rows(3, 5, 6, 200)),
    "places in an upper triangle": (lambda x: torch.triu_indices(len(x), len(x)), rows(3, 5, 6, 200)),
    "places above a diagonal": (lambda x: torch.triu_indices(len(x), len(x), 2), rows(5, 6, 9, 200)),
    "pairs": (lambda x: torch.combinations(x), signals(3, 5, 6, 9)),
    "pairs with themselves": (lambda x: torch.combinations(x, with_replacement=True), signals(3, 5, 6, 9)),
    "distances of pairs": (F.pdist, rows(3, 5, 6, 9)),
    "product of named arguments": (lambda x: torch.matmul(input=x[None], other=x[None].mT), rows(3, 5, 6, 9)),
    "embedding bag": (
        lambda index: BAG(index, torch.tensor([0, 2])),
        [(torch.arange(size) % 10,) for size in (4, 5, 6, 9)],
    ),
    "encoder": (EIGHT, [(torch.randn(2, size, 8),) for size in (4, 5, 6, 9)]),
}


def check(program: Program, calls: list[tuple[Tensor, ...]], most: int = 2) -> None:
    compiled: Any = kiln.compile(program, options={"cache": False})
    for arguments in calls:
        fast, slow = compiled(*arguments), program(*arguments)
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)
        for one, other in zip(tensors(fast), tensors(slow), strict=True):
            assert one.stride() == other.stride()
    assert (compiled.report().compiles, compiled.report().eager) <= (most, 0), str(compiled.report())


def tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [leaf for part in value for leaf in tensors(part)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    if name in ("stacked layers", "rows of a layer") and torch.__version__.startswith("2.11."):
        pytest.skip("torch 2.11 makes products under vmap by plain sizes")
    with torch.no_grad():
        check(*FUNCTIONS[name], most=3 if name == "grid" else 2)


WINDOW = torch.ones(16)


@pytest.mark.parametrize(
    ("program", "x"),
    [
        (lambda x: torch.tensor([[x.shape[0], 2], [3]]), torch.ones(5, 2)),
        (lambda x: torch.tensor([[x.shape[0], 2], [3], [4, 5, 6]]), torch.ones(5, 2)),
        (lambda x: torch.stft(x, 16, 0, window=WINDOW, return_complex=True), torch.ones(64)),
        (lambda x: torch.stft(x, 16, win_length=0, window=WINDOW, return_complex=True), torch.ones(64)),
        (lambda x: torch.stft(x, 16, window=WINDOW, return_complex=True), torch.ones(64, dtype=torch.int64)),
    ],
)
def test_what_eager_refuses_is_refused_for_symbolic_sizes(program: Program, x: Tensor) -> None:
    compiled: Any = kiln.compile(program, dynamic=True)
    with pytest.raises((ValueError, RuntimeError)) as eager:
        program(x)
    with pytest.raises(eager.type):
        compiled(x)


def test_sizes_on_the_other_side_of_a_large_constant_are_compiled_again() -> None:
    check(lambda x: torch.linalg.qr(x)[1].abs(), [(torch.randn(n, 70),) for n in (3, 5, 60, 80, 90)], most=3)


def test_draws() -> None:
    compiled: Any = kiln.compile(lambda x: torch.multinomial(x.abs(), 2))
    shapes = [compiled(torch.randn(size, 5)).shape for size in (2, 3, 7, 9)]
    assert shapes == [(2, 2), (3, 2), (7, 2), (9, 2)] and compiled.report().compiles == 2


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_and_their_gradients(name: str) -> None:
    layer = LAYERS[name]
    compiled: Any = kiln.compile(lambda x: layer(x), options={"cache": False})
    for (x,) in rows(3, 5, 6, 9) if "cell" in name else sequences(3, 5, 6, 9):
        x = x if getattr(layer, "batch_first", True) else x.transpose(0, 1).contiguous()
        results, gradients = [], []
        for run in (compiled, layer):
            leaf = x.clone().requires_grad_()
            made = tensors(run(leaf))
            gradients.append(
                torch.autograd.grad(sum(part.square().sum() for part in made), [leaf, *layer.parameters()])
            )
            results.append(made)
        torch.testing.assert_close(results[0], results[1])
        torch.testing.assert_close(gradients[0], gradients[1])
    assert (compiled.report().compiles, compiled.report().eager) <= (2, 0), str(compiled.report())


def test_an_index_that_changes() -> None:
    compiled: Any = kiln.compile(lambda x, number: x[number] + x[0, number])
    x = torch.arange(81.0).view(9, 9)
    for number in (1, 3, 4, 5, 8):
        torch.testing.assert_close(compiled(x, number), x[number] + x[0, number])
    assert compiled.report().compiles == 2
    with pytest.raises(IndexError):
        compiled(x, 9)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda n, m: (n, 2 * m + 1), "(s0, 2*s1 + 1)"),
        (lambda n, m: (min(n, m), n * m), "(min(s0, s1), s0*s1)"),
        (lambda n, m: (n // 2 + 1, max(n, 5)), "(s0//2 + 1, max(s0, 5))"),
        (lambda n, m: (n**2 + 3,), "None"),
    ],
    ids=("linear", "minimum", "halves", "square"),
)
def test_what_a_probe_finds(result: Callable[[int, int], tuple[int, ...]], expected: str) -> None:
    env = ShapeEnv()
    n, m = env.create_symbol(6), env.create_symbol(7)

    def probe(arguments: Any) -> Spec:
        sizes = result(*arguments[0].sizes[:2])
        return TensorSpec(torch.float32, sizes, contiguous_strides(sizes), 0, CPU)

    given = TensorSpec(torch.float32, (n, m, 5), contiguous_strides((n, m, 5)), 0, CPU)
    found = probe_symbols(probe, (given,), env.hint, lambda relation: False)
    text = "None" if found is None else "(" + ", ".join(map(str, found.sizes)) + ")"  # type: ignore[union-attr]
    assert text == expected and (found is None or any(isinstance(size, Expr) for size in found.sizes))  # type: ignore[union-attr]


def test_a_probe_keeps_to_the_guards() -> None:
    """A kernel may rely on them: `_fft_c2r` writes past the end of its result where its sizes do not fit."""
    env = ShapeEnv()
    n, m = env.create_symbol(6), env.create_symbol(8)
    guards = [rel_eq(n // 2 + 1, 4), rel_eq(m % 4, 0), rel_lt(env.create_symbol(9), n)]
    tried = []

    def probe(arguments: Any) -> Spec:
        tried.append(arguments[0].sizes)
        return cast(TensorSpec, arguments[0])

    given = TensorSpec(torch.float32, (n, m), contiguous_strides((n, m)), 0, CPU)
    known = [guard for guard in guards if isinstance(guard, Relation)]
    probe_symbols(probe, (given,), env.hint, lambda relation: False, known)
    assert tried and all(first in (6, 7) and second % 4 == 0 for first, second in tried), tried
