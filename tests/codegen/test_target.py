"""Which vectors kernels are written for, by the flags of the CPU."""

from __future__ import annotations

import pytest

from kiln.support import target

AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
AVX2 = {"avx2", "fma"}


@pytest.mark.parametrize(
    ("flags", "vector_bytes", "isa"),
    [
        (AVX512 | AVX2, 64, "avx512"),
        (AVX2, 32, "avx2"),
        (AVX2 | AVX512 - {"avx512dq"}, 32, "avx2"),
        ({"avx2"}, 16, "baseline"),
        (set(), 16, "baseline"),
    ],
)
def test_vectors_by_flags(flags: set[str], vector_bytes: int, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "cpu_flags", lambda: frozenset(flags))
    found = target.host_cpu(threads=3)
    assert (found.vector_bytes, found.isa, found.threads) == (vector_bytes, isa, 3)
