"""Graph breaks: the rest of the frame resumes with its handlers, loops and callers."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import pytest
import torch

import kiln


def opaque(x):
    """Something that is not traced."""
    return x


opaque._torchdynamo_disable = True


def in_loop(x):
    total = x * 0
    for i in range(3):
        total = total + opaque(x * i)
    return total


def in_while(x):
    found = []
    while x.sum() < 10:
        x = x + 1
        found.append(x)
    return x, len(found)


def in_with(x):
    log = []

    @contextlib.contextmanager
    def managed():
        log.append("in")
        yield 3
        log.append("out")

    with torch.no_grad():
        y = opaque(x + 1)
        inside = torch.is_grad_enabled()
    return y * 2, inside, torch.is_grad_enabled(), log


def in_try(x):
    y = x + 1
    try:
        y = opaque(y)
        raise ValueError("stop")
    except ValueError as error:
        y = y * 2
        message = str(error)
    finally:
        y = y + 1
    return y, message


def in_finally(x):
    log = []
    try:
        y = x + 1
    finally:
        log.append(float(opaque(3)))
    return y, log


def in_callee(x):
    def inner(a, b):
        a = a + 1
        c = opaque(a)
        return a * b + c

    y = x.cos()
    return [inner(y, i) for i in range(2)], y


class Box:
    def __init__(self, v):
        self.v = opaque(v + 1)
        self.w = v


def in_init(x):
    b = Box(x)
    return b.v + b.w


def in_deep_callee(x):
    def a(v):
        return b(v + 1) * 2

    def b(v):
        return c(v * 3) - 1

    def c(v):
        w = opaque(v)
        return w + v

    return a(x) + x


def in_callee_handler(x):
    def inner(v):
        opaque(v + 1)
        raise KeyError("k")

    try:
        inner(x * 2)
    except KeyError as e:
        return x + 1, e.args
    return x


def on_conditions(x):
    y = x + 1 if x.sum() > 0 else x - 1
    z = (y > 0).any() and [y.max() > -100]
    return y, len(z) if isinstance(z, list) else bool(z)


def with_closures(x):
    n = 0

    def bump():
        nonlocal n
        n += 1
        return n

    bump()
    y = opaque(x + n)
    bump()
    return y + n, n


def with_generator(x):
    def gen():
        for i in range(3):
            yield opaque(x + i)

    return sum(gen())


def with_item(x):
    n = x.sum().item()
    return x + n, int(n)


def with_keywords(x):
    def k(a, *, b, c=2):
        return opaque(a) + b * c

    return k(x + 1, b=x)


def with_list_state(x):
    items = [x, x + 1]
    alias = items
    opaque(0)
    items.append(x * 2)
    return alias, items is alias


def with_iterators(x):
    out = []
    for i, item in enumerate([x, x + 1, x + 2]):
        out.append(opaque(item) + i)
    return out


CASES = [
    *(in_loop, in_while, in_with, in_try, in_finally, in_callee, in_init, in_deep_callee, in_callee_handler),
    *(
        on_conditions,
        with_closures,
        with_generator,
        with_item,
        with_keywords,
        with_list_state,
        with_iterators,
    ),
]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_result_is_eagers(lab, equal, function):
    torch.manual_seed(3)
    x = torch.randn(3)
    expected = function(x)
    got = lab.compile(function)(x)
    assert lab.breaks(), "no break at all"
    skipped = [str(capture.skipped) for capture in lab.captures if capture.skipped]
    assert not [item for item in skipped if "KILN9" in item], skipped
    equal(got, expected)
    assert lab.captures[0].skipped is None, lab.captures[0].skipped


def test_deep_callee_is_three_regions_at_most(lab):
    lab.compile(in_deep_callee)(torch.randn(3))
    assert len([capture for capture in lab.captures if capture.regions]) == 2


def test_submodules_that_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`from package import submodule` loads it, if the package has no such name."""
    folder = tmp_path / "kiln_lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("here = 2")
    (folder / "inner.py").write_text("factor = 3")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("kiln_lazy_package")

    def f(x: torch.Tensor) -> torch.Tensor:
        from kiln_lazy_package import here, inner  # type: ignore[import-not-found]

        return x * inner.factor + here

    def missing(x: torch.Tensor) -> torch.Tensor:
        from kiln_lazy_package import there

        return x * there

    compiled = kiln.compile(f, backend="eager", options={"cache": False})
    assert [compiled(torch.ones(2)).tolist() for _ in range(2)] == [[5, 5], [5, 5]]
    again = kiln.compile(f, backend="eager", fullgraph=True, options={"cache": False})
    assert again(torch.ones(2)).tolist() == [5, 5]
    with pytest.raises(ImportError, match="cannot import name 'there'"):
        kiln.compile(missing, backend="eager", options={"cache": False})(torch.ones(2))


def test_the_mark_of_a_step_of_cuda_graphs_does_nothing() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return x * 2

    compiled = kiln.compile(f, backend="eager", fullgraph=True, options={"cache": False})
    assert compiled(torch.ones(2)).tolist() == [2, 2]


def test_numbers_of_tensors_stay_inputs_behind_breaks() -> None:
    """Those that a region took from tensors differ in each call: no variant behind a break is for one of them."""

    def inner(x: torch.Tensor) -> torch.Tensor:
        total, parts = x.sum().item(), [x.max().item(), 2]
        opaque(x)
        y = x * total + parts[0]
        opaque(y)
        return y * total

    def f(x: torch.Tensor) -> torch.Tensor:
        return inner(x + 1)

    compiled = kiln.compile(f, backend="eager", options={"cache": False})
    for step in range(4):
        assert torch.equal(compiled(torch.arange(3.0) + step), f(torch.arange(3.0) + step))
    assert compiled.report().compiles == 3


def test_a_number_that_is_compared_with_a_tensor_is_not_guarded() -> None:
    def f(scale: torch.Tensor, old: float, x: torch.Tensor) -> torch.Tensor:
        scale.mul_(2.0)
        return x + 1 if scale.item() >= old else x

    compiled = kiln.compile(f, backend="eager", options={"cache": False})
    for old in (0.5, 1.0, 2.0, 3.0, 4.0):
        assert torch.equal(compiled(torch.tensor(1.0), old, torch.ones(2)), f(torch.tensor(1.0), old, torch.ones(2)))
    assert compiled.report().compiles == 3  # a number that changes, and the other side
