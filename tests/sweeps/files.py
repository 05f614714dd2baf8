"""Files of programs and packages with changes in them: refused by a documented error, or equal, and no crash.

A case is one changed file. Its bytes are changed anywhere; or one value in the JSON of its manifest, or in a program
the text of its graph, so that only the checks of what it says are left. Such a file may be another program: it may
raise what a step raises on arguments that do not fit. Machine code and what the executor reads are covered by digests
alone: whoever can make those right can run code.
"""

from __future__ import annotations

import functools
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import kiln
from kiln.packages.errors import DamagedPackage, ForeignPackage
from kiln.programs.call.errors import DamagedProgram
from kiln.programs.file_reader import program_from_bytes, read_members
from kiln.programs.file_writer import program_bytes
from tests.packages.samples import manifest_of, with_manifest
from tests.packages.test_package_files import REFUSED, samples
from tests.programs.test_files import OTHER, changed, classifier, mutations, paths, repacked
from tests.sweeps.runner import Finding, Note

Run = Callable[[], Any]


class FileSweep:
    """Case n changes the file of kind n % 5 by the random numbers of seed n."""

    @functools.cached_property
    def folder(self) -> Path:
        return Path(tempfile.mkdtemp())

    @functools.cached_property
    def packages(self) -> list[Any]:
        return list(samples(self.folder))

    @functools.cached_property
    def program(self) -> tuple[bytes, Run, Any]:
        program = classifier()
        x, mask = torch.randn(5, 16), torch.randn(5, 8)
        return program_bytes(program), lambda loaded: loaded(x, mask=mask)["logits"], program(x, mask=mask)["logits"]

    def total(self) -> int:
        return 1 << 40

    def run(self, number: int, note: Note) -> list[Finding]:
        kind = ("program", "program manifest", "program graph", "package", "package manifest")[number % 5]
        draw = random.Random(number)
        note(kind, f"case {number}")
        whole = " " not in kind
        if kind.startswith("program"):
            data, call, expected = self.program
            load = functools.partial(program_from_bytes, self.changed_program(data, kind, draw))
        else:
            path, call, expected = draw.choice(self.packages)
            load = functools.partial(kiln.load, self.changed_package(path, whole, draw), trust=True, check_weights=True)
        try:
            loaded = load()
        except (DamagedProgram, DamagedPackage, ForeignPackage):
            return [Finding(kind, "native", "")]
        except Exception as error:
            return [Finding(kind, "unnamed error", f"{type(error).__name__}: {error}"[:300], f"case {number}")]
        try:
            found = call(loaded)
        except REFUSED as error:
            return (
                [Finding(kind, "error", str(error)[:300], f"case {number}")] if whole else [Finding(kind, "native", "")]
            )
        if whole and not torch.equal(found, expected):
            return [Finding(kind, "values", "", f"case {number}")]
        return [Finding(kind, "native", "")]

    def changed_program(self, data: bytes, kind: str, draw: random.Random) -> bytes:
        if kind == "program":
            return mutations(data, 1, draw.getrandbits(32))[0]
        members = read_members(data)
        if kind == "program graph":
            return repacked(data, graph=mutations(members["graph.txt"], 1, draw.getrandbits(32))[0])
        return repacked(data, manifest=json.dumps(self.other(json.loads(members["manifest.json"]), draw)))

    def changed_package(self, path: Path, whole: bool, draw: random.Random) -> Path:
        to = self.folder / "changed"
        if not whole:
            return with_manifest(path, self.other(manifest_of(path), draw), to)
        to.write_bytes(mutations(path.read_bytes(), 1, draw.getrandbits(32))[0])
        return to

    def other(self, document: Any, draw: random.Random) -> Any:
        """With one or two values replaced: by another kind of value, or by another one of the document."""
        for _ in range(draw.choice((1, 1, 2))):
            places = paths(document)
            place = draw.choice(places[1:])
            given = document
            for key in draw.choice(places):
                given = given[key]
            document = changed(document, place, draw.choice((draw.choice(OTHER), given)))
        return document
