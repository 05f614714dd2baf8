"""Idioms of libraries: recurrent modules, parametrisations, NumPy, scripted functions, custom ops, hooks."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from .table import Table

TABLE = Table()


def vector(*shape: int, grad: bool = False) -> Any:
    def calls() -> list[tuple[torch.Tensor, ...]]:
        torch.manual_seed(0)
        return [(torch.randn(*shape, requires_grad=grad),) for _ in range(2)]

    return calls


torch.manual_seed(0)
LSTM = torch.nn.LSTM(3, 4, batch_first=True)
GRU = torch.nn.GRU(3, 4, bidirectional=True)
RNN = torch.nn.RNN(3, 4)
CELL = torch.nn.LSTMCell(3, 4)


@TABLE.add(vector(2, 5, 3))
def lstm(x):
    out, (h, c) = LSTM(x)
    return out * 2, h + c


@TABLE.add(vector(5, 2, 3))
def gru(x):
    out, h = GRU(x)
    return out.sum() + h


@TABLE.add(vector(5, 2, 3))
def rnn(x):
    return RNN(x, torch.zeros(1, 2, 4))[0]


@TABLE.add(vector(5, 2, 3))
def lstm_cell(x):
    h, c = torch.zeros(2, 4), torch.zeros(2, 4)
    for t in range(x.shape[0]):
        h, c = CELL(x[t], (h, c))
    return h


@TABLE.add(lambda: [(torch.randn(3, 5, 3), torch.tensor([5, 3, 2]))] * 2)
def packed_lstm(x, lengths):
    packed = pack_padded_sequence(x, lengths, batch_first=True)
    out, _ = LSTM(packed)
    padded, sizes = pad_packed_sequence(out, batch_first=True)
    return padded * 2, sizes


@TABLE.add(lambda: [(torch.randn(3, 2), torch.randn(5, 2))] * 2)
def pads(x, y):
    return pad_sequence([x, y], batch_first=True)


@TABLE.add(vector(2, 3))
def flattens_parameters(x):
    LSTM.flatten_parameters()
    return x * 2


def old(kind: Any) -> torch.nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(torch.nn.Linear(3, 4))


OLD_WEIGHT_NORM = old(torch.nn.utils.weight_norm)
OLD_SPECTRAL_NORM = old(torch.nn.utils.spectral_norm).eval()
WEIGHT_NORM = parametrizations.weight_norm(torch.nn.Linear(3, 4))
SPECTRAL_NORM = parametrizations.spectral_norm(torch.nn.Linear(3, 4)).eval()
ORTHOGONAL = parametrizations.orthogonal(torch.nn.Linear(3, 3))


@TABLE.add(vector(2, 3))
def old_weight_norm(x):
    return OLD_WEIGHT_NORM(x)


@TABLE.add(vector(2, 3))
def old_spectral_norm(x):
    return OLD_SPECTRAL_NORM(x)


@TABLE.add(vector(2, 3))
def weight_norm(x):
    return WEIGHT_NORM(x)


@TABLE.add(vector(2, 3))
def spectral_norm(x):
    return SPECTRAL_NORM(x)


@TABLE.add(vector(2, 3))
def orthogonal(x):
    return ORTHOGONAL(x)


class Symmetric(torch.nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).T


PARAMETRIZED = torch.nn.Linear(3, 3)
parametrize.register_parametrization(PARAMETRIZED, "weight", Symmetric())
PRUNED = prune.l1_unstructured(torch.nn.Linear(3, 4), name="weight", amount=0.3)


@TABLE.add(vector(2, 3))
def parametrized(x):
    return PARAMETRIZED(x)


@TABLE.add(vector(2, 3))
def parametrized_cached(x):
    with parametrize.cached():
        return PARAMETRIZED(x) + PARAMETRIZED(x)


@TABLE.add(vector(2, 3))
def pruned(x):
    return PRUNED(x)


@TABLE.add(vector(3))
def assigns_data(x):
    w = torch.ones(3)
    w.data = x.data * 2
    return w + 1


@TABLE.add(lambda: [(torch.ones(3), torch.randn(3)) for _ in range(2)])
def assigns_data_of_argument(w, x):
    w.data = w.data * 2
    return w * x


@TABLE.add(lambda: [(torch.nn.Parameter(torch.ones(3)), torch.randn(3)) for _ in range(2)])
def changes_data_in_place(w, x):
    w.data.mul_(2).add_(x, alpha=0.1)
    return (w * x).sum().detach()


@TABLE.add(vector(3))
def variable(x):
    v = torch.autograd.Variable(x)
    return v * 2


@TABLE.add(vector(3))
def variable_requires_grad(x):
    v = torch.autograd.Variable(x.data, requires_grad=False)
    return v * 2


@TABLE.add(vector(3))
def legacy_constructors(x):
    a = torch.FloatTensor([1.0, 2.0, 3.0])
    b = torch.FloatTensor(3).zero_()
    c = torch.LongTensor([0, 2])
    return (x + a + b)[c]


@TABLE.add(vector(3))
def legacy_tensor_class(x):
    a = torch.Tensor([True, 2, 0.5]) + torch.Tensor((1, x.shape[0], 3))
    b = torch.Tensor(2, x.shape[0]).zero_() + torch.Tensor(x.shape).zero_() + torch.Tensor(x * 2)
    return x + a + b, torch.Tensor().dtype, torch.Tensor([[1.0], [2.0]]).shape, torch.Tensor(x.int()).dtype


@TABLE.add(vector(3))
def legacy_size_that_is_a_truth_value(x):
    try:
        return torch.Tensor(True) + x
    except TypeError as error:
        return str(error)


@TABLE.add(vector(3))
def legacy_new(x):
    return x.new(3).fill_(2.0) + x.new([1.0, 2.0, 3.0]) + x.new_tensor(4.0) + x.new_zeros(3)


@TABLE.add(vector(3))
def legacy_type(x):
    return x.type(torch.DoubleTensor) + x.type("torch.FloatTensor") + x.double().type_as(x)


@TABLE.add(vector(3))
def parameter_inside(x):
    p = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    return p * x


@TABLE.add(vector(3))
def leaf_inside(x):
    y = (x * 2).detach().requires_grad_(True)
    z = (y * y).sum()
    (g,) = torch.autograd.grad(z, y)
    return g + 1


@TABLE.add(vector(3))
def leaf_with_backward(x):
    y = (x * 2).detach().requires_grad_(True)
    (y * y).sum().backward()
    return y.grad + 1


@TABLE.add(vector(3, grad=True))
def hook_with_closure(x):
    scale = 3.0
    y = x * 2
    y.register_hook(lambda g: g * scale)
    return y.sum()


@TABLE.add(vector(3, grad=True))
def retains_grad(x):
    y = x * 2
    y.retain_grad()
    return y.sum() + 1


@TABLE.add(vector(3, grad=True))
def saved_hooks(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        return (x.sin() * x).sum()


@TABLE.add(vector(3, grad=True))
def checkpoint_reentrant(x):
    return torch.utils.checkpoint.checkpoint(lambda v: v.sin() * v, x, use_reentrant=True).sum()


@torch.jit.script
def scripted_gelu(x, bias: float = 1.0):
    y = x + bias
    return y * 0.5 * (1.0 + torch.tanh(0.79788456 * y * (1 + 0.044715 * y * y)))


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 3)

    def forward(self, x):
        if x.sum() > 1000:
            return x
        return self.lin(x)


SCRIPTED = torch.jit.script(Scripted())
TRACED = torch.jit.trace(torch.nn.Linear(3, 4), torch.randn(2, 3))


@TABLE.add(vector(3))
def script_function(x):
    return scripted_gelu(x * 2) + 1


@TABLE.add(vector(3))
def script_module(x):
    return SCRIPTED(x * 2) + 1


@TABLE.add(vector(2, 3))
def traced_module(x):
    return TRACED(x * 2) + 1


@torch.library.custom_op("kilnidioms::add_into", mutates_args={"out"})
def add_into(out: torch.Tensor, x: torch.Tensor) -> None:
    out.add_(x)


@torch.library.custom_op("kilnidioms::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("kilnidioms::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@TABLE.add(vector(3))
def custom_op(x):
    return twice(x + 1) * 3


@TABLE.add(vector(3))
def custom_op_that_mutates(x):
    out = torch.ones(3)
    add_into(out, x)
    return out * 2


@TABLE.add(lambda: [(torch.ones(3), torch.randn(3)) for _ in range(2)])
def custom_op_that_mutates_an_argument(out, x):
    add_into(out, x)
    return out * 2


@TABLE.add(vector(6))
def custom_op_of_data_dependent_size(x):
    return positive(x) * 2


@TABLE.add(vector(3))
def numpy_result(x):
    return x + torch.from_numpy(np.arange(3.0)).float()


@TABLE.add(lambda: [(np.arange(3.0), np.float32(2.0))] * 2)
def numpy_arguments(a, b):
    return a * b + np.ones(3)


@TABLE.add(lambda: [(np.arange(6.0).reshape(2, 3),)] * 2)
def numpy_functions(a):
    b = np.sin(a) + np.exp(-a).sum(axis=0)
    return np.maximum(b, 0.5).mean(axis=1, keepdims=True)


@TABLE.add(vector(3))
def numpy_of_tensor(x):
    a = x.numpy()
    return torch.from_numpy(np.tanh(a) * 2)


@TABLE.add(vector(3))
def numpy_scalar(x):
    scale = np.sqrt(2.0) * np.float32(3)
    return x * scale * np.pi


@TABLE.add(vector(3))
def numpy_integers(x):
    n = int(np.prod([2, 3]))
    return x.repeat(n).view(n, 3)[np.int64(1)]


@TABLE.add(vector(4, 3))
def numpy_linspace(x):
    drop = np.linspace(0, 0.1, 4).tolist()
    return sum(row * rate for row, rate in zip(x, drop, strict=True))


@TABLE.add(vector(4, 3))
def struct_sequence(x):
    r = torch.return_types.max((x.sum(1), x.argmax(1)))
    m = x.max(dim=1)
    return r.values + m.values, m._fields if hasattr(m, "_fields") else m.indices


@TABLE.add(vector(3))
def operators(x):
    return (
        operator.neg(x),
        operator.pos(x),
        operator.add(x, 1),
        operator.mul(x, 2),
        operator.truediv(x, 2),
        operator.matmul(x, x),
    )


@TABLE.add(vector(3))
def operator_truth(x):
    return operator.not_(x is None), operator.and_(x > 0, x < 1), operator.getitem(x, 0), operator.xor(x > 0, x < 1)


@TABLE.add(vector(3))
def functools_reduce(x):
    import functools

    return functools.reduce(torch.add, [x, x * 2, x * 3])


@TABLE.add(vector(3))
def python_type_as_dtype(x):
    return x.to(float) + torch.tensor([0, 1, 2], dtype=int) + torch.zeros(3, dtype=float)


@TABLE.add(vector(2, 3))
def module_dict_call(x):
    layers = torch.nn.ModuleDict({"a": torch.nn.Identity()})
    return layers["a"](x) * 2


@TABLE.add(vector(2, 3))
def tensor_attributes(x):
    return x.T + x.t(), x.mT.shape, x.nbytes, x.device.type, x.dtype.is_floating_point


class Padded(torch.nn.Module):
    """Its padding is computed from buffers, as in audio codecs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.tensor(5))
        self.register_buffer("stride", torch.tensor(2))

    def forward(self, x):
        total = self.kernel - self.stride
        frames = torch.ceil((x.shape[-1] - self.kernel + total) / self.stride + 1).to(torch.int64) - 1
        extra = frames * self.stride + self.kernel - total - x.shape[-1]
        padded = torch.nn.functional.pad(x, (total, extra), mode="constant")
        return padded.reshape(-1)[:3] + padded.shape[-1]


PADDED = Padded()


@TABLE.add(lambda: [(torch.randn(1, 8),), (torch.randn(1, 9),), (torch.randn(1, 8),)])
def pads_by_buffers(x):
    return PADDED(x) * 2
