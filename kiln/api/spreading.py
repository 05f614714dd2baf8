"""`kiln.distributed`, loaded at its first use: it loads torch's DTensor."""

from kiln.api import distributed

__all__ = ["distributed"]
