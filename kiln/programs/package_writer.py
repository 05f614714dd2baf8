"""`Program.package`: compiles a program and writes it as a file that runs without the compiler.

    program.package("m.kiln")                        for this machine
    program.package("m.kiln", target="cpu:x86-64-v3")

`packages/manifest.py` describes the file.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import cast, final

import torch

from kiln.build.cubins import start_cubins
from kiln.build.limits import CompileLimits
from kiln.build.one_library import one_library
from kiln.packages.archive import PackageWriter
from kiln.packages.machine import LEVELS, TARGETS, PackageTarget, parse_target, requirements
from kiln.packages.manifest import (
    ALIGNMENT,
    CONSTANTS,
    CUBIN,
    LIBRARY,
    MANIFEST,
    PLAN,
    PROGRAM,
    SIGNATURE,
    WEIGHTS,
    Manifest,
    digest_of,
    signature_of,
)
from kiln.pipeline.context import CompileContext
from kiln.pipeline.reproduce import plain_context
from kiln.pipeline.stages import graph_to_plan
from kiln.pipeline.targets import region_target
from kiln.plan.encode import encode_program
from kiln.plan.plan import Plan, PlanOutput, Step
from kiln.plan.serialize import encode_plan
from kiln.plan.steps import CheckStep
from kiln.programs.call.errors import BadExportArgument, NotSavable
from kiln.programs.call.shapes import ShapeRules
from kiln.programs.call.tensors import tensor_file
from kiln.programs.program_parts import ProgramParts
from kiln.runtime.kernels import Cubin
from kiln.support.options import Options
from kiln.support.records import dataclass
from kiln.support.replaced_file import replaced_file
from kiln.symbolic import Expr, Int, Relation, ShapeEnv, rel_le, symbol
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program's plan and machine code. `sizes` are outputs of the plan behind those of the graph."""

    plan: Plan
    sizes: tuple[Int, ...]
    library: bytes
    cubins: Mapping[str, Cubin]


def package_program(
    program: ProgramParts,
    path: str | os.PathLike[str],
    target: str,
    key: bytes | None,
    options: Options,
) -> str:
    """Compile and write; returns the digest. What was there stays if that fails. Raises KilnError."""
    wanted = parse_target(target)
    if wanted is None:
        raise BadExportArgument(name="target", value=target, allowed=", ".join(TARGETS))
    compiled = compile_program(program, wanted, plain_context(options))
    with replaced_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        return write_package(PackageWriter(archive), program, compiled, wanted, key)


def compile_program(program: ProgramParts, target: PackageTarget, context: CompileContext) -> CompiledProgram:
    """All stages. Raises KilnError."""
    host = context.host
    if target.level:
        width = LEVELS[target.level][0]
        host = replace(host, vector_bytes=width, isa=target.level)
    gpu = region_target(program.graph, host)
    if (gpu.capability if gpu.is_gpu else None) != target.capability:
        allowed = "cuda:sm_{}{}".format(*gpu.capability) if gpu.is_gpu else ", ".join(TARGETS[:-1])
        raise BadExportArgument(name="target", value=str(target), allowed=f"{allowed} for this program")
    plan, sizes = plan_program(program, replace(context, host=host))
    limits = CompileLimits(context.options.compile_seconds, context.options.compile_megabytes)
    workers = context.options.compile_workers
    cubins = start_cubins(plan.kernels, context.store, context.events, workers, limits)
    library = b""
    if any(kernel.language == "cpp" for kernel in plan.kernels):
        library = one_library(plan.kernels, context.store, limits, workers or os.cpu_count() or 1, target.level)
    return CompiledProgram(plan, sizes, library, cubins.wait())


def plan_program(program: ProgramParts, context: CompileContext) -> tuple[Plan, tuple[Int, ...]]:
    """The plan for `context.host`, which checks sizes first; the sizes that are its last outputs. Raises KilnError."""
    interface = program.interface
    env = shape_env(interface.rules)
    plan = graph_to_plan(program.graph, replace(context, target=context.host, env=env))
    inputs = [replace(given, name=name) for given, name in zip(plan.inputs, interface.names, strict=True)]
    values = [leaf.value for leaf in interface.signature.results if leaf.kind == "size"]
    sizes = tuple(dict.fromkeys([value for value in values if isinstance(value, Expr)]))
    outputs = (*plan.outputs, *[PlanOutput(value=size) for size in sizes])
    steps = (*size_checks(interface.rules), *plan.steps)
    return replace(plan, name=program.name, inputs=tuple(inputs), outputs=outputs, steps=steps), sizes


def shape_env(rules: ShapeRules) -> ShapeEnv:
    """What is known of the sizes in every call; none of them has a hint."""
    env = ShapeEnv()
    for within in rules.ranges:
        env.create_unbacked(name=within.name, lo=within.low, hi=within.high)
    for constraint in rules.constraints:
        env.assume(constraint.relation, checked=True)
    return env


def size_checks(rules: ShapeRules) -> Iterator[Step]:
    """Steps that check what the sizes must satisfy, for callers that do not read the manifest."""
    for within in rules.ranges:
        size = symbol(within.name)
        for relation in (rel_le(within.low, size), rel_le(size, within.high) if within.high is not None else True):
            if isinstance(relation, Relation):
                yield CheckStep(relation, None, f"the package needs {within.text()}")
    for constraint in rules.constraints:
        yield CheckStep(constraint.relation, None, f"the package needs {constraint.text()}")


def write_package(
    writer: PackageWriter,
    program: ProgramParts,
    compiled: CompiledProgram,
    target: PackageTarget,
    key: bytes | None,
) -> str:
    """All members; returns the digest."""
    plan, interface = compiled.plan, program.interface
    constants = {key: program.constants[key] for key in plan.constants}
    specs = {key: TensorSpec(tensor.dtype, tuple(tensor.shape), tensor.stride(), 0, tensor.device)
             for key, tensor in constants.items()}  # fmt: skip
    manifest = Manifest(
        program.name,
        str(target),
        requirements(target, uses_cpu_code=bool(compiled.library)),
        interface,
        len(plan.outputs) - len(compiled.sizes),
        compiled.sizes,
        tuple(specs.items()),
        tuple(sorted({kernel.symbol for kernel in plan.kernels if kernel.language == "cpp"})),
        tuple(sorted(compiled.cubins)),
    )
    writer.add_bytes(PROGRAM, encode_program(plan))
    writer.add_bytes(PLAN, encode_plan(plan))
    if compiled.library:
        writer.add_bytes(LIBRARY, compiled.library)
    for kernel, cubin in sorted(compiled.cubins.items()):
        writer.add_bytes(CUBIN + kernel, cubin.encode())
    states = interface.signature.states
    rows = {state.name: interface.specs[number] for number, state in enumerate(states)}
    add_tensors(writer, WEIGHTS, {name: (program.state[name], cast(TensorSpec, spec)) for name, spec in rows.items()})
    add_tensors(writer, CONSTANTS, {name: (constants[name], spec) for name, spec in specs.items()})
    data = manifest.encode(writer.parts)
    writer.add_bytes(MANIFEST, data)
    if key is not None:
        writer.add_bytes(SIGNATURE, signature_of(data, key))
    return digest_of(data)


def add_tensors(writer: PackageWriter, member: str, tensors: Mapping[str, tuple[torch.Tensor, TensorSpec]]) -> None:
    memory = {name: memory_of(name, tensor, spec) for name, (tensor, spec) in tensors.items()}
    parts = tensor_file(memory, ALIGNMENT)
    head = next(parts)
    sizes = [tensor.numel() * tensor.itemsize for tensor in memory.values()]
    writer.add(member, chain([head], parts), len(head) + aligned_total(sizes))


def aligned_total(sizes: Sequence[int]) -> int:
    """Bytes of members of these sizes, each at a multiple of the alignment."""
    end = 0
    for size in sizes:
        end += -end % ALIGNMENT + size
    return end


def memory_of(name: str, tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor if its elements lie in row-major order; else its memory from first to last element, gaps as zeros."""
    if spec.is_contiguous() and spec.offset == 0:
        return tensor
    reach = spec.storage_elements()
    assert isinstance(reach, int)
    flat = torch.zeros(reach, dtype=tensor.dtype, device="cpu")
    plain = tensor.detach()
    for axis, stride in enumerate(tensor.stride()):
        plain = plain.narrow(axis, 0, 1) if stride == 0 and tensor.shape[axis] else plain
    try:
        flat.as_strided(plain.shape, plain.stride(), cast(int, spec.offset)).copy_(plain)
    except RuntimeError as problem:  # elements that share memory
        raise NotSavable(place=f"tensor `{name}`", type="tensor that overlaps itself") from problem
    return flat
