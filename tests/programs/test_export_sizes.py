"""How `dynamic_shapes` may be spelled, and numbers that Python computes from sizes, in all forms."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import kiln
from kiln.support.errors import KilnError
from kiln.symbolic.env import DTYPES
from kiln.tensor.dtypes import DTYPES_BY_NAME
from tests.programs.test_export_values import forms

ROWS, AUTO = kiln.Dim("rows", min=1), torch.export.Dim.AUTO


@dataclass
class Batch:
    x: Tensor
    mask: Tensor | None = None


class Cache:
    """A class that pytrees know, as those of caches of keys and values."""

    def __init__(self, keys: list[Tensor]) -> None:
        self.keys = keys


pytree.register_pytree_node(Cache, lambda cache: ([cache.keys], None), lambda parts, _: Cache(parts[0]))


def named(*, x: Tensor, y: Tensor, **rest: Tensor) -> Tensor:
    return (x + y).sum(0) + rest["z"]


def several(*xs: Tensor) -> Tensor:
    return torch.cat(xs).cumsum(0)


def of_batch(batch: Batch) -> Batch:
    return Batch(batch.x * 2, batch.mask)


def of_cache(cache: Cache) -> Tensor:
    return torch.stack(cache.keys).sum(0)


def rows(n: int) -> Tensor:
    return torch.randn(n, 2)


def collection(x: Tensor, y: Tensor) -> Any:
    made = torch.export.ShapesCollection()
    made[x], made[y] = {0: "n"}, (torch.export.Dim("m"), 2)
    return made


def more_inputs() -> Any:
    made = torch.export.AdditionalInputs()
    made.add((rows(7), rows(2)))
    return made


def keywords(n: int) -> tuple[tuple[()], dict[str, Tensor]]:
    return (), {"x": rows(n), "y": rows(n), "z": torch.randn(2)}


def both(n: int, m: int) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
    return (rows(n), rows(m)), {}


def batch_of(n: int) -> tuple[tuple[Batch], dict[str, Tensor]]:
    return (Batch(rows(n)),), {}


def cache_of(n: int) -> tuple[tuple[Cache], dict[str, Tensor]]:
    return (Cache([rows(n), rows(n)]),), {}


FIRST: dict[int, Any] = {0: AUTO}
SPELLINGS: dict[str, tuple[Callable[..., Any], Any, list[Any]]] = {
    "keywords": (named, {"x": FIRST, "y": FIRST, "z": None}, [keywords(4), keywords(9)]),
    "rest": (named, {"x": FIRST, "y": FIRST, "rest": {"z": None}}, [keywords(4), keywords(9)]),
    "rest-in-order": (named, (FIRST, FIRST, {"z": {0: AUTO}}), [keywords(4), keywords(1)]),
    "several": (several, ({0: AUTO}, {0: AUTO}), [both(4, 3), both(2, 6)]),
    "several-as-one": (several, {"xs": ({0: "a"}, {0: "b"})}, [both(4, 3), both(2, 6)]),
    "collection": (several, collection, [both(4, 3), both(2, 6)]),
    "inputs": (several, more_inputs(), [both(4, 3), both(9, 6)]),
    "hints": (several, ((AUTO, AUTO), (torch.export.Dim.DYNAMIC, torch.export.Dim.STATIC)), [both(4, 3), both(9, 6)]),
    "fields": (of_batch, {"batch": {"x": {0: ROWS}, "mask": {}}}, [batch_of(4), batch_of(6)]),
    "object": (of_batch, (Batch({0: ROWS}),), [batch_of(4), batch_of(6)]),  # type: ignore[arg-type]
    "class": (of_cache, {"cache": [[{0: ROWS}, {0: ROWS}]]}, [cache_of(4), cache_of(6)]),
    "class-object": (of_cache, {"cache": Cache([{0: ROWS}, {0: ROWS}])}, [cache_of(4), cache_of(6)]),  # type: ignore[list-item]
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_dynamic_shapes(name: str) -> None:
    target, shapes, calls = SPELLINGS[name]
    args, kwargs = calls[0]
    program = kiln.export(target, args, kwargs, dynamic_shapes=shapes(*args) if callable(shapes) else shapes)
    for args, kwargs in calls:
        found, expected = program(*args, **kwargs), target(*args, **kwargs)
        assert_close(vars(found) if isinstance(found, Batch) else found,
                     vars(expected) if isinstance(expected, Batch) else expected)  # fmt: skip


def test_a_number_among_the_arguments_is_named() -> None:
    with pytest.raises(KilnError, match="3 is a number: those among the arguments are fixed"):
        kiln.export(lambda x, n: x * n, (rows(4), 3), dynamic_shapes={"x": None, "n": torch.export.Dim.DYNAMIC})
    with pytest.raises(KilnError, match="a tensor that is no argument"):
        kiln.export(several, (rows(4), rows(3)), dynamic_shapes=collection(rows(4), rows(3)))


def interpolated(x: Tensor, scale: float) -> Tensor:
    return torch.nn.functional.interpolate(x[None, None], scale_factor=scale, mode="bilinear")


def chosen(x: Tensor) -> Tensor:
    return torch.cond(x.shape[0] > 4, lambda x: x.cos(), lambda x: x.sin() * 2, (x,))


def positive(x: Tensor) -> tuple[Tensor, int]:
    found = x[x > 0]
    return found * 2, found.shape[0] + 1


def recomposed(x: Tensor) -> Tensor:
    """Some columns of the first plane become those of others, of the last plane none."""
    planes = torch.stack([x, x + 1, x + 2])
    first = planes[0]
    for number, columns in enumerate((slice(1, 2), slice(2, 2)), start=1):
        first[..., columns] = planes[number, ..., columns]
    return first


SIZES: dict[str, Callable[[Tensor], Any]] = {
    "half": lambda x: x[: int(x.shape[0] * 0.5)] + 1,
    "three-quarters": lambda x: x[: math.ceil(x.shape[0] * 0.75)] + 1,
    "tenths": lambda x: (x[: int(x.shape[0] * 0.7)] + 1, torch.arange(int(x.shape[0] * 0.7))),
    "rounded": lambda x: x[: round(x.shape[0] / 3)].sum(0),
    "logarithm": lambda x: x * (math.floor(math.log2(x.shape[0])) + 1),
    "root": lambda x: x[: int(x.shape[0] ** 0.5)].sum(0),
    "root of an integer": lambda x: x[: math.isqrt(x.shape[0])].sum(0),
    "compared floats": lambda x: x * 2 if x.shape[0] / 3 > 0.5 and x.shape[0] ** 0.5 != 2.0 else x,
    "filled": lambda x: torch.full((2, x.shape[0]), x.shape[0] / 7),
    "tensors": lambda x: (torch.as_tensor(x.shape[0]), torch.asarray([x.shape[0], 2]), x.new_tensor(x.shape[0])),
    "new-tensor": lambda x: x.new_tensor([[x.shape[0], 2.0], [x.shape[0] / 3, 1]]),
    "scaled": lambda x: interpolated(x, 0.7),
    "scaled-short": lambda x: interpolated(x, 1.5),
    "condition": chosen,
    "counted": positive,
    "empty part": recomposed,
    "power of two": lambda x: nn.functional.pad(x, (0, 0, 0, (1 << (x.shape[0] - 1).bit_length()) - x.shape[0])),
    "power of a rounded number": lambda x: x.new_ones(2 ** math.ceil(math.log2(x.shape[0]))),
}


@pytest.mark.parametrize("form", ["program", "package", "torch.export"])
@pytest.mark.parametrize("name", SIZES)
def test_numbers_that_are_computed_from_sizes(name: str, form: str, tmp_path: Path) -> None:
    target = SIZES[name]
    run = forms(target, (rows(6),), ({0: ROWS},), tmp_path)[form]()
    for size in (6, 10, 3, 13, 20):
        x = rows(size)
        assert_close(run(x), target(x))


SPECTRA: dict[str, Callable[[Tensor], Any]] = {
    "padded": lambda x: torch.fft.rfft(x, 1 << (x.shape[0] - 1).bit_length(), 0).abs(),
    "cut": lambda x: torch.fft.ifft(torch.fft.fft(x, n=math.isqrt(x.shape[0]), dim=0), dim=0).real,
    "either": lambda x: torch.fft.rfft(x, n=x.shape[0] & 4 | 3, dim=-2, norm="ortho").abs(),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_transforms_of_a_length_that_the_graph_computes(name: str, tmp_path: Path) -> None:
    """As torch's own program they are refused: its fakes of spectra ask for the length."""
    target = SPECTRA[name]
    program = kiln.export(target, (rows(6),), dynamic_shapes=({0: ROWS},))
    program.package(tmp_path / "p.kiln")
    for run in (program, kiln.load(tmp_path / "p.kiln")):
        for size in (6, 10, 3, 1, 8, 20):
            x = rows(size)
            assert_close(run(x), target(x))


def statistics(x: Tensor) -> dict[str, Any]:
    """Floats of sizes and of tensors."""
    share = (x > 0).sum().item() / x.numel()
    return {"mean": x.mean().item(), "scaled": [x.sum().item() * len(x) + 1], "share": share, "x": x + 1}


FLOATS: dict[str, Callable[[Tensor], Any]] = {
    "times": lambda x: (x.sum(), x.shape[0] * 0.5),
    "quotients": lambda x: (1.0 / (x.shape[0] + 1), x.shape[0] / 3, x * 2),
    "roots": lambda x: (x.shape[0] ** 0.5, math.sqrt(x.shape[0]), x),
    "choices": lambda x: (max(x.shape[0] / 4, 2.5), min(x.shape[0], 7), -(x.shape[0] * 0.25), x + 1),
    "statistics": statistics,
    "rounded": lambda x: (x + 1, round(x.shape[0] / 3), int(x.shape[0] ** 0.5), math.ceil(x.shape[0] / 4)),
    "angles": lambda x: (x * math.atan(x.shape[0]), math.atan2(x.shape[0], 3), math.hypot(x.shape[0], 0.5)),
    "truths": lambda x: (x + 1, x.shape[0] > 5, x.shape[0] % 2 == 0, x.shape[0] != 6, not x.shape[0] < 3),
    "truths of data": lambda x: (bool(x.sum() > 0), (x > 0).sum().item() > 2),
    "bits": lambda x: (x.shape[0] & 3, x.shape[0] >> 1, x.shape[0] << 2, x.shape[0] & -4, x.shape[0] | 1, x + 1),
    "divisors": lambda x: (math.gcd(x.shape[0], 4), math.lcm(x.shape[0], 4), x.shape[0].bit_length(), x + 1),
}


@pytest.mark.parametrize("name", FLOATS)
def test_floats_among_the_results(name: str, tmp_path: Path) -> None:
    target = FLOATS[name]
    program = kiln.export(target, (rows(6),), dynamic_shapes=({0: ROWS},))
    program.save(tmp_path / "p")
    program.package(tmp_path / "p.kiln")
    for run in (program, kiln.load_program(tmp_path / "p"), kiln.load(tmp_path / "p.kiln")):
        for size in (6, 1, 13):
            x = rows(size)
            found, expected = run(x), target(x)
            pytree.tree_map(assert_close, found, expected)
            assert list(map(type, pytree.tree_leaves(found))) == list(map(type, pytree.tree_leaves(expected)))


def test_a_float_without_an_operator_is_no_result() -> None:
    with pytest.raises(KilnError, match=r"works for the size 3 only|returns a `float"):
        kiln.export(lambda x: (x, math.gamma(x.shape[0])), (rows(3),), dynamic_shapes=({0: ROWS},))


SCANS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "sums": (lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"), 0),
    "largest from the end": (
        lambda x: associative_scan(torch.maximum, x, 0, reverse=True, combine_mode="generic"),
        0,
    ),
    "recurrence": (
        lambda x: associative_scan(
            lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x.sigmoid(), x), 1, combine_mode="generic"
        ),
        1,
    ),
}


@pytest.mark.parametrize("name", SCANS)
def test_an_associative_scan_over_a_free_length(name: str, tmp_path: Path) -> None:
    target, dim = SCANS[name]
    program = kiln.export(target, (torch.randn(5, 5),), dynamic_shapes=({dim: ROWS},))
    program.package(tmp_path / "p.kiln")
    for run in (program, kiln.load(tmp_path / "p.kiln")):
        for size in (5, 1, 2, 9):
            x = torch.randn(size, 5) if dim == 0 else torch.randn(5, size)
            assert_close(run(x), kiln.compile(target, backend="eager")(x))


def many_numbers(counts: Tensor) -> Tensor:
    return torch.cat([torch.ones(counts[number].item()) * number for number in range(10)])


def test_symbols_are_never_called_as_dtypes(tmp_path: Path) -> None:
    """The ninth number would be `u8`, an integer of eight bits in the file."""
    assert {name for name in DTYPES_BY_NAME if re.fullmatch(r"u\d+", name)} == DTYPES
    counts = torch.arange(10) % 3
    kiln.export(many_numbers, (counts,)).save(tmp_path / "p.kp")
    assert_close(kiln.load_program(tmp_path / "p.kp")(counts.flip(0)), many_numbers(counts.flip(0)))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


HEADS = (2, 3, 4, 8)
REFUSED: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], list[list[tuple[int, ...]]]]] = {
    "channels": (nn.Conv2d(3, 4, 3), [(2, 3, 6, 7)], [[(2, 5, 6, 7)], [(2, 3, 2, 7)]]),
    "padded": (nn.Conv1d(3, 4, 5, padding=1), [(2, 3, 6)], [[(2, 2, 6)], [(2, 3, 2)]]),
    "transposed": (nn.ConvTranspose2d(3, 4, 3), [(2, 3, 6, 7)], [[(2, 4, 6, 7)], [(2, 3, 0, 7)]]),
    "values": (attention, [HEADS] * 3, [[HEADS, HEADS, (2, 3, 5, 8)], [(2, 0, 4, 8)] * 3]),
    "recurrent": (nn.LSTM(4, 5, batch_first=True), [(2, 6, 4)], [[(0, 6, 4)], [(2, 0, 4)]]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_sizes_that_a_kernel_cannot_take_are_refused(name: str) -> None:
    """Before it runs: kernels of packages and static libraries check nothing, and some divide by a size."""
    target, sizes, wrong = REFUSED[name]
    args = tuple([torch.randn(each) for each in sizes])
    program = kiln.export(target, args, dynamic_shapes=tuple([dict.fromkeys(range(x.dim()), AUTO) for x in args]))
    larger = [torch.cat([x, x]) for x in args]
    assert_close(program(*larger), target(*larger))
    for each in wrong:
        with pytest.raises(KilnError, match="KILN5104"):
            program.check_shapes(*[torch.randn(size) for size in each])


def of_one_row(x: Tensor) -> Tensor:
    return (x.expand(-1, 3, -1) * torch.arange(x.shape[0])[:, None, None]).flatten(0, 1)


ONE_ROW: dict[str, tuple[Callable[..., Any], Any, list[tuple[int, ...]], list[list[tuple[int, ...]]]]] = {
    "auto": (of_one_row, ({0: AUTO},), [(1, 1, 4)], [[(1, 1, 4)], [(5, 1, 4)]]),
    "named": (of_one_row, ({0: ROWS},), [(1, 1, 4)], [[(1, 1, 4)], [(5, 1, 4)]]),
    "both": (lambda x, y: x @ y.T + y.sum(), ({0: ROWS}, {0: ROWS}), [(1, 4), (1, 4)], [[(1, 4)] * 2, [(6, 4)] * 2]),
    "branch": (lambda x: x * 2 if x.shape[0] > 1 else x * 3, ({0: AUTO},), [(1, 4)], [[(1, 4)]]),
    "mask": (lambda x, m: x + m, ({0: AUTO}, {0: AUTO}), [(4, 3), (1, 3)], [[(4, 3), (1, 3)], [(7, 3), (1, 3)]]),
}


@pytest.mark.parametrize("name", ONE_ROW)
def test_an_example_of_one_row_is_no_reason_to_fix_a_size(name: str, tmp_path: Path) -> None:
    target, shapes, sizes, calls = ONE_ROW[name]
    example = tuple([torch.randn(each) for each in sizes])
    for make in forms(target, example, shapes, tmp_path).values():
        run = make()
        for call in calls:
            args = [torch.randn(each) for each in call]
            assert_close(run(*args), target(*args))


def test_a_size_that_must_be_one_is_named() -> None:
    with pytest.raises(KilnError, match="the program works for the size 1 only"):
        kiln.export(lambda x: x + torch.ones(4, 2), (rows(1),), dynamic_shapes=({0: ROWS},))
