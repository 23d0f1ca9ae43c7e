"""Fast, deterministic GPU primitives for PyTorch: top-k, sorting and graph neighbour aggregation."""

from . import _native as _native
from ._explain import explain
from .aggregate import neighbor_aggregate
from .graph import Graph
from .sort import (
    SegmentSort,
    Sort,
    argsort,
    segment_sort,
    sort,
    sort_by_key,
    sort_keys,
    sort_out_of_core,
)
from .topk import TopK, topk

__version__ = "0.1.0"
__all__ = [
    "Graph",
    "SegmentSort",
    "Sort",
    "TopK",
    "argsort",
    "explain",
    "neighbor_aggregate",
    "segment_sort",
    "sort",
    "sort_by_key",
    "sort_keys",
    "sort_out_of_core",
    "topk",
]
