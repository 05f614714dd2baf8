"""What random tensor programs found (`python -m tests.sweeps kernels`): each body once differed from eager."""

from __future__ import annotations

import pytest

from tests.sweeps.shrink import Statement
from tests.sweeps.tensor_programs import Call, check_graph, check_kernels, source_of

BODIES = {
    "write through a view of a number": "v1 = z0 * 2\n    v1.view(-1)[0] = 3",
    "scalar store at indices": "v1 = torch.einsum('...i,...i->...', x1, x1)\n    v1[n0[:2]] = 2",
    "sizes of indices that a guard makes equal": "v1 = x2[n0[:2], n0[2:]]",
    "the same in a store": "v1 = x2 * 1\n    v1[n0[:2], n0[2:]] = x1[0, :2]",
    "strides of a full turn": "v1 = torch.rot90(x2, 4)",
}


GRAPHS = {
    "an empty part of an axis of size 1": (
        "v1 = x2.sigmoid()",
        "v2 = v1.chunk(2, -1)[-1]",
        "v3 = 2 ** v2",
        "v4 = v3.roll(1, 1)",
    ),
}

CALLS = {
    "a write through as_strided of a leaf that is not contiguous": (
        ("v2 = x2.as_strided((2, 2), (1, 2), 1)", "v2[1] = 3"),
        Call(wanted=6),
    ),
    "a copy of an expanded tensor that was set": (
        ("v1 = x2.clamp(min=2)", "v2 = v1.expand(2, *v1.shape)", "v2.zero_()", "v3 = v2.clone()"),
        Call(),
    ),
    "a view of an input behind one that only the backward reads": (
        ("v1 = x0.to(torch.float64)", "v1[n0[:2]] = 3", "v1.zero_()", "v4 = h0.permute(*range(h0.dim()))"),
        Call(wanted=1),
    ),
    "a scatter into a sum, of which a view is a result": (
        ("v1 = x1.sum((0, -1))", "v2 = v1[::3]", "v1.scatter_(0, n0[:1], 1.0)", "v3 = v2.tanh()"),
        Call(wanted=7, dynamic=True, shared=8),
    ),
    "an expanded argument that is set": (("x1.zero_()",), Call(shared=12)),
    "parts of a detached tensor": (("v1 = x0.detach()", "v5, *_ = v1.split(2, 2)"), Call(wanted=1)),
    "parts of a detached tensor beside a gradient": (
        ("v1 = x0.detach()", "v5, *_ = v1.split(2, 2)", "v6 = x0 * 2"),
        Call(wanted=1),
    ),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("wanted", [0, 7])
@pytest.mark.parametrize("name", BODIES)
def test_like_eager(name: str, wanted: int, dynamic: bool | None) -> None:
    found = check_kernels(source_of((Statement(BODIES[name]),)), Call(wanted, dynamic))
    assert found is None, found


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_like_eager(name: str) -> None:
    found = check_graph(source_of(tuple(map(Statement, GRAPHS[name]))))
    assert found is None, found


@pytest.mark.parametrize("name", CALLS)
def test_call_like_eager(name: str) -> None:
    body, call = CALLS[name]
    found = check_kernels(source_of(tuple(map(Statement, body))), call)
    assert found is None, found
