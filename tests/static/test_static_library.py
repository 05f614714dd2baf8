"""Programs as static libraries that need libc and libm only: results, sizes, what is refused."""

from __future__ import annotations

import copy
import ctypes
import functools
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


class Channels(nn.Module):
    """Images whose channels lie side by side: windows of several kinds, and each channel on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.point = nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.Conv2d(24, 37, 1)
        self.each = nn.Conv2d(37, 37, (3, 5), padding=2, dilation=(1, 2), groups=37)
        self.last = nn.Conv2d(37, 40, 3, padding=1, bias=False)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x.contiguous(memory_format=torch.channels_last)))
        return self.last(functional.silu(self.each(self.point(x)))).contiguous()


class Decoder(nn.Module):
    """Transposed convolutions of images and sequences, with groups, dilation and padding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ConvTranspose2d(6, 20, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.second = nn.ConvTranspose2d(20, 5, (2, 4), stride=(2, 3), dilation=(3, 1), bias=False)
        self.line = nn.ConvTranspose1d(5, 7, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.second(functional.silu(self.first(x)))
        return y, self.line(y.mean(2))


class Recurrent(nn.Module):
    """Two layers in both directions of a width that no vector divides, from a state that is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(6, 11, num_layers=2, bidirectional=True, batch_first=True)
        self.second = nn.LSTM(22, 16, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.first(x)
        state = torch.tanh(y[:, :1, :16]).transpose(0, 1).contiguous(), x.new_ones(1, x.shape[0], 16)
        z, (last, _) = self.second(y.transpose(0, 1), state)
        return z, h + c, last


class Halves(nn.Module):
    """All kinds of own kernels in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.layer = nn.Conv1d(6, 32, 5, padding=2, stride=2), Layer(32, 2)
        self.back = nn.ConvTranspose1d(32, 4, 2, stride=2)
        self.bfloat16()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(torch.tanh(self.conv(x.bfloat16())).transpose(1, 2), None)
        return self.back(y.mT).float(), (y @ y.mT).float()


class Products(nn.Module):
    """Of a few rows by columns that lie either way, and of more rows than a block has."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        few = [x[:, :rows] for rows in (1, 2, 3, 7, 13)]
        rows = [torch.bmm(part, y) for part in few] + [torch.bmm(part, z.mT) for part in few]
        more = torch.baddbmm(x[:, :1, :1], x[:, :2], y, beta=0.5, alpha=2)
        each = functional.scaled_dot_product_attention(x[:, None, :1], z[:, None], z[:, None])
        causal = functional.scaled_dot_product_attention(x[:, None, :3], z[:, None], z[:, None, :, 5:], is_causal=True)
        return [*rows, more, torch.mm(x.reshape(-1, x.shape[2]), y[0]), each, causal, x.mT[:, :3] @ x]


def factors(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 150, 530), torch.randn(batch, 530, 299), torch.randn(batch, 67, 530)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 300), nn.GELU(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 10))


def images(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 21, 40),)


def texts(batch: int) -> tuple[Tensor, ...]:
    return torch.randint(0, 100, (batch, 37)), torch.rand(batch, 37) > 0.2


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]], dict[str, object]]] = {
    "perceptron": (perceptron, lambda batch: (torch.randn(batch, 64),), {"input": {0: BATCH}}),
    "products": (Products, factors, {name: {0: BATCH} for name in "xyz"}),
    "images": (Net, images, {"x": {0: BATCH}}),
    "text": (Bert, texts, {"tokens": {0: BATCH}, "valid": {0: BATCH}}),
    "channels": (Channels, images, {"x": {0: BATCH}}),
    "decoder": (Decoder, lambda batch: (torch.randn(batch, 6, 5, 19),), {"x": {0: BATCH}}),
    "recurrent": (Recurrent, lambda batch: (torch.randn(batch, 9, 6),), {"x": {0: BATCH}}),
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


Maker = Callable[..., tuple[StaticLibrary, nn.Module]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Makes the library of a model; tests that only call it share it."""

    @functools.cache
    def make(name: str, target: str = "cpu", weights: str = "embedded") -> tuple[StaticLibrary, nn.Module]:
        torch.manual_seed(0)
        build, inputs, dynamic = MODELS[name]
        model = build().eval()
        program = kiln.export(model, inputs(4), dynamic_shapes=dynamic)
        path = tmp_path_factory.mktemp("library") / f"lib{name}.a"
        return program.static_library(path, target=target, weights=weights), model  # type: ignore[arg-type]

    return make


def undefined(library: StaticLibrary) -> list[str]:
    lines = subprocess.run(["nm", "-u", library.path], capture_output=True, text=True, check=True).stdout.split("\n")
    return [line.split()[-1] for line in lines if " U " in line]


@pytest.mark.parametrize("name", MODELS)
def test_results_are_as_exact_as_eager(name: str, made: Maker) -> None:
    if name == "products" and torch.__version__.startswith("2.11."):
        pytest.skip("this version asks for the sizes of attention with values of a width of their own")
    library, model = made(name)
    print(library)
    for batch in (2 if name in ("text", "sequence", "recurrent") else 1, 3, 5 if name == "products" else 33):
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
def test_narrower_vectors(level: str, made: Maker) -> None:
    library, model = made("text", f"cpu:{level}")
    inputs = texts(5)
    with torch.no_grad():
        found, _ = called(library, inputs, leaves(model(*inputs)))
    assert_as_exact(found, model, inputs)


def loops(library: StaticLibrary, function: str) -> list[list[str]]:
    """The instructions of the innermost loops of a function."""
    code = subprocess.run(["objdump", "-d", "-C", "--no-show-raw-insn", library.path], capture_output=True, text=True)
    body = re.search(rf"^\w+ <[^\n]*{re.escape(function)}\(.*?(?=^\w+ <|\Z)", code.stdout, re.MULTILINE | re.DOTALL)
    assert body is not None
    lines = re.findall(r"^ +(\w+):\t(.+)$", body[0], re.MULTILINE)
    places = {int(place, 16): number for number, (place, _) in enumerate(lines)}
    jumps = [re.match(r"j\w+ +(\w+)", text) for _, text in lines]
    found = [(places.get(int(jump[1], 16), number), number) for number, jump in enumerate(jumps) if jump is not None]
    back = [(start, end) for start, end in found if start < end]
    inner = [(start, end) for start, end in back if not any(start <= s and e < end for s, e in back)]
    return [[text for _, text in lines[start : end + 1]] for start, end in inner]


def test_sums_of_a_product_stay_in_registers(made: Maker) -> None:
    library, _ = made("perceptron", "cpu:x86-64-v3")
    for packed in ("false", "true"):
        found = loops(library, f"tile<6, {packed}>")
        products = [loop for loop in found if sum("vfmadd" in line for line in loop) >= 12]
        assert products
        assert not [line for loop in products for line in loop if "sp)" in line]


def test_weights_beside_the_library(made: Maker) -> None:
    library, model = made("perceptron", weights="mapped")
    inputs = (torch.randn(2, 64),)
    found, _ = called(library, inputs, [model(*inputs)])
    assert_as_exact(found, model, inputs)
    assert Path(library.path).with_suffix(".weights").stat().st_size == library.weights_bytes


@pytest.mark.parametrize(
    ("shape", "said"),
    [((0, 64), "batch is not in 1..64"), ((65, 64), "batch is not in 1..64"), ((4, 63), "input: size 1 is not 64")],
)
def test_wrong_sizes_are_a_status(shape: tuple[int, int], said: str, made: Maker) -> None:
    found, printed = called(made("perceptron")[0], (torch.zeros(shape),), (torch.zeros(shape[0], 10),))
    assert not found
    assert said in printed


def test_an_index_out_of_range_is_a_status(made: Maker) -> None:
    library, model = made("text")
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


class Streaming(nn.Module):
    """A cache with a position, a mean that is stored anew, and an argument that a call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 16)
        self.register_buffer("rows", torch.zeros(2, 6, 8))
        self.register_buffer("at", torch.tensor(1))
        self.register_buffer("mean", torch.linspace(0, 1, 8))

    def forward(self, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        key, value = self.mix(x).chunk(2, -1)
        self.rows[:, self.at] = key
        self.at += 1
        self.mean = self.mean * 0.9 + 0.1 * value.mean(0)
        seen += x
        return (value[:, None] @ self.rows.mT).softmax(-1), self.rows, seen


class Given(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("sizes", ctypes.c_int64 * 2))


class StreamingInputs(ctypes.Structure):
    _fields_ = (("x", Given), ("seen", Given), *[(name, ctypes.c_void_p) for name in ("rows", "at", "mean")])


class Made(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("sizes", ctypes.c_int64 * 3))


class StreamingOutputs(ctypes.Structure):
    _fields_ = (("scores", Made), ("rows", Made), ("seen", Given))


VISIBLE = """\
#include "libs.h"
int reset(const s_inputs *in) { return s_reset(in); }
int run(const s_inputs *in, const s_outputs *out, void *arena, size_t bytes) { return s_run(in, out, arena, bytes); }
const char *status(int number) { return s_status(number); }
"""


def test_what_changes_is_memory_of_the_caller(tmp_path: Path) -> None:
    model = Streaming()
    program = kiln.export(copy.deepcopy(model), (torch.randn(2, 8), torch.zeros(2, 8)))
    library = program.static_library(tmp_path / "libs.a")
    text = Path(library.header).read_text()
    assert "struct { float *data; } rows;  /* float32 [2, 6, 8], changed */" in text
    assert "struct { float *data; int64_t sizes[2]; } seen;  /* float32 [2, 8], changed */" in text
    (tmp_path / "s.c").write_text(VISIBLE)
    command = ["gcc", "-shared", "-fPIC", str(tmp_path / "s.c"), library.path, "-lm", "-o", str(tmp_path / "libs.so")]
    subprocess.run(command, check=True, timeout=100)
    loaded = ctypes.CDLL(str(tmp_path / "libs.so"))
    loaded.status.restype = ctypes.c_char_p
    rows, at, mean = torch.full((2, 6, 8), 9.0), torch.tensor(9), torch.full((8,), 9.0)
    x, seen, expected_seen = torch.empty(2, 8), torch.zeros(2, 8), torch.zeros(2, 8)
    outputs = [torch.empty(2, 1, 6), torch.empty(2, 6, 8), torch.empty(2, 8)]
    size = int(str(library.arena))
    memory = torch.empty(size + 64, dtype=torch.uint8)
    arena = ctypes.c_void_p(memory.data_ptr() + -memory.data_ptr() % 64)
    sizes = (ctypes.c_int64 * 2)(2, 8)
    tensors = [Given(each.data_ptr(), sizes) for each in (x, seen)]
    given = StreamingInputs(*tensors, *[each.data_ptr() for each in (rows, at, mean)])
    made = StreamingOutputs(*[(each.data_ptr(),) for each in outputs])
    assert loaded.reset(ctypes.byref(given)) == 0
    for _ in range(5):
        x.copy_(torch.randn(2, 8))
        assert loaded.run(ctypes.byref(given), ctypes.byref(made), arena, ctypes.c_size_t(size)) == 0
        with torch.no_grad():
            wanted = model(x, expected_seen)
        torch.testing.assert_close((*outputs, rows, at, mean), (*wanted, model.rows, model.at, model.mean))
    status = loaded.run(ctypes.byref(given), ctypes.byref(made), arena, ctypes.c_size_t(size))
    assert b"does not hold" in loaded.status(status)  # the cache is full


def test_an_unknown_target_and_a_missing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = kiln.export(lambda x: x + 1, (torch.ones(3),))
    with pytest.raises(BadExportArgument, match="cpu:aarch64"):
        program.static_library(tmp_path / "libx.a", target="cpu:z80")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NoCrossCompiler, match="aarch64-linux-gnu"):
        program.static_library(tmp_path / "libx.a", target="cpu:aarch64")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_aarch64_in_an_emulator(name: str, made: Maker) -> None:
    """Needs Debian's g++-aarch64-linux-gnu and qemu-user."""
    for program in (CROSS["aarch64"], "aarch64-linux-gnu-gcc", "qemu-aarch64"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    library, model = made(name, "cpu:aarch64")
    print(library)
    inputs = MODELS[name][1](3)
    with torch.no_grad():
        found, said = called(library, inputs, leaves(model(*inputs)), ("aarch64-linux-gnu-gcc", "qemu-aarch64"))
    assert said.startswith("0 ")
    assert_as_exact(found, model, inputs)
    assert all(LIBC_AND_LIBM.fullmatch(symbol) for symbol in undefined(library)), undefined(library)


def test_bfloat16(tmp_path: Path) -> None:
    """Errors are compared with eager's of the same numbers."""
    torch.manual_seed(0)
    model, inputs = Halves().eval(), (torch.randn(3, 6, 50),)
    library = kiln.export(model, inputs).static_library(tmp_path / "libhalves.a")
    with torch.no_grad():
        eager = model(*inputs)
        wide = copy.deepcopy(model).double()
        exact = wide.back((y := wide.layer(wide.conv(inputs[0].bfloat16().double()).tanh().mT, None)).mT), y @ y.mT
    found, _ = called(library, inputs, eager)
    for ours, theirs, right in zip(found, eager, exact, strict=True):
        assert float((ours - right).abs().max()) <= 2 * float((theirs - right).abs().max())
    assert all(LIBC_AND_LIBM.fullmatch(symbol) for symbol in undefined(library)), undefined(library)
