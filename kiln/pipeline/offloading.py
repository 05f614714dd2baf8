"""The link over which saved values go to the host, where `activation_offload` or `save_on_cpu` asks for it."""

from __future__ import annotations

from kiln.plan.transfer_operators import can_transfer
from kiln.support.host_link import GPU_LINK, HostLink


def host_link() -> HostLink | None:
    return GPU_LINK if can_transfer() else None
