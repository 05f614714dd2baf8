"""Functions whose C++ reads sizes as plain integers, asks for values or steps over memory, in other torch calls.

Products and recurrent layers take these only with symbolic sizes; the log keeps the call that the user wrote.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch import cov as torch_cov
from torch import istft as torch_istft
from torch import stft as torch_stft
from torch.nn.functional import affine_grid as torch_affine_grid
from torch.nn.functional import ctc_loss as torch_ctc_loss
from torch.nn.functional import leaky_relu as torch_leaky_relu
from torch.nn.functional import max_pool2d_with_indices as torch_max_pool2d_with_indices
from torch.nn.functional import one_hot as torch_one_hot
from torch.nn.functional import pad as torch_pad
from torch.nn.functional import rrelu as torch_rrelu

from kiln.graph.trace.attention import scaled_dot_product_attention
from kiln.graph.trace.gradients import gradients
from kiln.graph.trace.index_pairs import combinations
from kiln.graph.trace.log import Target
from kiln.graph.trace.product_gradient import cumprod, prod
from kiln.graph.trace.products import einsum, kron, linear, matmul
from kiln.graph.trace.recurrent_layers import ALWAYS, RECURRENT
from kiln.graph.trace.resampling import UPSAMPLE_OVERLOADS, interpolate


def has_symbols(values: Sequence[object]) -> bool:
    tensors = [value for value in values if isinstance(value, Tensor)]
    return any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape)


def checked_one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """torch.nn.functional.one_hot, which looks at the classes in eager only; of no classes it has none to give."""
    if num_classes == 0:
        raise RuntimeError("Class values must be smaller than num_classes.")
    assert_classes(x, num_classes)
    return torch_one_hot(x, num_classes)


def assert_classes(x: Tensor, num_classes: int) -> None:
    if x.device.type == "cpu":
        inside = (x >= 0) & (x < num_classes) if num_classes > 0 else x >= 0
        torch._assert_async(inside.all(), "one_hot: class values must be at least 0 and less than their number")


def rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Without training it is a leaky_relu; eager calls the operator that writes its noise all the same."""
    if training or inplace or lower > upper:
        return torch_rrelu(x, lower, upper, training, inplace)
    return torch_leaky_relu(x, (lower + upper) / 2)


WIDE = (torch.float32, torch.float64)


def cov(x: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """Of rows, without weights; eager reads values even where there are none."""
    weighted = fweights is not None or aweights is not None
    rows = x if x.dim() == 2 else x.view(1, -1)
    count = rows.shape[1]
    if weighted or x.dim() > 2 or x.dtype not in WIDE or not count > correction:
        return torch_cov(x, correction=int(correction), fweights=fweights, aweights=aweights)
    away = rows - rows.mean(1, keepdim=True)
    return (away @ away.t() / (count - correction)).squeeze()


NORMS = {False: "backward", True: "ortho"}
"""Of a transform, by `normalized`."""


def centred(window: Tensor, length: int) -> Tensor:
    rest = length - window.shape[0]
    return torch_pad(window, [rest // 2, rest - rest // 2]) if rest else window


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    **options: object,
) -> Tensor:
    """torch.stft of real signals: the spectrum of the product of frames and window."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    wave = torch.ones(width, dtype=input.dtype, device=input.device) if window is None else window
    real = input.is_floating_point() and input.dim() in (1, 2)
    plain = real and return_complex is not None and 0 < width <= n_fft and hop > 0
    fits = wave.shape == (width,) and not wave.is_complex()
    if not plain or options or not fits:
        made: Tensor = torch_stft(
            *(input, n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided, return_complex),
            **options,  # type: ignore[arg-type]
        )
        return made
    signal = input.view(1, -1) if input.dim() == 1 else input
    if center:
        signal = torch_pad(signal[:, None], [n_fft // 2, n_fft // 2], pad_mode)[:, 0]
    frames = signal.unfold(-1, n_fft, hop)
    if window is not None or width < n_fft:
        frames = frames * centred(wave, n_fft)
    transform = torch.fft.fft if onesided is False else torch.fft.rfft
    spectrum = transform(frames, norm=NORMS[normalized]).transpose(1, 2)
    spectrum = spectrum[0] if input.dim() == 1 else spectrum
    return spectrum if return_complex else torch.view_as_real(spectrum)


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """torch.istft of real signals. Eager reads whether the windows cover the signal."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    wave = torch.ones(width, dtype=input.real.dtype, device=input.device) if window is None else window
    spectrum = input[None] if input.dim() == 2 else input
    whole = n_fft + hop * (spectrum.shape[-1] - 1)
    start = n_fft // 2 if center else 0
    end = whole - start if length is None else start + length
    plain = input.is_complex() and spectrum.dim() == 3 and not return_complex and input.device.type == "cpu"
    fits = 0 < hop <= width <= n_fft and wave.shape == (width,) and not wave.is_complex()
    if not (plain and fits and onesided is not False and spectrum.shape[1] == n_fft // 2 + 1 and start < end <= whole):
        made: Tensor = torch_istft(
            *(input, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex)
        )
        return made
    wave = centred(wave, n_fft)
    frames = torch.fft.irfft(spectrum.transpose(1, 2), n_fft, norm=NORMS[normalized]) * wave
    signal = torch.ops.aten.unfold_backward(frames, [frames.shape[0], whole], 1, n_fft, hop)[:, start:end]
    squares = wave.square().expand(1, frames.shape[1], n_fft)
    envelope = torch.ops.aten.unfold_backward(squares, [1, whole], 1, n_fft, hop)[:, start:end]
    torch._assert_async(envelope.abs().min() > 1e-11, "istft: the windows do not cover the signal")
    covered: Tensor = signal / envelope
    return covered[0] if input.dim() == 2 else covered


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """torch.nn.functional.affine_grid: the product of the coordinates between -1 and 1 with each matrix."""
    dims = len(size) - 2
    are_open = any(isinstance(count, torch.SymInt) for count in size) and all(count > 1 for count in size)
    checked = [2] * len(size) if are_open else size  # eager asks which size is the smallest
    made: Tensor = torch_affine_grid(theta.detach(), checked, align_corners)  # type: ignore[arg-type]
    if are_open:
        made = torch.affine_grid_generator(theta.detach(), size, bool(align_corners))
    if not theta.requires_grad or theta.dtype not in WIDE:
        return made  # the errors and warnings are eager's in any case
    base = theta.new_ones([*size[2:], dims + 1])
    for dim, count in enumerate(size[2:]):
        steps = torch.linspace(-1, 1, count, dtype=theta.dtype, device=theta.device)
        steps = steps if count > 1 else torch.zeros_like(steps)
        if not align_corners:
            steps = steps * (count - 1) / count
        base[..., dims - 1 - dim] = steps.view(-1, *[1] * (dims - 1 - dim))
    points = base.view(1, -1, dims + 1).expand(size[0], -1, dims + 1)
    return points.bmm(theta.transpose(1, 2)).view([size[0], *size[2:], dims])


def fill_diagonal_(x: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Of a matrix; eager also fills those of higher ranks, and begins again below that of a tall matrix."""
    if x.dim() != 2 or wrap:
        return x.fill_diagonal_(fill_value, wrap)
    x.diagonal().fill_(fill_value)
    return x


def max_pool1d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """torch.nn.functional.max_pool1d, as that of images of one row."""
    if input.dim() not in (2, 3):
        return torch.max_pool1d(input, kernel_size)  # type: ignore[arg-type]  # it refuses them
    if not return_indices and not input.dtype.is_floating_point and input.device.type == "cpu":
        raise NotImplementedError(f"max_pool1d is not implemented for {input.dtype}")
    stride = kernel_size if stride in (None, (), []) else stride
    kernel, step, spacing = (of_row(given, 1) for given in (kernel_size, stride, dilation))  # type: ignore[arg-type]
    options = (kernel, step, of_row(padding, 0), spacing, ceil_mode)
    rows, indices = torch_max_pool2d_with_indices(input.unsqueeze(-2), *options)
    return (rows.squeeze(-2), indices.squeeze(-2)) if return_indices else rows.squeeze(-2)


def of_row(given: int | Sequence[int], other: int) -> tuple[int, ...]:
    """An option of one dimension with `other` for the rows."""
    return (other, *given) if isinstance(given, Sequence) else (other, given)


def tensor(data: object, *, dtype: torch.dtype | None = None, **options: object) -> Tensor:
    """torch.tensor, which reads symbolic numbers as plain ones."""
    leaves, shape = list(leaves_of(data)), shape_of(data)
    kinds = {type(leaf) for leaf in leaves}
    symbolic = kinds <= NUMBERS and not kinds.isdisjoint((torch.SymInt, torch.SymFloat))
    if not symbolic or shape is None or options.get("requires_grad"):
        return torch.tensor(data, dtype=dtype, **options)  # type: ignore[arg-type]
    if dtype is None:
        dtype = torch.int64 if kinds <= {int, torch.SymInt} else torch.get_default_dtype()
    made = [torch.scalar_tensor(leaf, dtype=dtype, device="cpu") for leaf in leaves]  # type: ignore[arg-type]
    shaped = torch.stack(made).view(shape)
    device = options.get("device")
    return shaped.to(torch.get_default_device() if device is None else device)  # type: ignore[call-overload,no-any-return]


NUMBERS = frozenset({int, float, torch.SymInt, torch.SymFloat})


def leaves_of(data: object) -> Iterator[object]:
    if isinstance(data, list | tuple):
        for part in data:
            yield from leaves_of(part)
    else:
        yield data


def shape_of(data: object) -> list[int] | None:
    """Of nested lists; None where lists of one level differ in length."""
    if not isinstance(data, list | tuple):
        return []
    shapes = [shape_of(part) for part in data]
    inner = shapes[0] if shapes else []
    return None if inner is None or any(shape != inner for shape in shapes) else [len(data), *inner]


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    *options: object,
    **named: object,
) -> Tensor:
    """Lists of lengths as tensors: with lists, the C++ fills a tensor by its address."""
    lengths = [
        tensor(list(given), dtype=torch.int64, device="cpu")
        if isinstance(given, list | tuple) and {type(length) for length in given} <= {int, torch.SymInt}
        else given
        for given in (input_lengths, target_lengths)
    ]
    return torch_ctc_loss(log_probs, targets, *lengths, *options, **named)  # type: ignore[arg-type]


CHECKED: Mapping[Target, Callable[..., object]] = {
    torch.nn.functional.one_hot: checked_one_hot,
    torch.nn.functional.rrelu: rrelu,
    torch.nn.functional.ctc_loss: ctc_loss,
    torch.cov: cov,
    "cov": cov,
    torch.prod: prod,
    "prod": prod,
    torch.cumprod: cumprod,
    "cumprod": cumprod,
    torch.nn.functional.affine_grid: affine_grid,
    torch.stft: stft,
    "stft": stft,
    torch.istft: istft,
    "istft": istft,
    torch.autograd.grad: gradients,
    torch.tensor: tensor,
    torch.nn.functional.max_pool1d: max_pool1d,
    torch.max_pool1d: max_pool1d,
    **ALWAYS,
}
"""Recorded as these whatever their sizes."""

COMPOSITES: Mapping[Target, Callable[..., object]] = {
    torch.matmul: matmul,
    operator.matmul: matmul,
    "matmul": matmul,
    "__matmul__": matmul,
    torch.nn.functional.linear: linear,
    torch.nn.functional.scaled_dot_product_attention: scaled_dot_product_attention,
    torch.einsum: einsum,
    torch.kron: kron,
    torch.combinations: combinations,
    "fill_diagonal_": fill_diagonal_,
    torch.nn.functional.interpolate: interpolate,
    **UPSAMPLE_OVERLOADS,
    **RECURRENT,
}

aten = torch.ops.aten
PUBLIC: Mapping[Target, Target] = {
    aten.matmul.default: torch.matmul,
    aten.linear.default: torch.nn.functional.linear,
    aten.scaled_dot_product_attention.default: torch.nn.functional.scaled_dot_product_attention,
    aten.one_hot.default: torch.nn.functional.one_hot,
    aten.istft.default: torch.istft,
    aten.max_pool1d.default: torch.max_pool1d,
    aten.lstm_cell.default: torch.lstm_cell,
    aten.gru_cell.default: torch.gru_cell,
    aten.rnn_tanh_cell.default: torch.rnn_tanh_cell,
    aten.rnn_relu_cell.default: torch.rnn_relu_cell,
    aten.lstm.input: torch.lstm,
    aten.gru.input: torch.gru,
    aten.rnn_tanh.input: torch.rnn_tanh,
    aten.rnn_relu.input: torch.rnn_relu,
}
"""Overloads that graphs of torch.export call, and the functions of torch with the same arguments."""
