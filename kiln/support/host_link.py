"""The link between the memory of a device and that of the host, as data."""

from __future__ import annotations

from typing import final

from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True)
class HostLink:
    """Of a type of devices.

    `moved`: bytes that the device moves in its own memory while the link carries one byte: 4 TB/s against 55 GB/s on an
    H200, and a tenth more, so that kernels seldom wait.
    `flops`: operations of products that it does while it moves a byte. `least`: bytes that are worth a transfer.
    """

    device: str
    moved: int = 80
    flops: int = 128
    least: int = 1 << 20


GPU_LINK = HostLink("cuda")
