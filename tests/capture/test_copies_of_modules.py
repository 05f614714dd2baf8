"""`state_dict`, `load_state_dict` and copies of modules and other objects in a compiled function."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.average = copy.deepcopy(self.net)
        self.tied = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.tied[1].weight = self.tied[0].weight


class State:
    def __init__(self) -> None:
        self.items, self.cache = [1, 2], 5

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "cache"}


class Restored(State):
    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.cache = 6


def exponential_average(model: Pair, x: Tensor) -> Any:
    with torch.no_grad():
        for kept, new in zip(model.average.state_dict().values(), model.net.state_dict().values(), strict=True):
            kept.copy_(0.9 * kept + 0.1 * new)
    return model.net(x) + model.average(x).detach()


def target_network(model: Pair, x: Tensor) -> Any:
    missing = model.average.load_state_dict(model.net.state_dict())
    return model.average(x).detach(), len(missing.missing_keys)


def entries(model: Pair, x: Tensor) -> Any:
    best = copy.deepcopy(model.net.state_dict())
    return x * 2, best, best._metadata  # type: ignore[attr-defined]


def attributes_of_an_ordered_dict(model: Pair, x: Tensor) -> Any:
    made: Any = OrderedDict(a=x)
    made.note, made.other = 7, [x + 1]
    return made, made.note, made.other, hasattr(made, "lacking"), copy.copy(made).note


def copied_module(model: Pair, x: Tensor) -> Any:
    fast = copy.deepcopy(model.net)
    with torch.no_grad():
        for p in fast.parameters():
            p.mul_(0.5)
    return model.net(x) + fast(x), fast[0].weight is model.net[0].weight


def tied_weights(model: Pair, x: Tensor) -> Any:
    tied, same = copy.deepcopy(model.tied), copy.copy(model.tied[0])
    same.extra = 1
    return tied[1](tied[0](x)) + same(x), tied[0].weight is tied[1].weight, hasattr(model.tied[0], "extra")


def parameters_by_address(model: Pair, x: Tensor) -> Any:
    seen, count = set(), 0
    for p in itertools.chain(model.tied[0].parameters(), model.tied[1].parameters()):
        if id(p) not in seen:
            seen.add(id(p))
            count += p.numel()
    return x + count


def states_of_objects(model: Pair, x: Tensor) -> Any:
    found = []
    for original in (State(), Restored()):
        deep, shallow = copy.deepcopy(original), copy.copy(original)
        deep.items.append(3)
        found += [vars(deep), vars(shallow), original.items]
    return x + 1, found


PROGRAMS = [
    *(exponential_average, target_network, entries, attributes_of_an_ordered_dict),
    *(copied_module, tied_weights, parameters_by_address, states_of_objects),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program: Callable[[Pair, Tensor], Any]) -> None:
    torch.manual_seed(0)
    model = Pair()
    other = copy.deepcopy(model)
    other.load_state_dict(model.state_dict())
    compiled = kiln.compile(program, fullgraph=True, options={"cache": False})
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(other, x), program(model, x))
    torch.testing.assert_close(other.state_dict(), model.state_dict())
    assert kiln.report_of(compiled).compiles == 1


def test_copies_beside_the_other_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It replaces a method of all modules by a function of another name."""
    plain = nn.Module.__setstate__

    def patched_setstate(self: nn.Module, state: dict[str, Any]) -> None:
        plain(self, state)

    monkeypatch.setattr(nn.Module, "__setstate__", patched_setstate)
    test_one_graph(copied_module)


def test_an_attribute_is_set_on_one_side() -> None:
    def f(x: Tensor) -> Any:
        made: Any = OrderedDict()
        made.note = 1
        if x.sum() > 0:
            made.note = 2
        return x * made.note, made.note

    compiled = kiln.compile(f, options={"cache": False})
    for sign in (1, -1, 1):
        x = torch.full((3,), float(sign))
        torch.testing.assert_close(compiled(x), f(x))
