"""Code objects: reading (`decode`), analysing (`liveness`), editing and writing (`assemble`, `resume`).

Each CPython version has one table file (`v311.py`, `v312.py`, ...); a new version adds a file and a line in
`versions.TABLES`. Written code is assembled with the library `bytecode` (see docs/decisions.md).
"""
