"""segment_topk as a module."""

import torch

from ..segments import Segments
from ..topk import TopK as Result
from ..topk_segment import segment_topk


class SegmentTopK(torch.nn.Module):
    """The k largest (or smallest) elements of each segment; arguments as in torch_gpuprims.segment_topk.

    >>> SegmentTopK(1)(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0, 2, 3])).indices
    tensor([[1],
            [2]])
    """

    def __init__(self, k: int, largest: bool = True, index_dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        self.k = k
        self.largest = largest
        self.index_dtype = index_dtype

    def forward(self, values: torch.Tensor, indptr: torch.Tensor | Segments) -> Result:
        return segment_topk(values, indptr, self.k, largest=self.largest, index_dtype=self.index_dtype)

    def extra_repr(self) -> str:
        return f"k={self.k}, largest={self.largest}, index_dtype={self.index_dtype}"
