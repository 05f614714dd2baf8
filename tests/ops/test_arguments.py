"""Every argument of an overload is read by its rule, or by the handler in front of it: none is dropped silently."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType

import torch
from torch._ops import OpOverload

import kiln
from kiln.graph.ops import DECOMPOSITIONS, LIBRARY, MUTATIONS, VIEWS

REFUSED_BEFORE = {"layout", "pin_memory"}
"""`refuse_placement`."""
WITHOUT_EFFECT = {
    "non_blocking", "sparse_grad", "assume_unique", "implicit", "reserve", "reserveSpace", "buffer",
}  # fmt: skip
"""Hints, what only the backward reads, and what eager's kernels keep for themselves."""
READ_ELSEWHERE = {
    "aten.embedding.default": {"padding_idx", "scale_grad_by_freq", "sparse"},  # by the backward
    "aten._native_batch_norm_legit.no_stats": {"training"},  # true: eager reads missing statistics otherwise
    "aten._reshape_alias.default": {"stride"},  # of a view of these sizes
    "aten.repeat_interleave.self_int": {"output_size"},  # known
    "aten._cudnn_rnn_backward.default": {"weight_buf", "hidden_size", "output_mask"},  # all gradients are made
}


def names_read(code: CodeType) -> set[str]:
    found = set(code.co_cellvars)
    for step in dis.get_instructions(code):
        if step.opname.startswith("LOAD"):
            found |= set(step.argval) if isinstance(step.argval, tuple) else {step.argval}
    return found


def dropped(name: str, rule: object, skipped: int, reads: bool) -> Iterator[str]:
    """Arguments of an overload that its rule does not take or, where it `reads` them itself, does not look at."""
    packet = getattr(getattr(torch.ops, name.split(".")[0]), name.split(".")[1], None)
    op = getattr(packet, name.split(".")[2], None)
    function = inspect.unwrap(rule)  # type: ignore[arg-type]
    if not isinstance(op, OpOverload) or not hasattr(function, "__code__"):
        return
    parameters = list(inspect.signature(function).parameters.values())[skipped:]
    by_position = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    kinds = {p.kind for p in parameters}
    read = names_read(function.__code__)
    for position, argument in enumerate(op._schema.arguments[skipped - 1 :]):
        own = argument.name
        if not argument.kwarg_only and position < len(by_position):
            own = by_position[position]
        elif own not in by_name:
            rest = inspect.Parameter.VAR_KEYWORD if argument.kwarg_only else inspect.Parameter.VAR_POSITIONAL
            if rest not in kinds:
                yield argument.name
            continue
        if reads and own not in read:
            yield argument.name


def test_every_argument_is_read() -> None:
    found = {}
    for table, skipped, reads in (
        (DECOMPOSITIONS, 1, True),
        (MUTATIONS, 1, True),
        (VIEWS, 2, True),
        (LIBRARY, 1, False),
    ):
        for name in table:
            allowed = REFUSED_BEFORE | WITHOUT_EFFECT | READ_ELSEWHERE.get(name, set())
            if rest := set(dropped(name, table[name], skipped, reads)) - allowed:
                found[name] = rest
    assert found == {}


def test_placements_of_results_are_refused() -> None:
    """Pinned memory needs an accelerator in eager: here only the graph break is looked at."""

    def sparse(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(3, layout=torch.sparse_coo).to_dense()

    def pinned(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(3, pin_memory=True)

    x = torch.ones(3)
    assert torch.equal(kiln.compile(sparse)(x), sparse(x))
    if not torch.cuda.is_available():
        error = expected = None
        try:
            pinned(x)
        except RuntimeError as problem:
            expected = type(problem)
        try:
            kiln.compile(pinned)(x)
        except RuntimeError as problem:
            error = type(problem)
        assert error is expected
