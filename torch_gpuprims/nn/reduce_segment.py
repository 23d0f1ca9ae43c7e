"""segment_reduce as a module."""

import torch

from ..reduce_segment import segment_reduce
from ..reduce_segment_fake import OPS
from ..segments import Segments


class SegmentReduce(torch.nn.Module):
    """The reduction of each segment of the first dimension; arguments as in torch_gpuprims.segment_reduce.

    >>> SegmentReduce("max")(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0, 2, 3]))
    tensor([3., 2.])
    """

    def __init__(self, op: str = "sum") -> None:
        super().__init__()
        if op not in OPS:  # told here, not in the first call
            raise ValueError(f"segment_reduce: op must be one of {', '.join(OPS)}, got {op!r}")
        self.op = op

    def forward(self, values: torch.Tensor, indptr: torch.Tensor | Segments) -> torch.Tensor:
        return segment_reduce(values, indptr, self.op)

    def extra_repr(self) -> str:
        return repr(self.op)
