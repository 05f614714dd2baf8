"""What is known of torch's operators by their names."""

from __future__ import annotations

import pytest

from kiln.plan.overloads import draws

ATTENTION = "aten._scaled_dot_product_flash_attention.default"
BACKWARD = "aten._scaled_dot_product_cudnn_attention_backward.default"


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "expected"),
    [
        ("aten.rand.default", ([2],), (), True),
        ("aten.add.Tensor", ("x", "y"), (), False),
        (ATTENTION, ("q", "k", "v"), (), False),
        (ATTENTION, ("q", "k", "v"), (("dropout_p", 0.1),), True),
        (ATTENTION, ("q", "k", "v"), (("dropout_p", 0.0), ("scale", 2.0)), False),
        (ATTENTION, ("q", "k", "v", 0.1), (), True),
        (
            BACKWARD,
            ("g", "q", "k", "v", "out", "sums", "seed", "offset", None, None, None, 8, 8, 0.5, False),
            (),
            False,
        ),
    ],
)
def test_draws(target: str, args: tuple[object, ...], kwargs: tuple[tuple[str, object], ...], expected: bool) -> None:
    """Attention draws where it drops something; its backward gets the seed. Named arguments are pairs, as in nodes."""
    assert draws(target, args, kwargs) is expected
