"""The names of the inputs of a region: the argument's, or made from the path.

x                            x
self.encoder.layers[0].w     self_encoder_layers_0_w
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import final

from kiln.runtime.guards.source import DictAttrSource, ItemSource, LocalSource, Source
from kiln.support.records import dataclass

WORDS = re.compile(r"\w+")
NOISE = frozenset(("__dict__", "_parameters", "_modules", "_buffers"))


@final
@dataclass
class InputNames:
    """The names that the inputs of one capture have."""

    taken: dict[str, int] = field(default_factory=dict)
    """How often each was used."""
    words: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The words of a path, by the `id` of its source."""

    def name(self, source: Source) -> str:
        base = source.name if isinstance(source, LocalSource) else "_".join(self.words_of(source))
        self.taken[base] = self.taken.get(base, -1) + 1
        return f"{base}_{self.taken[base]}" if self.taken[base] else base

    def words_of(self, source: Source) -> tuple[str, ...]:
        """The meaningful words of a path; many inputs share a base."""
        found = self.words.get(id(source))
        if found is None:
            if isinstance(source, DictAttrSource | ItemSource):
                own = source.name if isinstance(source, DictAttrSource) else repr(source.key)
                before = self.words_of(source.base)
            else:
                own, before = source.text(), ()
            found = self.words[id(source)] = (*before, *[part for part in WORDS.findall(own) if part not in NOISE])
        return found
