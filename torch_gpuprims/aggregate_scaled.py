"""scaled_sum: a sum over neighbours with a factor for each source and each destination, in one pass."""

from typing import Any

import torch

from .aggregate import neighbor_aggregate
from .aggregate_fake import _name, rows_message
from .aggregate_grad import scaled, takes_scales
from .graph import Graph


def scaled_sum(
    x: torch.Tensor,
    graph: Graph,
    source_scale: torch.Tensor | None = None,
    row_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """row_scale[d] * sum over the edges s -> d of source_scale[s] * x[s]: GCN's D^-1/2 A D^-1/2 x, or a mean.

    Args:
        x: [num_src, features], floating point.
        source_scale: float32 [num_src], row_scale: float32 [num_dst]; None: 1. No gradient flows to them.

    Returns:
        [num_dst, features] in the dtype of x.

    On CUDA, where a row of x is a multiple of 16 bytes, the factors cost no pass of their own over x or the
    result, and 16-bit features are rounded once; elsewhere it is two multiplications around
    neighbor_aggregate.
    """
    if x.shape[0] < graph.num_src:
        raise RuntimeError(rows_message("scaled_sum", "x", graph.num_src, x.shape[0]))
    for name, scale, size in (
        ("source_scale", source_scale, graph.num_src),
        ("row_scale", row_scale, graph.num_dst),
    ):
        if scale is not None and (scale.shape != (size,) or scale.dtype != torch.float32):
            kind = f"{_name(scale.dtype)} {list(scale.shape)}"
            raise RuntimeError(f"scaled_sum: {name} must be float32 [{size}], got {kind}")
    if x.dim() == 2 and takes_scales(x, graph.indices):
        transpose = graph.transpose_for(x) or (None, None, None, None)
        return scaled(x, graph.walk(), transpose, source_scale, row_scale, graph.promises)
    if source_scale is not None:
        x = x[: graph.num_src] * _column(source_scale, x)
    out = neighbor_aggregate(x, graph)
    return out if row_scale is None else out * _column(row_scale, x)


def _column(scale: torch.Tensor, x: torch.Tensor) -> Any:
    return scale.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))
