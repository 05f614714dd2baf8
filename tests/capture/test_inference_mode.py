"""`torch.inference_mode()` entered inside of a frame: values, modes and breaks as in eager."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln

Program = Callable[[nn.Module, Tensor], Any]


def taught(net: nn.Module, x: Tensor) -> Any:
    """The weights are first seen in the mode, and trained after it."""
    with torch.inference_mode():
        target = net(x).softmax(-1)
    loss = (net(2 * x) - target.clone()).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
            p.grad = None
    return loss.detach(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def decorated(net: nn.Module, x: Tensor) -> Any:
    @torch.inference_mode()
    def loss() -> tuple[float, bool]:
        with torch.inference_mode():
            return net(x).square().mean().item(), torch.is_inference_mode_enabled()

    return loss()


def writing(net: nn.Module, x: Tensor) -> Any:
    with torch.inference_mode():
        for p in net.parameters():
            p.mul_(0.9)
    return net(x)


def raising(net: nn.Module, x: Tensor) -> Any:
    try:
        with torch.inference_mode():
            net(x)
            raise ValueError
    except ValueError:
        return net(x), torch.is_inference_mode_enabled()


def leaving(net: nn.Module, x: Tensor) -> Any:
    with torch.inference_mode():
        y = net(x)
    return y, y.is_inference()


def returned(net: nn.Module, x: Tensor) -> Any:
    with torch.inference_mode():
        y = net(x)
        y.add_(1)
        return y, y[0], y.t()


@torch.inference_mode()
def views(net: nn.Module, x: Tensor) -> Any:
    return x.t(), x[0], net(x[:3]).flatten(), x.view(-1)


def generated(net: nn.Module, x: Tensor) -> Any:
    with torch.inference_mode():
        for _ in range(3):
            x = torch.cat([x, net(x[-3:]).mean(1, keepdim=True).expand(-1, 4)])
        return x


def kept(net: nn.Module, x: Tensor) -> Any:
    state = {}
    with torch.inference_mode():
        state["hidden"] = net(x)
    return state, x * 2


def breaking(net: nn.Module, x: Tensor) -> Any:
    with torch.inference_mode():
        y = net(x)
        time.sleep(0)
        y = y.sum()
    return x + y.item(), torch.is_grad_enabled()


def results(program: Program, run: Program) -> list[Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    found = [run(net, torch.randn(size, 4, dtype=torch.float64)) for size in (5, 5, 7, 6)]
    return [*found, copy.deepcopy(net.state_dict())]


PROGRAMS = [taught, decorated, writing, raising, leaving, returned, views, generated, kept, breaking]


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"backend": "eager"}], ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program: Program, options: dict[str, Any], tmp_path: Path) -> None:
    for _ in range(2):  # the second time from disk
        fast = kiln.compile(program, **options, options={"cache_dir": str(tmp_path)})
        torch.testing.assert_close(results(program, fast), results(program, program))
        report = fast.report()
        assert not report.eager and (program in (leaving, breaking) or not report.breaks), report


def states(program: Program, run: Program, needs_gradient: bool) -> list[tuple[object, ...]]:
    """What autograd knows of the results."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    x = torch.randn(5, 4, requires_grad=needs_gradient)
    found = run(net, x)
    tensors = [*found.values()] if isinstance(found, dict) else [found] if isinstance(found, Tensor) else found
    tensors = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    seen: list[tuple[object, ...]] = [(each.is_inference(), each.requires_grad, each.stride()) for each in tensors]
    for each in tensors:
        try:
            each.add_(1)
            seen.append((True,))
        except RuntimeError:
            seen.append((False,))
    return [*seen, (x._version,)]


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("program", [returned, views, generated])
def test_results_are_inference_tensors_but_for_views_of_others(program: Program, needs_gradient: bool) -> None:
    fast = kiln.compile(program, options={"cache": False})
    assert states(program, fast, needs_gradient) == states(program, program, needs_gradient)
