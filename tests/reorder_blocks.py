"""Sources and packed copies that the tests of ReorderCache share."""

import torch

KIB = 1 << 10


class Packed:
    """As PackedRows: refreshed in the same memory; counts what is done to it."""

    def __init__(self, source: torch.Tensor, order: torch.Tensor) -> None:
        self.order, self.values, self.filled = order, source[order], 1

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def refresh(self, source: torch.Tensor) -> "Packed":
        self.filled += 1
        torch.index_select(source, 0, self.order, out=self.values)
        return self


def pair(device: str = "cpu", n: int = 256, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=g).to(device), torch.randperm(n, generator=g).to(device)
