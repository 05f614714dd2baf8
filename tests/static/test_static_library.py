"""Programs as static libraries that need libc and libm only: results, sizes, what is refused."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import kiln
from kiln.programs.call.errors import BadExportArgument
from kiln.programs.static.errors import NoCrossCompiler, NoStaticLibrary
from kiln.programs.static.library import CROSS, StaticLibrary
from tests.static.calling import called

BATCH = kiln.Dim("batch", min=1, max=64)
LIBC_AND_LIBM = re.compile(r"mem(cpy|set|move|cmp)|(exp|log|pow|erf|erfc|tan|sin|cos|lgamma|fmod|atan2|log1p|fma)f?")


class Net(nn.Module):
    """Convolutions of several kinds, pooling, normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 20, 3, padding=1), nn.BatchNorm2d(20)
        self.second = nn.Conv2d(20, 30, (3, 5), stride=2, padding=(1, 2), groups=2)
        self.depthwise, self.point = (
            nn.Conv2d(30, 30, 3, padding=2, dilation=2, groups=30),
            nn.Conv2d(30, 8, 1, bias=False),
        )
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(torch.relu(self.norm(self.first(x))), 3, stride=2, padding=1)
        x = self.point(functional.silu(self.depthwise(self.second(x))))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.mix(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        x = self.before(x + self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return self.after(x + self.narrow(functional.gelu(self.wide(x))))


class Bert(nn.Module):
    """Token and place embeddings, layers with a mask of what is padding, an output per token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(100, 48), nn.Embedding(40, 48)
        self.layers = nn.ModuleList([Layer(48, 4) for _ in range(3)])
        self.out = nn.Linear(48, 7)

    def forward(self, tokens: Tensor, valid: Tensor) -> dict[str, Tensor]:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        mask = torch.where(valid[:, None, None, :], 0.0, -1e9).expand(-1, 1, tokens.shape[1], -1)
        for layer in self.layers:
            x = layer(x, mask)
        return {"logits": self.out(x).log_softmax(-1), "first": x[:, 0]}


class Sequence1d(nn.Module):
    """Convolutions of a sequence, causal attention, products of two computed matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.layer = nn.Conv1d(6, 32, 5, padding=2, stride=2), Layer(32, 2)
        self.bias = nn.Parameter(torch.randn(1, 8, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(torch.tanh(self.conv(x)).transpose(1, 2), None)
        left = y[:, :, :8]
        return y.mean(1), torch.baddbmm(self.bias, left.transpose(1, 2), left, beta=0.5, alpha=2)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 300), nn.GELU(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 10))


def images(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 21, 40),)


def texts(batch: int) -> tuple[Tensor, ...]:
    return torch.randint(0, 100, (batch, 37)), torch.rand(batch, 37) > 0.2


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]], dict[str, object]]] = {
    "perceptron": (perceptron, lambda batch: (torch.randn(batch, 64),), {"input": {0: BATCH}}),
    "images": (Net, images, {"x": {0: BATCH}}),
    "text": (Bert, texts, {"tokens": {0: BATCH}, "valid": {0: BATCH}}),
    "sequence": (Sequence1d, lambda batch: (torch.randn(batch, 6, 50),), {"x": {0: BATCH}}),
}


def leaves(result: object) -> list[Tensor]:
    flat: list[Tensor] = torch.utils._pytree.tree_leaves(result)
    return flat


def assert_as_exact(found: Sequence[Tensor], model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """The error against float64 is at most twice eager's, or 4 units in the last place of the scale."""
    with torch.no_grad():
        eager = leaves(model(*inputs))
        wide = [each.double() if each.is_floating_point() else each for each in inputs]
        exact = leaves(copy.deepcopy(model).double()(*wide))
    for ours, theirs, right in zip(found, eager, exact, strict=True):
        allowed = max(2 * float((theirs - right).abs().max()), 4 * float(right.abs().max()) * 2**-23)
        assert float((ours - right).abs().max()) <= allowed


def made(name: str, folder: Path, target: str = "cpu", **more: str) -> tuple[StaticLibrary, nn.Module]:
    torch.manual_seed(0)
    build, inputs, dynamic = MODELS[name]
    model = build().eval()
    program = kiln.export(model, inputs(4), dynamic_shapes=dynamic)
    return program.static_library(folder / f"lib{name}.a", target=target, **more), model  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def perceptrons(tmp_path_factory: pytest.TempPathFactory) -> StaticLibrary:
    return made("perceptron", tmp_path_factory.mktemp("library"))[0]


def undefined(library: StaticLibrary) -> list[str]:
    lines = subprocess.run(["nm", "-u", library.path], capture_output=True, text=True, check=True).stdout.split("\n")
    return [line.split()[-1] for line in lines if " U " in line]


@pytest.mark.parametrize("name", MODELS)
def test_results_are_as_exact_as_eager(name: str, tmp_path: Path) -> None:
    library, model = made(name, tmp_path)
    print(library)
    for batch in (2 if name in ("text", "sequence") else 1, 3, 33):
        inputs = MODELS[name][1](batch)
        with torch.no_grad():
            eager = leaves(model(*inputs))
        found, said = called(library, inputs, eager)
        assert said.startswith("0 ") and said.endswith(" done")
        assert_as_exact(found, model, inputs)
    assert all(LIBC_AND_LIBM.fullmatch(symbol) for symbol in undefined(library)), undefined(library)
    assert library.code_bytes < 2 << 20
    exported = subprocess.run(["nm", "-g", "--defined-only", library.path], capture_output=True, text=True, check=True)
    assert sorted(re.findall(r" T (\w+)", exported.stdout)) == [f"{name}_{part}" for part in ("plan", "run", "status")]


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_narrower_vectors(level: str, tmp_path: Path) -> None:
    library, model = made("text", tmp_path, f"cpu:{level}")
    inputs = texts(5)
    with torch.no_grad():
        found, _ = called(library, inputs, leaves(model(*inputs)))
    assert_as_exact(found, model, inputs)


def test_weights_beside_the_library(tmp_path: Path) -> None:
    library, model = made("perceptron", tmp_path, weights="mapped")
    inputs = (torch.randn(2, 64),)
    found, _ = called(library, inputs, [model(*inputs)])
    assert_as_exact(found, model, inputs)
    assert (tmp_path / "libperceptron.weights").stat().st_size == library.weights_bytes


@pytest.mark.parametrize(
    ("shape", "said"),
    [((0, 64), "batch is not in 1..64"), ((65, 64), "batch is not in 1..64"), ((4, 63), "input: size 1 is not 64")],
)
def test_wrong_sizes_are_a_status(shape: tuple[int, int], said: str, perceptrons: StaticLibrary) -> None:
    found, printed = called(perceptrons, (torch.zeros(shape),), (torch.zeros(shape[0], 10),))
    assert not found
    assert said in printed


def test_an_index_out_of_range_is_a_status(tmp_path: Path) -> None:
    library, model = made("text", tmp_path)
    tokens, valid = texts(2)
    with torch.no_grad():
        like = leaves(model(tokens, valid))
    tokens[1, 3] = 100
    assert called(library, (tokens, valid), like)[1] == "1 0 an index is out of range"


def test_views_of_inputs_and_of_each_other_are_copied(tmp_path: Path) -> None:
    def views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x * 2 + y[:, :1]
        return z.t(), z[1:, 2:], x[:, 1], z

    inputs = torch.randn(4, 6), torch.randn(4, 6)
    program = kiln.export(views, inputs)
    library = program.static_library(tmp_path / "libviews.a", tmp_path / "inc.h")
    found, _ = called(library, inputs, views(*inputs))
    assert Path(library.header) == tmp_path / "inc.h"
    for ours, theirs in zip(found, views(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_has_no_kernel_is_refused_with_the_lines(tmp_path: Path) -> None:
    def sorted_twice(x: Tensor, y: Tensor) -> Tensor:
        return (x.double() @ y.double()) + torch.linalg.inv(x).sum()

    program = kiln.export(sorted_twice, (torch.eye(4), torch.eye(4)))
    with pytest.raises(NoStaticLibrary, match=r"linalg_inv.*no kernel") as raised:
        program.static_library(tmp_path / "libx.a")
    assert "aten.mm.default" in str(raised.value)
    assert "torch.float64" in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_state_that_changes_is_refused(tmp_path: Path) -> None:
    class Counter(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(x)
            return self.count * 2

    with pytest.raises(NoStaticLibrary, match="writing to `count`"):
        kiln.export(Counter(), (torch.ones(3),)).static_library(tmp_path / "libx.a")


def test_an_unknown_target_and_a_missing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = kiln.export(lambda x: x + 1, (torch.ones(3),))
    with pytest.raises(BadExportArgument, match="cpu:aarch64"):
        program.static_library(tmp_path / "libx.a", target="cpu:z80")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NoCrossCompiler, match="aarch64-linux-gnu"):
        program.static_library(tmp_path / "libx.a", target="cpu:aarch64")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_aarch64_in_an_emulator(name: str, tmp_path: Path) -> None:
    """Needs Debian's g++-aarch64-linux-gnu and qemu-user."""
    for program in (CROSS["aarch64"], "aarch64-linux-gnu-gcc", "qemu-aarch64"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    library, model = made(name, tmp_path, "cpu:aarch64")
    print(library)
    inputs = MODELS[name][1](3)
    with torch.no_grad():
        found, said = called(library, inputs, leaves(model(*inputs)), ("aarch64-linux-gnu-gcc", "qemu-aarch64"))
    assert said.startswith("0 ")
    assert_as_exact(found, model, inputs)
    assert all(LIBC_AND_LIBM.fullmatch(symbol) for symbol in undefined(library)), undefined(library)
