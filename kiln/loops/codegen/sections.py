"""Functions that generated kernels call, in files of sections; a kernel includes those it uses.

    //@ exp: mad pow2                   sections = Sections.read(folder, "*.h", "//@")
    KILN_INLINE f32v exp(...)           sections.used(["v1", "exp", "v0"])     mad, pow2, exp

A section begins with a line: the mark, its name, and the sections that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import final

from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True)
class Section:
    """Part of a prelude. `needs`: names of the sections that it calls."""

    name: str
    needs: tuple[str, ...]
    text: str


@final
@dataclass(frozen=True, slots=True)
class Sections:
    """All sections of a prelude, in the order of the files. `owners`: which section defines a name."""

    by_name: Mapping[str, Section]
    owners: Mapping[str, str]

    @staticmethod
    def read(folder: Path, glob: str, mark: str, defined: Callable[[str], Iterable[str]] = lambda text: ()) -> Sections:
        """The sections of all files like `glob`; each defines its own name and what `defined` finds in its text."""
        head = re.compile(rf"^{re.escape(mark)} (\w+)(?:: (.*))?$", re.MULTILINE)
        found: dict[str, Section] = {}
        for path in sorted(folder.glob(glob)):
            parts = head.split(path.read_text())[1:]
            for name, needs, text in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
                found[name] = Section(name, tuple((needs or "").split()), text.strip())
        owners = {name: item.name for item in found.values() for name in (item.name, *defined(item.text))}
        return Sections(found, owners)

    def used(self, words: Iterable[str]) -> list[Section]:
        """The sections that define some of `words`, each after those that it needs."""
        order: dict[str, None] = {}

        def need(name: str) -> None:
            if name not in order:
                for other in self.by_name[name].needs:
                    need(other)
                order[name] = None

        for word in dict.fromkeys(words):
            if word in self.owners:
                need(self.owners[word])
        return [self.by_name[name] for name in order]
