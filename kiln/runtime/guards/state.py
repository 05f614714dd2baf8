"""The native word of global state, and its meaning.

    current_state()  ->  GlobalState(grad_mode=True, ..., default_dtype=torch.float32, ...)

The layout of the word is that of csrc/frames/global_state.h; the numbers of dtypes are those of c10, part of its
stable ABI. Quantised dtypes are not supported: a guard on one raises.
"""

from __future__ import annotations

import torch

from kiln.native import _frames
from kiln.runtime.guards.guard import GlobalState

# fmt: off
DTYPE_NUMBERS: dict[torch.dtype, int] = {
    torch.uint8: 0,       torch.int8: 1,         torch.int16: 2,           torch.int32: 3,
    torch.int64: 4,       torch.float16: 5,      torch.float32: 6,         torch.float64: 7,
    torch.complex32: 8,   torch.complex64: 9,    torch.complex128: 10,     torch.bool: 11,
    torch.bfloat16: 15,   torch.float8_e5m2: 23, torch.float8_e4m3fn: 24,  torch.float8_e5m2fnuz: 25,
    torch.float8_e4m3fnuz: 26,                   torch.uint16: 27,         torch.uint32: 28,
    torch.uint64: 29,     torch.float8_e8m0fnu: 44,
}
# fmt: on
_DTYPES = {number: dtype for dtype, number in DTYPE_NUMBERS.items()}


def state_from_word(word: int) -> GlobalState:
    """The meaning of `word`."""
    cpu, cuda = word >> 8 & 63, word >> 14 & 63
    return GlobalState(
        grad_mode=bool(word & 1),
        inference_mode=bool(word & 2),
        autocast_cpu=_DTYPES[cpu - 1] if cpu else None,
        autocast_cuda=_DTYPES[cuda - 1] if cuda else None,
        default_dtype=_DTYPES[word >> 20 & 63],
        deterministic=word >> 2 & 3,
        function_modes=word >> 32 & 15,
        dispatch_modes=word >> 36 & 15,
        functorch=bool(word & 64),
        torch_function_off=word >> 4 & 3,
        other=word >> 48,
        cuda_device=word >> 26 & 63,
        attention_off=word >> 40 & 31,
        saved_hooks=bool(word & 128),
    )


def state_to_word(state: GlobalState) -> int:
    """Inverse of `state_from_word`."""
    cpu = 0 if state.autocast_cpu is None else DTYPE_NUMBERS[state.autocast_cpu] + 1
    cuda = 0 if state.autocast_cuda is None else DTYPE_NUMBERS[state.autocast_cuda] + 1
    word = state.grad_mode | state.inference_mode << 1 | state.deterministic << 2 | state.torch_function_off << 4
    word |= (
        state.functorch << 6 | state.saved_hooks << 7 | cpu << 8 | cuda << 14 | DTYPE_NUMBERS[state.default_dtype] << 20
    )
    word |= state.cuda_device << 26 | state.function_modes << 32 | state.dispatch_modes << 36
    return word | state.attention_off << 40 | state.other << 48


def current_state() -> GlobalState:
    """The state of this thread now."""
    return state_from_word(_frames.global_state())
