"""One Triton kernel from source to a cubin; needs neither torch nor a GPU.

    made = compile_source(source, symbol, meta)
    made["cubin"], made["shared_bytes"], made["trailing"]

`meta` is that of `kiln.plan.plan.Kernel`. The source is entered into `linecache`, where Triton's front end reads it,
under a name that is the same on every machine, since it becomes part of the cubin. Triton's stages run as in
`triton.compile`, but without its cache, whose keys hash all of Triton (as slow as ten kernels), and without its
launcher, which needs a C compiler and Python's headers.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Mapping
from typing import Any, final

from kiln.support.optional import load_required
from kiln.support.records import dataclass
from kiln.support.target import WARP

PURPOSE = "compiling kernels for a GPU"
OPTIONS = ("enable_fp_fusion", "maxnreg", "num_stages", "num_warps")
"""Entries of `meta` that are options of `triton.compile`."""
ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\(([^)]*)\)")


class UnsupportedLaunch(ValueError):
    """The compiled kernel needs a kind of launch that the executor does not have."""


def jit_function(source: str, symbol: str) -> Any:
    """The object that `source` defines as `symbol`: a `triton.JITFunction`, or an interpreted function."""
    name = f"kiln/{symbol}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, object] = {"__name__": f"kiln_kernel_{symbol}", "__file__": name}
    try:
        exec(compile(source, name, "exec"), namespace)
    finally:
        linecache.cache.pop(name, None)
    return namespace[symbol]


def compile_source(source: str, symbol: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The cubin for devices of the kernel's capability and what a launch needs to know of it.

    Raises MissingPackage without Triton, UnsupportedLaunch, and what Triton raises for a source that it refuses.
    """
    triton: Any = load_required("triton", purpose=PURPOSE)
    function = jit_function(source, symbol)
    constants = dict(meta.get("constants", ()))
    types = list(meta["signature"])
    names = [name for name in function.arg_names if name not in constants]
    if len(names) != len(types):
        raise UnsupportedLaunch(f"the kernel has parameters {names} and a signature of {len(types)} types")
    signature = {**dict(zip(names, types, strict=True)), **dict.fromkeys(constants, "constexpr")}
    positions = [function.arg_names.index(names[position]) for position in meta.get("divisible", ())]
    attributes = {(position,): [["tt.divisibility", 16]] for position in positions}
    ordered = {name: signature[name] for name in function.arg_names}
    made = run_stages(
        triton.compiler.ASTSource(function, ordered, constants, attributes),
        triton.backends.compiler.GPUTarget("cuda", meta["capability"], WARP),
        {key: meta[key] for key in OPTIONS if key in meta},
    )
    return facts(made, len(types))


@final
@dataclass(frozen=True, slots=True)
class Made:
    """Triton's result: the metadata of its stages, PTX and cubin."""

    metadata: Mapping[str, object]
    ptx: str
    cubin: bytes


def run_stages(source: object, target: object, options: Mapping[str, object]) -> Made:
    """`source` through all stages. If that fails, `triton.compile` runs: it raises the error that a user should read,
    and works for versions with other interfaces of the stages.
    """
    try:
        return without_cache(source, target, options)
    except Exception:
        compiled = load_required("triton", purpose=PURPOSE).compile(source, target=target, options=dict(options))
        return Made(compiled.metadata._asdict(), compiled.asm["ptx"], compiled.asm["cubin"])


def without_cache(source: Any, target: object, options: Mapping[str, object]) -> Made:
    """What `triton.compile` of Triton 3.6 and 3.7 does between reading and writing its cache."""
    compiler = load_required("triton", purpose=PURPOSE).compiler.compiler
    backend = compiler.make_backend(target)
    parsed = backend.parse_options({**options, **source.parse_options()})
    metadata: dict[str, object] = {"target": target, **parsed.__dict__}
    context = compiler.ir.context()
    compiler.ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Callable[[object, dict[str, object]], object]] = {}
    backend.add_stages(stages, parsed, source.language)
    form = source.make_ir(target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context)
    texts: dict[str, Any] = {}
    for name, run in stages.items():
        form = texts[name] = run(form, metadata)
    return Made(metadata, texts["ptx"], texts["cubin"])


def facts(made: Made, num_parameters: int) -> dict[str, object]:
    """What is kept of Triton's result. Newer Tritons append pointers to the parameters: scratch memory, profiling."""
    entry, metadata = ENTRY.search(made.ptx), made.metadata
    if entry is None:
        raise UnsupportedLaunch("the compiled kernel has no entry")
    trailing = entry.group(2).count(".param") - num_parameters
    if trailing < 0:
        raise UnsupportedLaunch(f"the compiled kernel takes {-trailing} parameters less than its signature")
    for name, usual in (("num_ctas", 1), ("launch_cooperative_grid", False), ("profile_scratch_size", 0)):
        if metadata.get(name, usual) != usual:
            raise UnsupportedLaunch(f"the compiled kernel has {name} = {metadata[name]}")
    return {
        "entry": entry.group(1),
        "num_warps": metadata["num_warps"],
        "shared_bytes": metadata["shared"],
        "scratch_bytes": metadata.get("global_scratch_size") or 0,
        "trailing": trailing,
        "cubin": made.cubin,
    }
