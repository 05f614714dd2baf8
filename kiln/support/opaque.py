"""Packages whose functions are called, not interpreted.

why_opaque(torch.save)      "it reads or writes a file"
why_opaque(my_function)     ""
"""

from __future__ import annotations

from types import FunctionType

MADE_BY_KILN = "kiln.pipeline.dispatchers"
"""Its functions stand for functions of the program, and are interpreted."""
OPAQUE = {
    **dict.fromkeys(
        (
            *("torch._dynamo", "torch._inductor", "torch._higher_order_ops", "torch._export", "torch.export"),
            *("torch.fx", "torch._subclasses", "torch.nn.attention.flex_attention"),
        ),
        "it is part of torch's own compiler",
    ),
    "torch._functorch": "it is part of torch's own compiler",
    "torch.distributed.fsdp": "it gathers and frees parameters",
    "torch.distributed.tensor": "it computes on tensors that are spread over ranks",
    **dict.fromkeys(("torch.jit._script", "torch.jit._trace"), "it makes TorchScript"),
    "torch.serialization": "it reads or writes a file",
    **dict.fromkeys(("kiln.api", "kiln.pipeline", "kiln.backends"), "it is part of Kiln"),
}
"""Packages whose functions are called, not interpreted, and why. They trace, or switch torch's modes in C++."""
TRANSFORMS = frozenset(("torch._functorch.vmap", "torch._functorch.eager_transforms"))
"""Modules whose functions open levels of function transforms."""
INTERPRETED = TRANSFORMS | {
    *("torch._functorch.apis", "torch._functorch.functional_call", "torch._functorch.utils"),
    *("torch._functorch.predispatch", "torch._dynamo.mutation_guard", "torch._dynamo.comptime", MADE_BY_KILN),
    "torch.fx._pytree",
    *("torch.distributed.tensor._api", "torch.distributed.tensor.parallel.style"),
}
"""Modules of these packages that are interpreted."""
INTERPRETED_PARTS = {
    "torch.nn.attention.flex_attention": frozenset((
        *("create_block_mask", "_convert_mask_to_block_mask", "_create_sparse_block_from_block_mask", "BlockMask"),
        *("_dense_to_ordered", "_ordered_to_dense", "_transpose_ordered", "_broadcast_to_dim"),
        *("_round_up_to_multiple", "_get_mod_type", "noop_mask", "and_masks", "or_masks"),
    )),
    "torch.jit._trace": frozenset(("is_tracing", "_script_if_tracing")),
    "torch._higher_order_ops.invoke_subgraph": frozenset(("mark_compile_region",)),
    "torch.export._unlift": frozenset(("_create_stateful_graph_module", "_check_input_constraints_pre_hook")),
    "torch._export.non_strict_utils": frozenset((
        "_enter_enable_graph_inputs_of_type_nn_module", "_exit_enable_graph_inputs_of_type_nn_module",
    )),
    "torch._dynamo.external_utils": frozenset(("wrap_dunder_call_ctx_manager", "is_compiling")),
    "torch._dynamo.decorators": frozenset((
        *("error_on_graph_break", "ErrorOnGraphBreakDecoratorContextManager"),
        *("override_cudagraphs", "CudagraphOverrideContextManager"),
    )),
    "torch.fx.experimental.symbolic_shapes": frozenset((
        *("guard_or_false", "guard_or_true", "_guard_or", "guard_size_oblivious", "guard_scalar", "guard_bool"),
        *("statically_known_true", "statically_known_false", "sym_and", "sym_or", "sym_eq", "guard_int", "guard_float"),
        *("is_concrete_int", "is_concrete_float", "is_concrete_bool", "has_static_value"),
    )),
}  # fmt: skip
"""Module -> functions and classes in it that are interpreted: in eager they do what they say with plain values."""


def why_opaque(function: FunctionType) -> str:
    """Why `function` is called and not interpreted; `""` if it is."""
    module = str(function.__globals__.get("__name__"))
    if module == "weakref" and function.__qualname__.startswith("finalize."):
        return "it reads the registry of all finalizers"  # in which the compiler has some
    if not module.startswith(("torch.", "kiln.")) or module in INTERPRETED:
        return ""
    names = function.__qualname__, function.__code__.co_qualname  # a wrapper has the former from what it wraps
    if not INTERPRETED_PARTS.get(module, frozenset()).isdisjoint(name.partition(".")[0] for name in names):
        return ""
    return next((why for package, why in OPAQUE.items() if f"{module}.".startswith(f"{package}.")), "")
