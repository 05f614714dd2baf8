"""NumPy arrays and scalars from outside, and of tensors: as eager, in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kiln

Program = Callable[[Any, Any], Any]
UNARY = (
    *("negative", "absolute", "sign", "sqrt", "square", "exp", "expm1", "log", "log2", "sin", "arccos", "tanh"),
    *("arcsinh", "floor", "rint", "logical_not", "isnan", "reciprocal"),
)
BINARY = (
    *("add", "subtract", "multiply", "divide", "power", "remainder", "floor_divide", "greater", "not_equal"),
    *("arctan2", "maximum", "fmin", "logical_and", "bitwise_xor", "hypot"),
)
REDUCTIONS = ("sum", "mean", "max", "any", "var", "std", "prod", "cumsum", "argmax", "argmin")
EXPRESSIONS = (
    "a + b", "2 - a", "a / 3", "abs(a)", "a == b", "a.T", "a.reshape(3, 2)", "a.ravel()", "a.flatten()", "a[0]",
    "a[0, 1] * 2", "a[:, 1:]", "a[..., None]", "a[np.array([1, 0])]", "[x.sum() * 2 for x in a]", "a.mean() > 0.5",
    "a.shape, a.ndim, a.size, a.dtype == np.float64, len(a)", "np.concatenate([a, b], axis=1)", "np.stack([a, b])",
    "np.hstack((a, b))", "np.where(a > 1, a, 0)", "a.clip(0, 1)", "a.astype('int32')", "a.astype(float)",
    "np.full_like(a, 3) + a", "np.outer(a, b)", "np.transpose(a, (1, 0))", "np.moveaxis(a, 0, 1)",
    "np.expand_dims(a, 1)", "np.roll(a, 1)", "np.tril(a, -1)", "np.broadcast_to(a, (4, 2, 3))",
    "np.tile(a, (2, 1))", "np.repeat(a, 2, axis=0)", "np.diff(a)", "np.sort(a, axis=0)", "np.round(a, 1)", "a.copy()",
    "np.array(a)", "a + np.arange(3)", "a * np.float32(2)", "a * np.float64(2)", "a, a[0]",
    "torch.from_numpy(a) * 2", "torch.from_numpy(a * 2).sum(0)", "torch.from_numpy(a).numpy() * 2",
    "(a - a.mean(0)) / (a.std(0) + 1e-5)", "torch.tensor(a) * 2", "a + torch.ones(2, 3).double().numpy()",
    "np.cumprod(a, 0)", "np.ptp(a)", "np.ptp(a, axis=1)", "np.median(a)", "np.median(a, axis=0)",
    "np.percentile(a, 30)", "np.quantile(a, 0.25, axis=1)", "np.take(a, [0, 2], axis=1)", "np.take(a, [1, 5])",
    "np.quantile(a, [0.2, 0.5])", "np.percentile(a, (10, 90), axis=0)", "np.diff(a, prepend=0)",
    "np.diff(a, axis=0, append=b, prepend=1)", "np.isin(a, [1, 2])", "np.isin(a, b, invert=True)", "np.isin(a, 1.5)",
    "np.digitize(a, [0.5, 1, 1.5])", "np.digitize(a, np.array([1, 2]), right=True)", "np.cross(a, b)",
    "np.convolve(a[0] * 1.0, [1, 2.5], 'same')", "np.convolve(b[0], a.ravel() * 0.5)",
    "np.convolve(a.ravel() * 1.0, b[0], mode='valid')", "np.gradient(a.ravel())", "np.gradient(a[0], edge_order=2)",
    "np.flip(a, 1)", "np.flipud(a)", "np.fliplr(a)", "np.flip(a)", "a[::-1]", "a[:, ::-2] * 2", "a[::-1].copy()",
    "np.nan_to_num(a)", "np.pad(a, 1)", "np.pad(a, ((1, 0), (2, 3)), constant_values=4)", "np.split(a, 3, axis=1)",
    "np.array_split(a, 2, axis=1)", "np.einsum('ij,kj->ik', a, b)", "np.kron(a[0], b)", "np.tensordot(a, b.T, 1)",
    "np.dstack([a, b])", "np.column_stack([a[0], b[0]])", "np.linalg.norm(a)", "np.linalg.norm(a, axis=1)",
    "np.linalg.norm(a, axis=0, keepdims=True)", "np.linalg.norm(a[0], 1)", "np.linalg.det(a @ b.T)",
    "np.linalg.inv(a @ a.T + np.eye(2, dtype=a.dtype))", "np.linalg.solve(a @ a.T + np.eye(2), a[:, 0])",
    "np.linalg.cholesky(a @ a.T + np.eye(2))", "np.linalg.eigvalsh(a @ a.T)", "np.ascontiguousarray(a[:, ::-1])",
    "np.array([a, a * 2])", "np.array([a[0], b[1]], dtype=np.float32)", "np.asarray((a.sum(), 2, b.mean()))",
    "np.array([[a.max(), 1.5], [2, b.min()]])", "np.float32(a.mean())",
    "np.array(torch.from_numpy(a))", "np.asarray(torch.from_numpy(a)) * 2", "np.array(a, dtype=np.float32)",
    "np.array(torch.from_numpy(a) * 2, dtype=np.float32) + 1", "np.asarray(a, dtype='float64')",
    "np.concatenate([np.array(torch.ones(2, 3)), np.array([[0.5, 1, 2]])])",
    "torch.zeros(3) + a.mean()", "torch.ones(3, 4)[np.array([0, 2])]", "np.asanyarray(a) + 1",
    "np.asanyarray([1.0, 2]).sum() * a", "np.asanyarray(a, dtype=np.float32)", "np.asanyarray(torch.from_numpy(a))",
    "np.atleast_2d([1, 2]) + a[0, 0]",
)  # fmt: skip


def changed_in_place(a: Any, b: Any) -> Any:
    c = a * 1
    c += b
    c[0] = 5
    c[:, 1] = b[:, 0]
    return c


def programs() -> list[tuple[str, Program]]:
    made = [f"np.{name}(a)" for name in UNARY]
    made += [f"np.{name}(a, {other})" for name in BINARY for other in ("b", "2")]
    made += [f"np.{name}({rest})" for name in REDUCTIONS for rest in ("a", "a, axis=0")]
    texts = [*made, *[f"a.{name}(axis=-1)" for name in REDUCTIONS], *EXPRESSIONS]
    found = [(text, eval(f"lambda a, b: ({text})", {"np": np, "torch": torch})) for text in texts]
    return [*found, ("changed in place", changed_in_place)]


def arrays(kind: str) -> tuple[Any, Any]:
    made = np.random.default_rng(0).normal(size=(2, 2, 3)) + 2
    a, b = made.astype(kind)
    return a, b


def outcome(function: Program, kind: str) -> Any:
    a, b = arrays(kind)
    try:
        return function(a, b), a, b
    except Exception as error:
        return type(error), str(error)


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray | np.generic):
        metadata = (left.dtype, left.shape) == (right.dtype, right.shape)
        return metadata and np.allclose(left, right, rtol=1e-4, equal_nan=True)
    if isinstance(left, torch.Tensor):
        return left.dtype is right.dtype and torch.allclose(left, right)
    return bool(left == right)


@pytest.mark.parametrize("kind", ["float32", "int64", "bool"])
def test_functions(kind: str) -> None:
    broken = []
    with np.errstate(all="ignore"):
        for text, function in programs():
            compiled = kiln.compile(function, backend="eager", options={"cache": False})
            expected = outcome(function, kind)
            for _ in range(2):
                got = outcome(compiled, kind)
                assert same(expected, got), (text, expected, got)
            if compiled.report().breaks or compiled.report().eager_reasons:
                broken.append(text)
    assert len(broken) <= {"float32": 2, "int64": 4, "bool": 29}[kind], broken


def test_an_array_of_a_tensor_is_a_copy() -> None:
    def changed(x: torch.Tensor) -> Any:
        copy, alias, other = np.array(x), np.asarray(x), np.array(x, dtype=np.float64)
        same_dtype = np.array(x, dtype=np.float32)
        copy += 1
        alias += 10
        other += 100
        same_dtype += 1000
        return copy, alias, other, same_dtype, x

    compiled = kiln.compile(changed, options={"cache": False})
    for _ in range(2):
        assert same(compiled(torch.ones(3)), changed(torch.ones(3)))


def written_to(result: Any, array: Any) -> Any:
    result += 1
    return array


def caught(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except ValueError as error:
        return type(error), str(error)


@pytest.mark.parametrize("kind", ["float64", "int64"])
def test_as_numpy_alone(kind: str) -> None:
    """Where torch's function of the same name shares memory, differs, or raises another error."""
    texts = [
        *(
            f"written_to({view}, a)"
            for view in ("+a", "np.round(a)", "np.flip(a)", "np.diff(a, n=0)", "np.rint(a * 1)")
        ),
        *(
            "a[0, :, np.array([0, 1])]",
            "a[0, :, np.array([0, 1, 2])]",
            "a[np.int64(0), :, np.array([0, 1, 2])]",
            "a[np.array([0, 1]), 1]",
        ),
        "a.dot(a[0].T)",
        *("np.dot(a, 2)", "np.dot(a[0], a[0])", "np.dot(a[0, 0], a[0, 1])", "np.sum(a.sum(), axis=0)"),
        *("np.sign(a / a[0, 0, 0])", "caught(lambda: np.dot(a, a[:, 0]))", "caught(lambda: np.where(a > 0, a, a.T))"),
        "caught(lambda: np.concatenate([a, a.T]))",
    ]
    names = {"np": np, "written_to": written_to, "caught": caught}
    with np.errstate(all="ignore"):
        for text in texts:
            function = eval(f"lambda a: ({text})", names)
            compiled = kiln.compile(function, backend="eager", options={"cache": False})
            arguments = [np.arange(24, dtype=kind).reshape(2, 3, 4) for _ in range(2)]
            assert same(caught(function, arguments[0]), caught(compiled, arguments[1])), text
            assert np.array_equal(*arguments), text


def test_asarray_of_a_tensor_or_numbers() -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.asarray(x, copy=True).add_(1), torch.asarray([1.0, 2.0], copy=True) + x

    compiled = kiln.compile(f, fullgraph=True, backend="eager", options={"cache": False})
    assert same(f(torch.ones(2)), compiled(torch.ones(2)))
    x = torch.ones(2)
    compiled(x)
    assert x.tolist() == [1, 1]


def test_arrays_are_guarded() -> None:
    def f(a: Any, scale: Any) -> Any:
        return np.tanh(a) * scale

    compiled = kiln.compile(f, options={"cache": False})
    read_only = np.ones(3)
    read_only.flags.writeable = False
    for a in (np.ones(3), np.ones((3, 1)), np.ones(3, np.float32), np.ones(6)[::2], np.ones(3)[::-1], read_only, [1.0]):
        for scale in (np.float32(2), np.float64(3), 4):
            assert same(f(a, scale), compiled(a, scale)), (a, scale)


def test_memory_is_shared() -> None:
    def f(a: Any, x: torch.Tensor) -> Any:
        return a[1:], torch.from_numpy(a), x.numpy()

    compiled = kiln.compile(f, options={"cache": False})
    a, x = np.zeros(3), torch.zeros(3)
    for _ in range(2):
        tail, tensor, array = compiled(a, x)
        a[1] += 5
        x[0] += 5
        assert tail[0] == a[1] and tensor[1] == a[1] and array[0] == x[0]


def test_an_array_of_a_module() -> None:
    class Normalised(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = np.array([1.0, 2.0, 3.0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - torch.from_numpy(self.mean).to(x.dtype)

    module = Normalised()
    compiled = kiln.compile(module, options={"cache": False})
    x = torch.ones(2, 3)
    assert torch.equal(compiled(x), module(x))
    module.mean[0] = 7
    assert torch.equal(compiled(x), module(x))
    assert compiled.report().compiles == 1


SCALARS = (
    "torch.tensor([a[0], 1])", "torch.tensor([1.5, a.mean()])", "torch.tensor([[a[0]], (a[1],)])",
    "torch.as_tensor([a[0], 2])", "torch.tensor([x[0], a[0]])", "torch.tensor([np.float64(2), a[0]])",
    "torch.tensor(list(a), dtype=torch.float32)", "x * a[0]", "x.long() + a[0]", "torch.full((2,), a[1])",
    "torch.where(x > 0, x.long(), a[0])",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["float64", "float32", "int32", "uint8", "bool"])
@pytest.mark.parametrize("text", SCALARS)
def test_scalars_among_the_arguments_of_torch(text: str, kind: str) -> None:
    """In a list a scalar has the dtype of its own; elsewhere it is a Python number, and a truth a float."""
    program: Program = eval(f"lambda a, x: {text}", globals())
    compiled = kiln.compile(program, options={"cache": False})
    for numbers in ([1, 0, 4], [0, 2, 5]):
        given = np.array(numbers).astype(kind), torch.tensor([1.0, -2.0])
        try:
            expected = program(*given)
        except TypeError:
            with pytest.raises(TypeError):
                compiled(*given)
        else:
            assert same(compiled(*given), expected)


def test_a_number_of_numpy_beside_one_from_outside() -> None:
    def f(x: torch.Tensor, angle: Any) -> Any:
        return x * (np.deg2rad(180) - angle), np.float32(2) < angle, np.float64(1) / angle

    compiled = kiln.compile(f, fullgraph=True, backend="eager", options={"cache": False})
    for angle in (np.radians(28.6), np.radians(5.0)):
        assert same(f(torch.ones(2), angle), compiled(torch.ones(2), angle))


def test_a_function_that_returns_a_type() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + torch.from_numpy(np.ones(2, np.common_type(np.arange(3, dtype=np.float32))))

    compiled = kiln.compile(f, fullgraph=True, backend="eager", options={"cache": False})
    assert same(f(torch.ones(2)), compiled(torch.ones(2)))


def test_running_sums_are_minus_zero_as_long_as_all_numbers_are() -> None:
    compiled = kiln.compile(lambda a: (np.cumsum(a), a.cumsum(-1)), fullgraph=True)
    for numbers in ([-0.0, -0.0, 0.0, -0.0], [-0.0, -0.0, 1.0, -1.0, -0.0], [-0.0], [0.0, -0.0], [-1.0, 1.0, -0.0]):
        a = np.array(numbers, dtype=np.float32)
        for found in compiled(a):
            np.testing.assert_array_equal(np.signbit(found), np.signbit(np.cumsum(a)))
            np.testing.assert_array_equal(found, np.cumsum(a))


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "copies": lambda a: [a.T.copy(), a.T.copy("K"), a.copy(order="F"), np.copy(a.T), np.copy(a.T, order="C")],
    "flat": lambda a: [a.flatten("F"), a.flatten(order="C"), a.T.flatten(), a[None].flatten("F"), a[0].flatten("F")],
    "with out": lambda a: [np.add(a, 1, out=a), np.multiply(a, 2, where=a > 2, out=a), np.cross(a[:, :3], a[0, :3])],
    "contiguous": lambda a: [np.ascontiguousarray(a.T), np.ascontiguousarray(a.T, np.float32)],
    "filled": lambda a: [np.zeros_like(a.T), np.ones_like(a.T, np.float32), np.full_like(a.T, 2, order="C")],
    "filled in shapes": lambda a: [np.zeros_like(a, shape=(2, 3)), np.ones_like(a.T, shape=(4,))],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_copies(name: str) -> None:
    made = LAYOUTS[name]
    compiled = kiln.compile(made)
    for rows, columns in ((2, 3), (4, 3), (5, 2), (3, 3)):
        a = np.arange(float(rows * columns)).reshape(rows, columns)
        for result, expected in zip(compiled(a.copy()), made(a), strict=True):
            np.testing.assert_array_equal(result, expected)
            assert result.strides == expected.strides and result.dtype == expected.dtype
