"""Reads fields of JSON that nobody vouches for: each is checked, and none may be left over.

fields = Fields(data, "input")
name = fields.text("name")
fields.finish()                 raises DamagedProgram if `data` has more
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar, Union, final

from kiln.programs.call.errors import DamagedProgram

Kind = TypeVar("Kind")
LARGEST = 1 << 48
"""Above all sizes of tensors."""
LARGEST_RANK = 64  # of a tensor in torch
Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]  # noqa: UP007


def read_json(data: bytes, place: str) -> Json:
    """The JSON of `data`. Raises DamagedProgram."""
    try:
        found: Json = json.loads(data.decode())
    except (ValueError, RecursionError) as problem:
        raise DamagedProgram(problem=f"{place} is not JSON") from problem
    return found


@final
class Fields:
    """The fields of a JSON object, taken one by one."""

    def __init__(self, data: Json, place: str) -> None:
        if not isinstance(data, dict):
            raise DamagedProgram(problem=f"{place} is not an object")
        self._data: dict[str, Json] = dict(data)
        self._place = place

    def take(self, name: str) -> Json:
        if name not in self._data:
            raise DamagedProgram(problem=f"{self._place} lacks `{name}`")
        return self._data.pop(name)

    def wrong(self, name: str, wanted: str) -> DamagedProgram:
        return DamagedProgram(problem=f"`{name}` of {self._place} is not {wanted}")

    def of_type(self, name: str, kind: type[Kind], wanted: str) -> Kind:
        value = self.take(name)
        if not isinstance(value, kind):
            raise self.wrong(name, wanted)
        return value

    def text(self, name: str) -> str:
        return self.of_type(name, str, "a text")

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        value = self.text(name)
        if value not in allowed:
            raise self.wrong(name, "one of " + ", ".join(allowed))
        return value

    def flag(self, name: str) -> bool:
        return self.of_type(name, bool, "true or false")

    def integer(self, name: str, below: int) -> int:
        """A number from 0 to `below - 1`."""
        value = self.take(name)
        if type(value) is not int or not 0 <= value < below:
            raise self.wrong(name, f"a number from 0 to {below - 1}")
        return value

    def optional_integer(self, name: str, below: int) -> int | None:
        if self._data.get(name, 0) is None:
            self.take(name)
            return None
        return self.integer(name, below)

    def items(self, name: str) -> Sequence[Json]:
        return self.of_type(name, list, "a list")

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple([self._a_text(name, item) for item in self.items(name)])

    def _a_text(self, name: str, value: Json) -> str:
        if not isinstance(value, str):
            raise self.wrong(name, "a list of texts")
        return value

    def finish(self) -> None:
        if self._data:
            raise DamagedProgram(problem=f"{self._place} has unknown fields: {', '.join(sorted(self._data))[:80]}")
