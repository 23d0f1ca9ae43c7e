"""segment_topk as a module."""

import torch

from ..segments import Segments
from ..topk import TopK as Result
from ..topk_segment import segment_topk


class SegmentTopK(torch.nn.Module):
    """The k largest (or smallest) elements of each segment; arguments as in torch_gpuprims.segment_topk.

    A tensor k, which goes with max_k, is a buffer: it moves with the module and is not in its state.

    >>> SegmentTopK(1)(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0, 2, 3])).indices
    tensor([[1],
            [2]])
    """

    k: int | torch.Tensor

    def __init__(
        self,
        k: int | torch.Tensor,
        largest: bool = True,
        index_dtype: torch.dtype = torch.int64,
        max_k: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(k, torch.Tensor):
            self.register_buffer("k", k, persistent=False)
        else:
            self.k = k
        self.max_k = max_k
        self.largest = largest
        self.index_dtype = index_dtype

    def forward(self, values: torch.Tensor, indptr: torch.Tensor | Segments) -> Result:
        return segment_topk(
            values, indptr, self.k, max_k=self.max_k, largest=self.largest, index_dtype=self.index_dtype
        )

    def extra_repr(self) -> str:
        k = f"tensor of {list(self.k.shape)}" if isinstance(self.k, torch.Tensor) else self.k
        width = "" if self.max_k is None else f", max_k={self.max_k}"
        return f"k={k}, largest={self.largest}, index_dtype={self.index_dtype}{width}"
