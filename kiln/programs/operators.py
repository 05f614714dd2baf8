"""Which operators a program from a file may call: functional ATen overloads, and libraries that the caller names.

aten.mm.default          yes
aten.add_.Tensor         no: it writes to its arguments
aten.from_file.default   no: it reads a file
aten._linalg_svd.default yes: it is `torch.linalg.svd`
mylib.scale.default      with kiln.load_program(path, libraries=("mylib",))
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch._ops import OpOverload

from kiln.graph.ir.graph import Graph
from kiln.graph.ops.registry import LIBRARY
from kiln.graph.prims.table import Kind
from kiln.plan.overloads import find_overload

REFUSED = frozenset({"from_file", "set_data", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""They read files, or memory that nobody has written."""

# fmt: off
BEHIND_PUBLIC = frozenset({
    "_addmm_activation", "_conj_physical", "_ctc_loss", "_dirichlet_grad", "_embedding_bag",
    "_embedding_bag_forward_only", "_euclidean_dist", "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "_fft_c2c", "_fft_c2r", "_fft_r2c", "_fused_rms_norm", "_grouped_mm",
    "_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors", "_int_mm", "_linalg_det",
    "_linalg_eigh", "_linalg_eigvals", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd",
    "_log_softmax_backward_data",
    "_native_batch_norm_legit_functional", "_native_multi_head_attention", "_prelu_kernel", "_prelu_kernel_backward",
    "_safe_softmax", "_sample_dirichlet", "_scaled_mm", "_segment_reduce", "_softmax_backward_data",
    "_standard_gamma", "_transformer_encoder_layer_fwd", "_trilinear", "_unique2",
})
# fmt: on
"""What public functions of torch and their gradients call, with arguments of the user, though the name is internal."""


def called_overloads(graph: Graph) -> Iterator[str]:
    """The names of the overloads that nodes call, those of nested graphs too."""
    for node in graph.nodes:
        if node.op.kind in (Kind.LIBRARY, Kind.EFFECT) and "target" in node.attrs:
            yield str(node.attrs["target"])
        for value in node.attrs.values():
            if isinstance(value, Graph):
                yield from called_overloads(value)


def refusal(target: str, libraries: Collection[str]) -> str:
    """Why a program may not call this overload; "" if it may."""
    namespace, _, rest = target.partition(".")
    name = rest.partition(".")[0]
    if target in LIBRARY:
        return ""
    if namespace != "aten":
        return "" if namespace in libraries else f"`load_program(path, libraries=({namespace!r},))` allows that"
    overload = find_overload(target)
    if not isinstance(overload, OpOverload):
        return "it is not an operator"
    if overload._schema.is_mutable:
        return "it writes to its arguments"
    is_internal = name.startswith("_") and name not in BEHIND_PUBLIC and torch.Tag.core not in overload.tags
    if name in REFUSED or is_internal:
        return "it is internal to torch, or reads files or memory"
    if any("Tensor" not in str(result.type) for result in overload._schema.returns):
        return "it returns something else than tensors"
    return ""
