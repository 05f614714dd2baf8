"""`kiln.load`: runs a package in this process, without the compiler.

    model = kiln.load("m.kiln")
    model(x)

The manifest and all machine code are compared with their digests before anything is mapped or loaded; weights are data
and mapped as they are, unless a digest or key is given. docs/security.md says what loading trusts.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from typing import cast, final

import torch

from kiln.native._executor import Executor
from kiln.packages.archive import PackageArchive, open_archive
from kiln.packages.errors import DamagedPackage, ForeignPackage, UntrustedPackage
from kiln.packages.machine import PackageTarget, parse_target
from kiln.packages.manifest import (
    CONSTANTS,
    CUBIN,
    LIBRARY,
    MANIFEST,
    PLAN,
    PROGRAM,
    SIGNATURE,
    WEIGHTS,
    Manifest,
    Part,
    digest_of,
    read_manifest,
    signature_of,
)
from kiln.plan.serialize import decode_plan
from kiln.plan.text import plan_text
from kiln.programs.call.errors import DamagedProgram
from kiln.programs.call.interface import CallInterface
from kiln.programs.call.tensors import stored_tensor, tensor_places
from kiln.runtime.executor import Explain, load_executor
from kiln.runtime.kernels import Cubin, Libraries, MissingKernel
from kiln.runtime.loader import loadable_file
from kiln.support.errors import KilnError
from kiln.support.records import dataclass
from kiln.support.replaced_file import remove_file
from kiln.tensor.spec import TensorSpec


def load_package(
    path: str | os.PathLike[str],
    *,
    digest: str | None = None,
    key: bytes | None = None,
    trust: bool = False,
    check_weights: bool | None = None,
    plain: bool = False,
) -> PackagedProgram:
    """The program of a file that `Program.package` wrote.

    A package is machine code: loading it is like importing a module. Without `digest`, `key` and `trust` it is loaded
    only if nobody but this user or root can have written the file.

    Args:
        path: the file. It stays mapped: replace it by renaming another over it, do not write to it.
        digest: what `Program.package` returned; another package is refused.
        key: the secret that `Program.package` was given; a package without its signature is refused.
        trust: load it whoever wrote it.
        check_weights: compare the weights with their digest too, which reads all of them (default: if `digest` or
            `key` is given).
        plain: results come in dicts and tuples instead of classes of other libraries, which need not be imported.

    Raises:
        UntrustedPackage: nobody vouches for the file.
        ForeignPackage: it was made for another machine, torch or Kiln.
        DamagedPackage: what is wrong with the file.
    """
    is_named = digest is not None or key is not None
    with open_archive(path, is_trusted=trust or is_named) as archive:
        return read_package(archive, digest, key, is_named if check_weights is None else check_weights, plain)


def read_package(
    archive: PackageArchive, digest: str | None, key: bytes | None, compare: bool, plain: bool
) -> PackagedProgram:
    """The program of an open package. Raises what `load_package` does."""
    try:
        data = trusted_manifest(archive, digest, key)
        manifest, parts = read_manifest(data, plain=plain)
        return packaged_program(manifest, read_parts(archive, parts, check_weights=compare))
    except DamagedProgram as problem:
        raise DamagedPackage(problem=problem.details["problem"]) from problem
    except MissingKernel as problem:
        raise DamagedPackage(problem=problem.reason) from problem
    except KilnError:
        raise
    except (MemoryError, RecursionError) as problem:
        raise DamagedPackage(problem="it is nested too deeply, or too large") from problem
    except (ValueError, TypeError, KeyError, AttributeError, SyntaxError, IndexError, ArithmeticError) as problem:
        raise DamagedPackage(problem=f"{type(problem).__name__}: {problem}"[:200]) from problem


def trusted_manifest(archive: PackageArchive, digest: str | None, key: bytes | None) -> bytes:
    """The manifest, if it is the one that `digest` and `key` vouch for."""
    data = archive.read(MANIFEST)
    if digest is not None and not hmac.compare_digest(digest_of(data), digest.lower()):
        raise UntrustedPackage(problem=f"its digest is {digest_of(data)}, not the one that was given")
    if key is not None:
        if SIGNATURE not in archive:
            raise UntrustedPackage(problem="it is not signed")
        if not hmac.compare_digest(signature_of(data, key), archive.read(SIGNATURE)):
            raise UntrustedPackage(problem="its signature was made with another key, or for another package")
    return data


Members = Mapping[str, bytes | memoryview]


def read_parts(archive: PackageArchive, parts: Mapping[str, Part], *, check_weights: bool) -> Members:
    """The members, if they are those of the manifest; weights are mapped. Raises DamagedPackage."""
    if archive.names() - {SIGNATURE} != {MANIFEST, *parts}:
        raise DamagedPackage(problem="its members are not those that its manifest names")
    found: dict[str, bytes | memoryview] = {}
    for name, part in parts.items():
        is_code = name not in (WEIGHTS, CONSTANTS)
        data = archive.read(name) if is_code else archive.map(name)
        if len(data) != part.length or ((is_code or check_weights) and digest_of(data) != part.digest):
            raise DamagedPackage(problem=f"its member {name[:80]!r} has other contents than its manifest says")
        found[name] = data
    return found


def packaged_program(manifest: Manifest, members: Members) -> PackagedProgram:
    """The program, with its machine code loaded."""
    target = parse_target(manifest.target)
    if target is None:
        raise DamagedPackage(problem=f"its target {manifest.target[:40]!r} is unknown")
    check_device(target)
    interface = manifest.interface
    count = len(interface.signature.states)
    rows = zip(interface.names[:count], interface.specs[:count], strict=True)
    state = mapped_tensors(members, WEIGHTS, {name: spec for name, spec in rows if isinstance(spec, TensorSpec)})
    if len(state) != count:
        raise DamagedPackage(problem="a parameter or buffer is a number, or two have one name")
    constants = mapped_tensors(members, CONSTANTS, dict(manifest.constants))
    libraries = loaded_kernels(members, manifest)
    explain = Explain(manifest.name, interface.names, libraries)
    ordered = [constants[key] for key, _ in manifest.constants]
    executor = load_executor(bytes(members[PROGRAM]), libraries, ordered, explain)
    return PackagedProgram(manifest.name, manifest.target, interface, state, executor, manifest, bytes(members[PLAN]))


def check_device(target: PackageTarget) -> None:
    """Raise ForeignPackage where no GPU of this process runs the package."""
    if target.capability is None:
        return
    found = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    if not any(major == target.capability[0] and minor >= target.capability[1] for major, minor in found):
        shown = ", ".join("sm_{}{}".format(*each) for each in found) or "no GPU"
        raise ForeignPackage(kind="machine", needed=f"a GPU for {target}", found=shown)


def loaded_kernels(members: Members, manifest: Manifest) -> Libraries:
    """The kernels as functions. The library is copied: its file could change while it is mapped."""
    cubins = {symbol: Cubin.decode(bytes(members[CUBIN + symbol])) for symbol in manifest.cubins}
    if not manifest.kernels:
        return Libraries({}, (), cubins)
    path = loadable_file(bytes(members[LIBRARY]))
    try:
        return Libraries(dict.fromkeys(manifest.kernels, path), (), cubins)
    except OSError as problem:
        raise DamagedPackage(problem=f"its kernels cannot be loaded ({problem})") from problem
    finally:
        remove_file(path)


def mapped_tensors(members: Members, member: str, specs: Mapping[str, TensorSpec]) -> dict[str, torch.Tensor]:
    """The tensors of a member in the layouts of `specs`, in the memory of the file."""
    data = memoryview(members[member])
    places, start = tensor_places(data)
    found = {place.name: stored_tensor(place, data[start:]) for place in places if place.name in specs}
    if found.keys() != specs.keys():
        raise DamagedPackage(problem=f"the tensors of {member} are not those of its program")
    return {name: laid_out(name, found[name], spec) for name, spec in specs.items()}


def laid_out(name: str, stored: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The stored memory as a tensor. Raises DamagedPackage."""
    flat = stored.reshape(-1)
    if spec.dtype.is_complex and flat.dtype.is_floating_point and flat.numel() % 2 == 0:
        flat = flat.view(spec.dtype)
    layout = (*spec.sizes, *spec.strides, spec.offset)
    if flat.dtype != spec.dtype or not all(type(number) is int and number >= 0 for number in layout):
        raise DamagedPackage(problem=f"tensor {name[:40]!r} is not {spec}")
    if flat.numel() != spec.storage_elements():
        raise DamagedPackage(problem=f"tensor {name[:40]!r} has {flat.numel()} elements, not those of {spec}")
    sizes, strides = cast(tuple[int, ...], spec.sizes), cast(tuple[int, ...], spec.strides)
    return on_device(flat, spec.device).as_strided(sizes, strides, cast(int, spec.offset))


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Weights on a GPU are copies."""
    return tensor.to(device)


@final
@dataclass(frozen=True, slots=True)
class PackagedProgram:
    """Made by `kiln.load`. It computes without autograd, and may be called by many threads at once.

    `state` has its parameters and buffers by name; a call changes buffers in memory, never in the file.
    """

    name: str
    target: str
    interface: CallInterface
    state: dict[str, torch.Tensor]
    executor: Executor
    manifest: Manifest
    plan: bytes

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run it. Raises WrongProgramInput before anything is computed."""
        interface = self.interface
        leaves = interface.leaves(args, kwargs)
        bound = interface.bind(leaves)
        states = list(self.state.values())
        inputs = interface.inputs(states, leaves, bound)
        with torch.no_grad():
            outputs = self.executor(*inputs)
        count = self.manifest.outputs
        sizes = dict(zip(self.manifest.sizes, outputs[count:], strict=True))
        return interface.results(leaves, states, outputs, lambda size: sizes.get(size, size))

    def check_shapes(self, *args: object, **kwargs: object) -> dict[str, int]:
        """The sizes that the symbols stand for in this call; nothing runs. Raises WrongProgramInput."""
        return self.interface.check_shapes(args, kwargs)

    @property
    def constraints(self) -> list[str]:
        """What the sizes of the arguments must satisfy, a line each."""
        return self.interface.rules.lines()

    @property
    def mutated(self) -> list[str]:
        """The names of buffers and arguments that a call changes."""
        return [self.interface.names[number] for number in self.interface.written]

    def text(self) -> str:
        """The plan that it runs."""
        return plan_text(decode_plan(self.plan))

    def __repr__(self) -> str:
        return f"PackagedProgram({self.name}, {self.target}; takes {self.interface.signature.call_text()})"
