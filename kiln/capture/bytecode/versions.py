"""The tables of the CPython versions that Kiln knows, and that of the running one."""

from __future__ import annotations

import sys

from kiln.capture.bytecode import v311, v312, v313, v314
from kiln.capture.bytecode.table import Spelling, VersionTable

_KNOWN = (v311.TABLE, v312.TABLE, v313.TABLE, v314.TABLE)
TABLES: dict[tuple[int, int], VersionTable] = {table.version: table for table in _KNOWN}
_UNKNOWN = VersionTable(sys.version_info[:2], {}, Spelling())
TABLE = TABLES.get(sys.version_info[:2], _UNKNOWN)
"""Of the running CPython. On an unknown one it has no opcodes, and programs run eager."""
