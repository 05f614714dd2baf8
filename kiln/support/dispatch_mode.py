"""The base of Kiln's own dispatch modes."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A mode whose `__torch_dispatch__` torch does not wrap, which would import torch's compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
