"""The link over which saved values go to the host, where the option `activation_offload` asks for that."""

from __future__ import annotations

from kiln.plan.transfer_operators import can_transfer
from kiln.support.host_link import GPU_LINK, HostLink
from kiln.support.options import Options


def host_link(options: Options) -> HostLink | None:
    return GPU_LINK if options.activation_offload and can_transfer() else None
