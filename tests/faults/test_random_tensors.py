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
