"""sort as a module."""

import torch

from ..sort import Sort as Result
from ..sort import sort


class Sort(torch.nn.Module):
    """The elements of a dimension in order; arguments and result as in torch_gpuprims.sort.

    >>> Sort(descending=True)(torch.tensor([1.0, 3.0, 2.0])).indices
    tensor([1, 2, 0])
    """

    def __init__(
        self, dim: int = -1, descending: bool = False, index_dtype: torch.dtype = torch.int64
    ) -> None:
        super().__init__()
        self.dim = dim
        self.descending = descending
        self.index_dtype = index_dtype

    def forward(self, input: torch.Tensor) -> Result:
        return sort(input, self.dim, self.descending, index_dtype=self.index_dtype)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, descending={self.descending}, index_dtype={self.index_dtype}"
