"""SymInt, SymBool and SymFloat around our nodes, used by torch itself."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kiln.support.location import Location
from kiln.symbolic import (
    DataDependentSize,
    Expr,
    Int,
    Relation,
    ShapeEnv,
    SymNode,
    from_sym,
    parse_int,
    rel_le,
    to_sym,
)
from kiln.symbolic.comparisons import compare
from kiln.symbolic.contiguity import LAYOUT_QUESTIONS
from kiln.symbolic.node import NumberTooLarge
from kiln.symbolic.values import Real, decide_truth

HERE = Location("model.py", 7, "forward")


def guards(env: ShapeEnv) -> list[str]:
    return [str(guard.relation) for guard in env.guards]


def test_arithmetic_through_torch() -> None:
    env = ShapeEnv()
    s0, s1 = to_sym(env.create_symbol(6), env), to_sym(env.create_symbol(4), env)
    assert str(from_sym((s0 + s1) * 2 - 1)) == "2*s0 + 2*s1 - 1"
    assert str(from_sym(s0 // 2 % s1)) == "(s0//2)%s1"
    assert str(from_sym(2 - s0)) == "-s0 + 2"
    assert str(from_sym(s0**2)) == "s0**2"
    assert str(from_sym(torch.sym_max(s0, s1))) == "max(s0, s1)"
    assert str(from_sym(torch.sym_min(s0, 4))) == "min(s0, 4)"
    assert str(from_sym(torch.sym_sum([s0, s1, 3]))) == "s0 + s1 + 3"
    assert s0 - s0 == 0 and not guards(env)


def test_comparisons_guard_when_asked() -> None:
    env = ShapeEnv()
    s0 = to_sym(env.create_symbol(6), env, lambda: HERE)
    larger = s0 > 4
    assert isinstance(larger, torch.SymBool) and not guards(env)
    assert isinstance(larger.node.value, Relation)
    assert larger and guards(env) == ["5 <= s0"]
    assert env.guards[0].location == HERE
    assert s0 > 3 and s0 >= 0 and guards(env) == ["5 <= s0"]
    assert s0 != 1 and guards(env) == ["5 <= s0"]
    assert int(s0) == 6 and guards(env) == ["s0 == 6"]


def test_connectives_take_the_part_that_costs_least() -> None:
    env = ShapeEnv()
    a, b = (to_sym(env.create_symbol(hint), env) for hint in (6, 4))
    either = (a >= 0) | (b == 1)
    assert bool(either) and not guards(env)
    assert bool((a == 1) | (b == 4)) and guards(env) == ["s1 == 4"]
    assert not bool((a == 1) & (b == 4)) and guards(env) == ["s1 == 4", "s0 != 1"]
    assert torch.sym_not(a == 6) is not None


def test_floats() -> None:
    env = ShapeEnv()
    s0 = env.create_symbol(6, lo=1)
    half = to_sym(s0, env) / 2
    assert isinstance(half, torch.SymFloat) and isinstance(half.node.value, Real)
    assert str(from_sym(torch.sym_int(half))) == "s0//2"
    env = ShapeEnv()
    s0 = env.create_symbol(6, lo=1)
    node = SymNode(s0, env).sym_float().truediv(SymNode(4, env))
    assert str(node.floor().value) == "s0//4" and str(node.ceil().value) == "(s0 + 3)//4"
    assert guards(env) == ["1 <= s0"]
    assert node.guard_float() == 1.5 and guards(env) == ["s0 == 6"]
    assert torch.sym_float(to_sym(s0, env)).node.hint == 6.0


def test_unbacked_defaults() -> None:
    env = ShapeEnv()
    u0 = env.create_unbacked()
    equal = (to_sym(u0, env) == 1).node
    assert equal.guard_or_false() is False and equal.guard_or_true() is True
    assert equal.statically_known_true() is False and not equal.has_hint()
    with pytest.raises(DataDependentSize):
        equal.guard_bool()
    torch._check(to_sym(u0, env) >= 2)
    assert equal.guard_bool() is False
    assert [str(check.relation) for check in env.checks] == ["2 <= u0"]


class Fake(torch.Tensor):
    """A wrapper with our sizes: symbols in C++ (`policy=None`), or hints in C++ and symbols in Python."""

    sizes: tuple[Any, ...]

    @staticmethod
    def make(env: ShapeEnv, sizes: tuple[Int, ...], policy: str | None, **kwargs: Any) -> Fake:
        strides: list[Int] = [1]
        for size in reversed(sizes[1:]):
            strides.insert(0, strides[0] * size)
        show = env.hint if policy else lambda value: to_sym(value, env)
        made = torch.Tensor._make_wrapper_subclass(
            Fake,
            tuple(map(show, sizes)),
            strides=tuple(map(show, strides)),
            dtype=torch.float32,
            device="cpu",
            dispatch_sizes_strides_policy=policy,
            **kwargs,
        )
        made.sizes = tuple(to_sym(size, env) for size in sizes)
        made.strides = tuple(to_sym(stride, env) for stride in strides)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answers = {
            torch.ops.aten.sym_size.default: lambda x: x.sizes,
            torch.ops.aten.size.default: lambda x: x.sizes,
            torch.ops.aten.sym_stride.default: lambda x: x.strides,
            torch.ops.aten.stride.default: lambda x: x.strides,
            torch.ops.aten.sym_numel.default: lambda x: to_sym(parse_int("s0*s1"), ShapeEnv()),
        }
        if func in answers:
            return answers[func](args[0])
        raise AssertionError(f"outside the mode: {func}")


class Recorder(TorchDispatchMode):
    """Shape rules of three ops, enough for an autograd formula that reduces a broadcast."""

    def __init__(self, env: ShapeEnv, policy: str | None) -> None:
        super().__init__()
        self.env, self.policy, self.calls = env, policy, []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def _sizes(self, x: Any) -> tuple[Int, ...]:
        return tuple(map(from_sym, x.sizes if isinstance(x, Fake) else x.shape))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        metadata = ("sym_size.default", "size.default", "sym_stride.default", "stride.default")
        if name in metadata:
            return Fake.__torch_dispatch__(func, types, args)
        self.calls.append(name)
        first = self._sizes(args[0])
        if name == "mul.Tensor":
            second = self._sizes(args[1]) if isinstance(args[1], torch.Tensor) else ()
            wide = max(first, second, key=len)
            pairs = zip((1,) * (len(wide) - len(first)) + first, (1,) * (len(wide) - len(second)) + second, strict=True)
            return Fake.make(self.env, tuple(b if a == 1 else a for a, b in pairs), self.policy)
        if name == "sum.dim_IntList":
            dims, keep = args[1], len(args) > 2 and args[2]
            kept = tuple(1 if i in dims else n for i, n in enumerate(first) if keep or i not in dims)
            return Fake.make(self.env, kept, self.policy)
        if name in ("view.default", "expand.default", "_unsafe_view.default", "ones_like.default", "detach.default"):
            sizes = tuple(map(from_sym, args[1])) if len(args) > 1 else first
            return Fake.make(self.env, sizes, self.policy)
        raise AssertionError(f"no rule for {name}")


@pytest.mark.parametrize("policy", [None, "sizes"])
def test_autograd_formula_with_broadcast(policy: str | None) -> None:
    """The gradient of the bias is summed over the symbolic batch, without a guard on it."""
    env = ShapeEnv()
    s0, s1 = env.create_symbol(8), env.create_symbol(4)
    with Recorder(env, policy) as mode:
        x = Fake.make(env, (s0, s1), policy, requires_grad=True)
        bias = Fake.make(env, (s1,), policy, requires_grad=True)
        out = x * bias
        tangent = Fake.make(env, (s0, s1), policy)
        engine = torch.autograd.Variable._execution_engine
        gx, gb = engine.run_backward((out,), (tangent,), False, False, (x, bias), allow_unreachable=True)
        assert tuple(map(from_sym, gx.sizes)) == (s0, s1)
        assert tuple(map(from_sym, gb.sizes))[-1] is s1
    assert "sum.dim_IntList" in mode.calls
    assert all("s1 == " not in guard and "s0 == " not in guard for guard in guards(env))


def test_argument_parser_takes_symints() -> None:
    env = ShapeEnv()
    s0 = env.create_symbol(8)
    with Recorder(env, "sizes"):
        x = Fake.make(env, (s0, 6), "sizes")
        y = x.view(to_sym(s0, env) * 2, 3)
    assert tuple(map(from_sym, y.sizes)) == (2 * s0, 3)


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [((2, 3, 4), (12, 4, 1)), ((2, 3, 4), (12, 1, 3)), ((2, 1, 4), (4, 99, 1)), ((0, 3), (7, 7)), ((4, 3), (6, 2)),
     ((2, 3, 4, 5), (60, 1, 15, 3)), ((2, 1, 4, 5), (20, 1, 5, 1)), ((1, 3, 1, 1), (3, 1, 3, 3)), ((), ()),
     ((2, 3, 2, 4, 5), (120, 1, 60, 15, 3)), ((3, 3), (0, 1)), ((5,), (1,)), ((5,), (2,))],
)  # fmt: skip
@pytest.mark.parametrize("name", sorted(LAYOUT_QUESTIONS))
def test_layout_questions_agree_with_torch(name: str, sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
    env = ShapeEnv()
    symbolic = [env.create_symbol(size) for size in sizes], [env.create_symbol(stride) for stride in strides]
    answer = decide_truth(env, LAYOUT_QUESTIONS[name](env, *symbolic), None)
    real = torch.empty_strided(sizes, strides)
    expected = {
        "is_contiguous": lambda: real.is_contiguous(),
        "is_channels_last_contiguous_2d": lambda: (
            len(sizes) == 4 and real.is_contiguous(memory_format=torch.channels_last)
        ),
        "is_channels_last_contiguous_3d": lambda: (
            len(sizes) == 5 and real.is_contiguous(memory_format=torch.channels_last_3d)
        ),
        "is_non_overlapping_and_dense": lambda: torch.ops.aten.is_non_overlapping_and_dense(real),
    }
    if name in expected:
        assert answer == expected[name]()
    elif answer:
        assert torch.empty_like(real).stride() == real.stride()
    values = {symbol: env.hint(symbol) for symbol in env.symbols()}
    assert all(guard.relation.evaluate(values) for guard in env.guards)


def test_contiguity_by_form_alone() -> None:
    env = ShapeEnv()
    s0, s1 = env.create_symbol(8), env.create_symbol(4)
    assert LAYOUT_QUESTIONS["is_contiguous"](env, (s0, s1, 3), (3 * s1, 3, 1)) is True
    assert isinstance(s0, Expr) and env.known(rel_le(0, s0)) and not env.guards


IMPORT_PROBE = """
import sys, torch
before = set(sys.modules)
from kiln.symbolic import ShapeEnv, to_sym, from_sym
class Fake(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(func)
env = ShapeEnv()
s0 = to_sym(env.create_symbol(8), env)
x = torch.Tensor._make_wrapper_subclass(Fake, (s0, 3), dtype=torch.float32, device="cpu")
assert str(from_sym(x.shape[0] * 3 + 1)) == "3*s0 + 1"
assert x.shape[0] != 1 and len(env.guards) == 1
outside = ("_dynamo", "_inductor", "fx.experimental", "_subclasses", "_functorch", "_decomp", "_refs")
new = sorted(set(sys.modules) - before)
assert not [name for name in new if name.startswith(tuple("torch." + one for one in outside)) or name == "sympy"], new
"""


def test_no_module_outside_the_boundary_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_PROBE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_truths_are_compared() -> None:
    env = ShapeEnv()
    s0, s1 = env.create_symbol(4), env.create_symbol(7)
    truths = (rel_le(s0, 5), rel_le(s1, 5), True, False)
    for a, b in itertools.product(truths, repeat=2):
        left, right = (decide_truth(env, truth, None) for truth in (a, b))
        assert decide_truth(env, compare(env, "eq", a, b, None), None) is (left == right)
        assert decide_truth(env, compare(env, "ne", a, b, None), None) is (left != right)


def test_what_decides_the_order_of_dimensions_is_guarded() -> None:
    """A tensor with gaps is not dense in this order of strides; in another it might be."""
    env = ShapeEnv()
    sizes = env.create_symbol(3), env.create_symbol(4)
    strides = env.create_symbol(1), env.create_symbol(5)
    assert LAYOUT_QUESTIONS["is_non_overlapping_and_dense"](env, sizes, strides) is False
    assert env.known(rel_le(strides[0], strides[1])) is True


def test_a_quotient_of_a_formula_that_doubles_in_each_turn_is_refused() -> None:
    env = ShapeEnv()
    value = to_sym(env.create_symbol(27), env)
    with pytest.raises(NumberTooLarge):
        for _ in range(40):
            value = 3 * value - value // 2
