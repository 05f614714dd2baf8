"""What the benchmark and its worker processes exchange as JSON."""

from __future__ import annotations

from typing import Literal, TypedDict


class Task(TypedDict, total=False):
    """`first`: one candidate's first call with empty caches. `steady`: calls of all, in random order, and errors.

    `export`: programs and packages, with `calls` of each package.
    """

    task: Literal["first", "steady", "export"]
    suite: str
    row: str
    train: bool
    step: bool
    threads: int
    cores: list[int]
    mode: str | None
    candidate: str
    candidates: list[str]
    pairs: int
    seeds: int
    small: bool
    calls: int


class Errors(TypedDict, total=False):
    """Shares of the allowed error: over all seeds, of the worst seed, of eager against itself."""

    ratio: float
    l2: float
    eager_l2: float
    place: int
    one_seed: float
    one_seed_place: int
    eager_one_seed: float


class Finding(TypedDict, total=False):
    """What a step found, or why the process ended (`failure`, with all of `stderr`)."""

    setup_seconds: float
    first_seconds: float
    peak_bytes: int
    regions: int
    breaks: int
    kernels: int
    asks: bool
    answer: bool
    times: dict[str, list[float]]
    errors: dict[str, Errors]
    failure: str
    stderr: str


class ExportFinding(TypedDict, total=False):
    """Seconds of exports, packages and calls by exporter; errors of packages; why one, or the process, failed."""

    times: dict[str, dict[str, list[float]]]
    errors: dict[str, float]
    failures: dict[str, str]
    failure: str
    stderr: str
