"""What a package says of itself: the member `manifest.json`.

A package is a zip without compression, whose members begin at multiples of 64 bytes:

    manifest.json           inputs, sizes, results, requirements; the length and digest of every other member
    program.bin             the plan as the native executor reads it
    plan.json               the plan, to be read, or compiled for another machine
    kernels.so              the C++ kernels, if there are any
    cubin/NAME              the kernels of a GPU
    weights.safetensors     parameters and buffers, mapped
    constants.safetensors   other tensors of the plan, mapped
    signature               HMAC of the manifest with the key of its maker, if there is one

The digest of a package is that of its manifest: it covers all members. JSON fields are checked one by one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import final

from kiln.packages.errors import DamagedPackage
from kiln.packages.machine import Requirements, requirements_from_json
from kiln.programs.call.fields import LARGEST, Fields, Json, read_json
from kiln.programs.call.interface import CallInterface
from kiln.programs.call.shapes import rules_from_fields
from kiln.programs.call.signature import signature_from_json
from kiln.programs.call.specs import spec_from_json, spec_to_json
from kiln.support.records import dataclass
from kiln.symbolic import Int, parse_int
from kiln.tensor.spec import ScalarSpec, TensorSpec

KIND, VERSION = "kiln.package", 1
MANIFEST, PROGRAM, PLAN, LIBRARY = "manifest.json", "program.bin", "plan.json", "kernels.so"
WEIGHTS, CONSTANTS, SIGNATURE, CUBIN = "weights.safetensors", "constants.safetensors", "signature", "cubin/"
NEEDED = (PROGRAM, PLAN, WEIGHTS, CONSTANTS)
ALIGNMENT = 64
DIGEST_BYTES = 32


@final
@dataclass(frozen=True, slots=True)
class Part:
    """Length and digest of a member."""

    length: int
    digest: str


@final
@dataclass(frozen=True, slots=True)
class Manifest:
    """`outputs` counts those of the program's graph; behind them the plan returns `sizes`, those among the
    results. `constants` are specs by key, in the order of the plan.
    """

    name: str
    target: str
    requirements: Requirements
    interface: CallInterface
    outputs: int
    sizes: tuple[Int, ...]
    constants: tuple[tuple[str, TensorSpec], ...]
    kernels: tuple[str, ...]
    cubins: tuple[str, ...]

    def encode(self, parts: Mapping[str, Part]) -> bytes:
        interface = self.interface
        document: dict[str, Json] = {
            "kind": KIND,
            "version": VERSION,
            "name": self.name,
            "target": self.target,
            "requirements": self.requirements.to_json(),
            "signature": interface.signature.to_json(),
            **interface.rules.to_json(),
            "inputs": [
                {"name": name, "spec": spec_to_json(spec)}
                for name, spec in zip(interface.names, interface.specs, strict=True)
            ],
            "written": list(interface.written),
            "shared": list(interface.shared),
            "outputs": self.outputs,
            "sizes": [str(size) for size in self.sizes],
            "constants": [{"name": key, "spec": spec_to_json(spec)} for key, spec in self.constants],
            "kernels": list(self.kernels),
            "cubins": list(self.cubins),
            "parts": {name: {"length": part.length, "digest": part.digest} for name, part in parts.items()},
        }
        return json.dumps(document, indent=1).encode()


def read_manifest(data: bytes, *, plain: bool = False) -> tuple[Manifest, dict[str, Part]]:
    """Inverse of `Manifest.encode`; `plain`: without registered classes.

    Raises DamagedPackage, DamagedProgram, ForeignPackage.
    """
    fields = Fields(read_json(data, MANIFEST), MANIFEST)
    if fields.text("kind") != KIND:
        raise DamagedPackage(problem="it is another kind of file")
    if (version := fields.integer("version", 1 << 16)) != VERSION:
        raise DamagedPackage(problem=f"its format has version {version}, this is version {VERSION}")
    needed = requirements_from_json(fields.take("requirements"))
    needed.check()  # the rest may be that of another version
    inputs = [_named_spec(item) for item in fields.items("inputs")]
    outputs = fields.integer("outputs", LARGEST)
    interface = CallInterface(
        signature_from_json(fields.take("signature"), len(inputs), outputs, plain=plain),
        rules_from_fields(fields),
        tuple([name for name, _ in inputs]),
        tuple([spec for _, spec in inputs]),
        _numbers(fields, "written", len(inputs)),
        _numbers(fields, "shared", len(inputs)),
    )
    constants = [_named_spec(item) for item in fields.items("constants")]
    made = Manifest(
        fields.text("name"),
        fields.text("target"),
        needed,
        interface,
        outputs,
        tuple([parse_int(text) for text in fields.texts("sizes")]),
        tuple([(key, spec) for key, spec in constants if isinstance(spec, TensorSpec)]),
        fields.texts("kernels"),
        fields.texts("cubins"),
    )
    parts = _parts(fields.take("parts"))
    fields.finish()
    interface.bound_symbols()
    wanted = {leaf.value for leaf in interface.signature.results if leaf.kind == "size"}
    if wanted - {int(leaf) for leaf in wanted if isinstance(leaf, int)} != set(made.sizes):
        raise DamagedPackage(problem="its plan does not return the sizes among its results")
    expected = {*NEEDED, *[CUBIN + name for name in made.cubins], *([LIBRARY] if made.kernels else [])}
    if len(made.constants) != len(constants) or parts.keys() != expected:
        raise DamagedPackage(problem="its parts are not those of its program")
    return made, parts


def _named_spec(data: Json) -> tuple[str, TensorSpec | ScalarSpec]:
    fields = Fields(data, "an input")
    made = fields.text("name"), spec_from_json(fields.take("spec"))
    fields.finish()
    return made


def _numbers(fields: Fields, name: str, below: int) -> tuple[int, ...]:
    found: list[int] = []
    for number in fields.items(name):
        if type(number) is not int or not 0 <= number < below:
            raise DamagedPackage(problem=f"`{name}` has {str(number)[:40]}, which is no input")
        found.append(number)
    return tuple(found)


def _parts(data: Json) -> dict[str, Part]:
    if not isinstance(data, dict):
        raise DamagedPackage(problem="`parts` is not an object")
    found: dict[str, Part] = {}
    for name, row in data.items():
        fields = Fields(row, f"part {str(name)[:40]!r}")
        found[str(name)] = Part(fields.integer("length", LARGEST), fields.text("digest"))
        fields.finish()
    return found


def digest_of(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def signature_of(manifest: bytes, key: bytes) -> bytes:
    """A message authentication code. A key of any length serves."""
    return hmac.digest(key, manifest, "blake2b")
