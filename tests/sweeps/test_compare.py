"""What counts as a difference of two results."""

import itertools
from types import SimpleNamespace

import torch

from tests.sweeps.compare import differences
from tests.sweeps.samples import copy_of, shard_of, spread

X = torch.arange(6.0).reshape(2, 3)


def kinds(*args, **kwargs):
    return [kind for kind, _, _ in differences(*args, **kwargs)]


def test_kinds_of_differences():
    assert kinds((X, 1), (X.clone(), 1)) == []
    assert kinds((X,), (X, X)) == ["structure"]
    assert kinds(X.reshape(3, 2), X) == ["shape"]
    assert kinds(X.double(), X) == ["dtype"]
    assert kinds(X.t().contiguous().t(), X) == ["strides"]
    assert kinds(X + 1, X) == ["values"]
    assert kinds(X + 1, X, values=False) == []
    assert kinds(X.clone().requires_grad_(), X) == ["requires_grad"]
    assert kinds(X / 0, torch.where(X == 0, 0.0, X / 0)) == ["nonfinite"]
    assert kinds(X.long() + 1, X.long()) == ["values"]
    assert kinds([2], [3]) == ["values"]


def test_a_value_may_be_off_by_three_times_what_eager_is_off():
    exact = X.double() * 1.0001
    assert kinds(X * 1.0003, X, exact) == []
    assert kinds(X * 1.0008, X, exact) == ["values"]
    assert kinds(X * 1.0003, X) == ["values"]


def test_copies_keep_strides_and_own_their_memory():
    for item in (X.t(), X[:, ::2], X[:1].expand(4, 3), X[1]):
        copy = copy_of(item)
        assert copy.stride() == item.stride() and torch.equal(copy, item)
        assert copy.untyped_storage().data_ptr() != item.untyped_storage().data_ptr()


def test_samples_are_spread_and_shards_are_disjoint():
    assert [n for n, _ in spread(list(range(10)), 4)] == [0, 3, 6, 9]
    assert [n for n, _ in spread(list(range(10)), 1)] == [0]
    ops = [SimpleNamespace(name=f"op{n}", variant_test_name="") for n in range(10)]
    parts = [[op.name for op in shard_of(ops, f"{n}/3", "")] for n in range(3)]
    assert sorted(itertools.chain(*parts)) == sorted(op.name for op in ops)
    assert shard_of(ops, "3/3", "") == shard_of(ops, "0/3", "")
