"""What one capture knows of attributes besides the objects that have them."""

from __future__ import annotations

from dataclasses import field
from typing import final

from kiln.capture.interpreter.core import Value
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.support.records import dataclass


@final
@dataclass
class AttributeTables:
    """By `id` of a value that is kept alive."""

    reads: dict[tuple[int, str], tuple[Value, Value]] = field(default_factory=dict)
    """Results of the program's `__getattribute__`, with the object, which keeps its `id` taken."""
    instance_dicts: dict[int, Dict] = field(default_factory=dict)
