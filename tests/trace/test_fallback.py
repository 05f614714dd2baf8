"""Trial runs of ops without a rule: which integers they get."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kiln.graph.ops.breaks import DataDependentOp
from kiln.graph.trace.fallback import drawing_devices, fallback_handler, integers_to_try, probed
from kiln.tensor.spec import CPU, TensorSpec

GPU = torch.device("cuda", 0)


def spec(dtype: torch.dtype, *sizes: int, device: torch.device = GPU) -> TensorSpec:
    strides = torch.empty(sizes, device="meta").stride()
    return TensorSpec(dtype, sizes, strides, 0, device)


CASES: dict[str, tuple[Any, tuple[Any, ...], tuple[int, ...]]] = {
    "pivots count from 1": (
        torch.ops.aten.lu_unpack.default, (spec(torch.float32, 3, 3), spec(torch.int32, 3), True, True), (1,),
    ),
    "an index": (torch.ops.aten.take.default, (spec(torch.float32, 4), spec(torch.int64, 2)), (0,)),
    "no integers": (torch.ops.aten.linalg_qr.default, (spec(torch.float32, 3, 3), "reduced"), (0,)),
    "neither is right": (torch.ops.aten.take.default, (spec(torch.float32, 0), spec(torch.int64, 2)), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_gets_only_indices_that_the_cpu_takes(name: str) -> None:
    """A wrong index is an error on the CPU; on a GPU it ends the process."""
    op, args, expected = CASES[name]
    assert integers_to_try(op, args, ()) == expected


def test_a_trial_draws_no_numbers_from_the_program() -> None:
    state = torch.get_rng_state()
    probed(torch.ops.aten.multinomial.default, (spec(torch.float32, 8, device=torch.device("cpu")), 2, True), ())
    assert torch.equal(torch.get_rng_state(), state)


LIB = torch.library.Library("kiln_trials", "DEF")
LIB.define("positive(Tensor x, Tensor lengths) -> Tensor")
TRIED: list[int] = []


def positive(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    TRIED.append(int(lengths.max()))
    if not lengths.all():
        raise RuntimeError("lengths are positive")
    return x[x > 0.7].clone()


LIB.impl("positive", positive, "CPU")


def test_other_numbers_are_tried_with_an_integer_that_the_op_takes() -> None:
    cpu = torch.device("cpu")
    given = spec(torch.float32, 6, device=cpu), spec(torch.int64, 2, device=cpu)
    with pytest.raises(DataDependentOp):
        probed(torch.ops.kiln_trials.positive.default, given, ())
    assert TRIED == [0, 1, 1, 1, 1, 0, 2]  # refused; taken twice; two phases of x; other integers


@pytest.mark.parametrize("op", [torch.ops.aten._unique.default, torch.ops.aten._unique2.default], ids=str)
def test_sizes_that_data_decide_are_not_tried(op: Any) -> None:
    with pytest.raises(DataDependentOp):
        fallback_handler(op)


def test_internal_operators_get_no_indices_made_up() -> None:
    """Their kernels write where the integers say, unchecked."""
    cpu = torch.device("cpu")
    numbers, weight = (
        [spec(torch.int64, size, device=cpu) for size in (8, 3, 0, 3, 3)],
        spec(torch.float32, 3, 3, device=cpu),
    )
    found = probed(torch.ops.aten._embedding_bag_backward.default, (weight, *numbers, 5, False, 0, False, None), ())
    assert found == spec(torch.float32, 5, 3, device=cpu)


def test_large_tensors_are_probed_with_smaller_sizes() -> None:
    """A table of 100 MB of a recommender; tensors that do not have the large size keep theirs."""
    table, indices, offsets = (
        spec(torch.float32, 400_000, 64, device=CPU),
        spec(torch.int64, 8192, device=CPU),
        spec(torch.int64, 2048, device=CPU),
    )
    embedding_bag = torch.ops.aten._embedding_bag.default
    output, *others = probed(embedding_bag, (table, indices, offsets, False, 0, False, None, False, -1), ())
    assert output == spec(torch.float32, 2048, 64, device=CPU)
    small = probed(
        embedding_bag, (spec(torch.float32, 5, 64, device=CPU), indices, offsets, False, 0, False, None, False, -1), ()
    )
    assert others == list(small[1:])


def test_sizes_that_belong_together_become_one() -> None:
    """A symmetric matrix is probed as one."""
    big = spec(torch.float32, 4096, 4096, device=CPU)
    values, vectors = probed(torch.ops.aten._linalg_eigh.default, (big, "L", True), ())
    assert values == spec(torch.float32, 4096, device=CPU)
    assert vectors.sizes == (4096, 4096) and vectors.strides == (1, 4096)


LIB.define("doubled(Tensor x) -> Tensor")
LIB.impl("doubled", lambda x: x * 2, "CompositeExplicitAutograd")


def test_one_size_in_many_axes() -> None:
    """Some of the small sizes make a tensor that is still too large: they are left out."""
    big = spec(torch.float32, 100, 100, 100, 100, 100, device=CPU)
    assert probed(torch.ops.kiln_trials.doubled.default, (big,), ()) == big


def test_generators_of_all_devices_are_kept() -> None:
    """Those of tensors, and of the device on which an operator makes one."""
    x, gpu = spec(torch.float32, 4, device=torch.device("cuda", 1)), torch.device("cuda", 0)
    found = drawing_devices((7, x), (("device", gpu), ("pin_memory", False)))
    assert set(found) == {gpu, torch.device("cuda", 1)}
    assert drawing_devices((7, spec(torch.float32, 4, device=CPU)), ()) == []
