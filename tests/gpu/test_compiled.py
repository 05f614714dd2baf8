"""Programs compiled for the GPU against eager: library calls with missing results, blocks of models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import kiln
from tests.api.test_second_derivative import twice

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


def both(function: Callable[..., Tensor], *inputs: Tensor, train: bool) -> None:
    """Equal results, and in training equal gradients, up to the rounding of bf16."""
    compiled = kiln.compile(function, fullgraph=True)
    found = []
    for run in (function, compiled):
        given = [value.clone().requires_grad_(train and value.is_floating_point()) for value in inputs]
        result = run(*given)
        values = [result]
        if train:
            tangent = torch.ones_like(result)
            values += torch.autograd.grad(result, [value for value in given if value.requires_grad], tangent)
        found.append(values)
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)
        assert got.stride() == expected.stride()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda one: one.name)
def test_attention(backend: SDPBackend, train: bool) -> None:
    torch.manual_seed(0)
    heads = [torch.randn(2, 64, 4, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)]
    with sdpa_kernel(backend):
        both(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *heads, train=train)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions(channels_last: bool, train: bool) -> None:
    """Channels last inside; strides outside are eager's."""
    torch.manual_seed(0)
    first = torch.randn(32, 16, 3, 3, device="cuda", dtype=torch.bfloat16) / 12
    second = torch.randn(32, 32, 1, 1, device="cuda", dtype=torch.bfloat16) / 6

    def block(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        y = F.relu(F.conv2d(x, first, padding=1))
        return F.max_pool2d(F.silu(F.conv2d(y, second)) + y, 2)

    x = torch.randn(4, 16, 32, 32, device="cuda", dtype=torch.bfloat16)
    both(block, x.to(memory_format=torch.channels_last) if channels_last else x, first, second, train=train)


@pytest.mark.parametrize("train", [False, True])
def test_embedding_and_loss(train: bool) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 1000, (8, 128), device="cuda")
    table = torch.randn(1000, 256, device="cuda")

    def model(tokens: Tensor, table: Tensor) -> Tensor:
        x = F.layer_norm(F.embedding(tokens, table), (256,))
        return F.cross_entropy((x @ table.t()).flatten(0, 1), tokens.flatten())

    both(model, tokens, table, train=train)


def test_dropout_repeats_with_the_seed_and_scales() -> None:
    x = torch.ones(4096, 64, device="cuda")
    compiled = kiln.compile(lambda x: F.dropout(x, 0.25), fullgraph=True)
    torch.manual_seed(0)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(0)
    again = compiled(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert abs(first.mean().item() - 1) < 0.02
    assert first.unique().tolist() == pytest.approx([0.0, 4 / 3])


def test_dropout_in_training_uses_one_mask() -> None:
    x = torch.ones(4096, 64, device="cuda", requires_grad=True)
    result = kiln.compile(lambda x: F.dropout(x, 0.25), fullgraph=True)(x)
    (grad,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(grad, result)


def test_a_cpu_scalar_meets_a_tensor_of_the_gpu() -> None:
    x, scale = torch.randn(64, device="cuda"), torch.tensor(2.5)
    compiled = kiln.compile(lambda x, scale: (x * scale).sin(), fullgraph=True)
    torch.testing.assert_close(compiled(x, scale), (x * scale).sin())


def test_a_misaligned_input() -> None:
    x = torch.randn(1025, device="cuda")
    compiled = kiln.compile(lambda x: x.exp() + 1, fullgraph=True)
    for item in (x[:1024], x[1:], x[:1024]):
        torch.testing.assert_close(compiled(item), item.exp() + 1)


def test_batch_norm_in_training() -> None:
    torch.manual_seed(0)
    eager, mine = (nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU()).cuda() for _ in range(2))
    mine.load_state_dict(eager.state_dict())
    x = torch.randn(16, 8, 33, 33, device="cuda")
    compiled = kiln.compile(mine, fullgraph=True)
    for _ in range(2):
        expected, got = eager(x), compiled(x)
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
        expected.square().mean().backward()
        got.square().mean().backward()
    for (name, tensor), other in zip(mine.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-3, atol=1e-3, msg=name)
    for parameter, other in zip(mine.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("flat", [True, False], ids=["one piece", "pieces"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: type[nn.RNNBase], flat: bool, autocast: bool) -> None:
    """By cuDNN, as in eager, and equal to it; new lengths are no compiles."""
    torch.manual_seed(0)
    module = kind(32, 64, num_layers=2, bidirectional=True, batch_first=True).cuda()  # type: ignore[arg-type]
    if not flat:
        for weight in module.parameters():
            weight.data = weight.data.clone()
    compiled = kiln.compile(module, fullgraph=True, dynamic=True)
    for length in (20, 33, 47):
        x, found = torch.randn(8, length, 32, device="cuda"), []
        for run in (module, compiled):
            module.zero_grad()
            with torch.autocast("cuda", enabled=autocast):
                output, state = run(x)
            sum(part.float().square().sum() for part in (output, *state)).backward()
            found.append([output, *state, *[weight.grad for weight in module.parameters()]])
        torch.testing.assert_close(found[1], found[0], rtol=2e-3, atol=2e-3)
        assert found[1][0].stride() == found[0][0].stride()
    assert compiled.report().compiles == 1


def test_gradients_of_gradients() -> None:
    """They are compiled in the second call, within a thread of torch's engine."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).cuda()
    compiled = kiln.compile(model, fullgraph=True)
    for _ in range(4):
        x = torch.randn(16, 8, device="cuda", requires_grad=True)
        torch.testing.assert_close(twice(compiled, x), twice(model, x), rtol=1e-3, atol=1e-4)


def test_backwards_of_eager_code() -> None:
    model, x = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).cuda(), torch.randn(16, 8, device="cuda")
    model(x).square().sum().backward()
    expected = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    with kiln.compile_backward():
        for _ in range(3):
            model.zero_grad()
            model(x).square().sum().backward()
            torch.testing.assert_close([weight.grad for weight in model.parameters()], expected)
