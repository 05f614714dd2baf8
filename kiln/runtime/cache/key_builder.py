"""Keys that can say why they differ.

    key = KeyBuilder("Net.forward").add("code", text).add("option dynamic", "auto").add("torch", "2.13.0")
    store.get("variant", key.digest())          # a miss
    explain_miss(store, key)                    # "option dynamic was 'never', is 'auto'"

A key is a list of named parts. The digest names the entry; the parts of the last stored key of each label are kept
beside it, so a miss can be compared with what was there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import final

from kiln.runtime.cache.store import DiskStore, content_key

LONGEST_SHOWN = 80  # characters of a part in an explanation


@final
class KeyBuilder:
    """Parts are added in any order; a name is added once. Values: text, numbers, None, and sequences of these."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.parts: dict[str, str] = {}

    def add(self, part: str, value: object) -> KeyBuilder:
        if part in self.parts:
            raise ValueError(f"part {part!r} of the key is added twice")
        self.parts[part] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        return self

    def digest(self) -> str:
        return content_key(*(text for part in sorted(self.parts) for text in (part, self.parts[part])))


def explain(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """One line per part that differs; empty when the keys are equal."""
    lines = [f"{part} is new" for part in sorted(new.keys() - old.keys())]
    lines += [f"{part} is gone" for part in sorted(old.keys() - new.keys())]
    for part in sorted(old.keys() & new.keys()):
        if old[part] != new[part]:
            lines.append(f"{part} was {_shown(old[part])}, is {_shown(new[part])}")
    return lines


def remember(store: DiskStore, key: KeyBuilder) -> None:
    """Keep the parts as the last ones stored under the label."""
    store.put("parts", content_key(key.label), json.dumps(key.parts, sort_keys=True).encode())


def explain_miss(store: DiskStore, key: KeyBuilder) -> str:
    """Why there is no entry for `key`, in a sentence."""
    data = store.get("parts", content_key(key.label))
    if data is None:
        return f"{key.label} was never stored"
    differences = explain(json.loads(data), key.parts)
    return "; ".join(differences) if differences else "the entry was removed or damaged"


def _shown(text: str) -> str:
    return repr(text) if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]!r}..."
