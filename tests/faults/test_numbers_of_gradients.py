"""A whole step whose optimizer computes with numbers that gradients decide, under assumptions on some of them."""

from __future__ import annotations

import torch
from torch import nn

import kiln


def step(model: nn.Linear, x: torch.Tensor, state: dict[str, float]) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    gain, length = 0.0, 0.0
    for parameter in model.parameters():
        assert parameter.grad is not None
        gain += (parameter.grad * parameter.detach()).sum().item() * state["rate"]
        length += parameter.detach().abs().sum().item()
    state["rate"] = max(state["rate"], gain / length) if length > 0 else state["rate"]
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-state["rate"])
        parameter.grad = None
    return loss.detach()


def test_a_number_that_a_check_in_the_forward_reads_is_read_there() -> None:
    """The check of what was assumed of a length was in the half in front of the backward, the number behind it."""
    torch.manual_seed(0)
    model, other = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    other.load_state_dict(model.state_dict())
    state, others = {"rate": 0.1}, {"rate": 0.1}
    compiled = kiln.compile(step)
    for _ in range(4):
        x = torch.randn(4, 3).double()
        torch.testing.assert_close(compiled(model, x, state), step(other, x, others))
        assert abs(state["rate"] - others["rate"]) < 1e-12
    torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()))
    report = compiled.report()
    assert not report.breaks and not report.eager, str(report)
