"""What differs between processes: hashes of texts (`PYTHONHASHSEED`), and addresses.

Guards compare these numbers, so that a stored variant that holds a hash or the order of a set is loaded only where they
are the same.
"""

from __future__ import annotations

import os

TEXT_HASHES = hash("kiln")
ADDRESSES = int.from_bytes(os.urandom(7), "little")
