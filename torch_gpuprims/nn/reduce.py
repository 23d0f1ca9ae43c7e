"""reduce and stats as modules."""

from collections.abc import Sequence

import torch

from ..reduce import Stats as Result
from ..reduce import reduce, reduce_code, stats


class Reduce(torch.nn.Module):
    """A reduction of fixed dimensions; arguments and result as in torch_gpuprims.reduce.

    >>> Reduce("max", dim=-1)(torch.tensor([[1.0, 3.0, 2.0]]))
    tensor([3.])
    """

    def __init__(
        self,
        op: str,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        correction: float = 1,
        ord: float = 2,
    ) -> None:
        super().__init__()
        reduce_code(op, ord)  # a name that is wrong is told here, not in the first call
        self.op, self.dim, self.keepdim = op, dim, keepdim
        self.dtype, self.correction, self.ord = dtype, correction, ord

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return reduce(
            input, self.op, self.dim, self.keepdim, dtype=self.dtype, correction=self.correction, ord=self.ord
        )

    def extra_repr(self) -> str:
        return f"{self.op!r}, dim={self.dim}, keepdim={self.keepdim}"


class Stats(torch.nn.Module):
    """Least, greatest, mean, variance and NaN count in one read: what a normalisation layer needs.

    forward(input) returns torch_gpuprims.reduce.Stats; mean and variance carry gradients, so
    (x - s.mean) * (s.var + eps).rsqrt() trains. correction=0 is the variance that batch and layer
    normalisation use.

    >>> Stats(dim=-1, correction=0)(torch.tensor([[1.0, 3.0]])).var
    tensor([1.])
    """

    def __init__(
        self,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        correction: float = 1,
        indices: bool = False,
    ) -> None:
        super().__init__()
        self.dim, self.keepdim = dim, keepdim
        self.correction, self.indices = correction, indices

    def forward(self, input: torch.Tensor) -> Result:
        return stats(input, self.dim, self.keepdim, correction=self.correction, indices=self.indices)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, keepdim={self.keepdim}, correction={self.correction}, indices={self.indices}"
