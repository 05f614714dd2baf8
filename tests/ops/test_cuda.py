"""Ops that only CUDA has: attention kernels, batch norm, dropout. Run with a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.trace.harness import check, trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)


def heads(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_()


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda one: one.name)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(backend, causal):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def attend_inside(q, k, v):
        return attend(*[x.transpose(1, 2) for x in (q, k, v)]).transpose(1, 2)

    with sdpa_kernel(backend):
        check(attend, [heads(2, 4, 40, 64) for _ in range(3)], backward=True, rtol=2e-2, atol=2e-2)
        check(attend_inside, [heads(2, 40, 4, 64) for _ in range(3)], backward=True, rtol=2e-2, atol=2e-2)


def test_attention_with_a_mask():
    q, k, v = (heads(2, 4, 40, 64) for _ in range(3))
    mask = torch.zeros(2, 1, 40, 40, device="cuda", dtype=torch.bfloat16)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        check(F.scaled_dot_product_attention, [q, k, v, mask], backward=True, rtol=2e-2, atol=2e-2)


def test_attention_of_symbolic_sizes():
    from tests.trace.test_symbolic import serves

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        serves(
            lambda q: F.scaled_dot_product_attention(q, q, q),
            [heads(2, 4, 40, 64).detach()],
            [heads(3, 4, 24, 64).detach()],
            allow_guards=True,  # the back end pads the width of a head to a multiple of 8 and so asks for it
        )


def test_batch_norm_and_convolution():
    def block(x, w, m, v, s, b):
        return F.batch_norm(F.conv2d(x, w, padding=1), m, v, s, b, True)

    args = [torch.randn(shape, device="cuda").requires_grad_() for shape in ((4, 3, 8, 8), (5, 3, 3, 3))]
    stats = [torch.zeros(5, device="cuda"), torch.ones(5, device="cuda")]
    weights = [torch.rand(5, device="cuda").requires_grad_() for _ in range(2)]
    check(block, [*args, *stats, *weights], backward=True, rtol=1e-3, atol=1e-3)
    last = [arg.detach().to(memory_format=torch.channels_last).requires_grad_() for arg in args]
    check(block, [*last, *stats, *weights], backward=True, rtol=1e-3, atol=1e-3)


def test_dropout_is_one_random_node():
    x = torch.randn(4, 8, device="cuda").requires_grad_()
    assert trace(lambda x: F.dropout(x, 0.5), [x], backward=True).ops.count("random") == 1
