"""Fast, deterministic GPU primitives for PyTorch: top-k and graph neighbour aggregation."""

from . import _native as _native
from ._explain import explain
from .aggregate import neighbor_aggregate
from .graph import Graph
from .segments import Segments
from .topk import TopK, topk
from .topk_approx import approx_topk
from .topk_gate import TopKGate, topk_gate
from .topk_merge import merge_topk
from .topk_segment import segment_topk
from .topk_streaming import StreamingTopK

__version__ = "0.1.0"
__all__ = [
    "Graph",
    "Segments",
    "StreamingTopK",
    "TopK",
    "TopKGate",
    "approx_topk",
    "explain",
    "merge_topk",
    "neighbor_aggregate",
    "segment_topk",
    "topk",
    "topk_gate",
]
