"""Strides of results where eager's are not those of a plain loop: copies that forget a layout, joins that keep it."""

import pytest
import torch
import torch.nn.functional as F

from tests.trace.harness import DEVICE, check

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="of eager's kernels on the CPU")


def stored(*sizes):
    return torch.randn(sizes)


LAYOUTS = {
    "channels last": lambda: stored(4, 3, 2, 5).to(memory_format=torch.channels_last),
    "transposed": lambda: stored(4, 3, 5, 2).transpose(2, 3),
    "turned": lambda: stored(2, 5, 4, 3).permute(2, 3, 0, 1),
    "repeated": lambda: stored(4, 1, 2, 5).expand(4, 3, 2, 5),
    "with gaps": lambda: stored(4, 3, 2, 11)[..., 1::2],
}


def numbers(x):
    return torch.zeros(x.shape, dtype=torch.int64)


def two():
    return torch.tensor([0, 1])


OPS = {
    "scatter": lambda x: x.scatter(1, numbers(x), x),
    "scatter value": lambda x: x.scatter(1, numbers(x), 2),
    "scatter add": lambda x: x.scatter_add(1, numbers(x), x),
    "scatter reduce": lambda x: x.scatter_reduce(1, numbers(x), x, "amax"),
    "index add": lambda x: x.index_add(1, two(), x.index_select(1, two())),
    "copied into another": lambda x: torch.ops.aten.copy.default(torch.empty_like(x).mT.contiguous().mT, x),
    "index copy": lambda x: x.index_copy(1, two(), x.index_select(1, two())),
    "index fill": lambda x: x.index_fill(1, two(), 2),
    "masked fill": lambda x: x.masked_fill(x > 0, 2),
    "masked fill widens": lambda x: x[:1].masked_fill(x > 0, 2),
    "fill": lambda x: torch.fill(x, 2),
    "logsigmoid": F.logsigmoid,
    "roll": lambda x: x.roll(1, 1),
    "roll by nothing": lambda x: x.roll(0, 1),
    "stack first": lambda x: torch.stack([x, x], 0),
    "stack channels": lambda x: torch.stack([x, x], 1),
    "stack last": lambda x: torch.stack([x, x], -1),
    "cross entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), x.contiguous().sigmoid(), reduction="none"),
    "number to a power": lambda x: 2**x,
    "isnan of integers": lambda x: torch.isnan(x.long()),
    "isposinf of integers": lambda x: torch.isposinf(x.long()),
    "signbit of truth": lambda x: torch.signbit(x > 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_strides(name, layout):
    check(OPS[name], [LAYOUTS[layout]()])


def test_gradient_of_logsigmoid_is_laid_out_as_the_tangent():
    x = LAYOUTS["turned"]().contiguous().transpose(0, 1).requires_grad_()
    check(F.logsigmoid, [x], backward=True)
