"""The suite of single operators: each of its cases runs, and a case is compared."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kiln_bench.operators import CASES, SPACE, compare, make, parse, with_gradient

CPU = torch.device("cpu")


@pytest.mark.parametrize("line", CASES.strip().splitlines())
def test_every_case_runs(line: str) -> None:
    code, texts = parse(line)
    function = eval(f"lambda {', '.join(texts)}: {code}", SPACE)
    out = function(*[make(name, text, CPU) for name, text in texts.items()])
    assert isinstance(out[0] if isinstance(out, tuple) else out, Tensor)


def test_a_case_is_compared_with_eager() -> None:
    x = torch.randn(8, requires_grad=True)
    ratio, eager, other = compare(torch.sin, with_gradient(torch.sin), [x], rounds=3)
    assert ratio > 0
    assert eager > 0
    assert other > 0
