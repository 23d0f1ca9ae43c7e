"""topk as a module."""

import torch

from ..topk import TopK as Result
from ..topk import topk


class TopK(torch.nn.Module):
    """The k largest (or smallest) elements of a dimension; arguments and result as in torch_gpuprims.topk.

    >>> TopK(2)(torch.tensor([1.0, 3.0, 2.0])).indices
    tensor([1, 2])
    """

    def __init__(
        self,
        k: int,
        dim: int = -1,
        largest: bool = True,
        sorted: bool = True,
        index_dtype: torch.dtype = torch.int64,
    ) -> None:
        super().__init__()
        self.k = k
        self.dim = dim
        self.largest = largest
        self.sorted = sorted
        self.index_dtype = index_dtype

    def forward(self, input: torch.Tensor, mask: torch.Tensor | None = None) -> Result:
        return topk(
            input, self.k, self.dim, self.largest, self.sorted, mask=mask, index_dtype=self.index_dtype
        )

    def extra_repr(self) -> str:
        return (
            f"k={self.k}, dim={self.dim}, largest={self.largest}, sorted={self.sorted}, "
            f"index_dtype={self.index_dtype}"
        )
