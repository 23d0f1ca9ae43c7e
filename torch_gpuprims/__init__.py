"""Fast, deterministic GPU primitives for PyTorch: top-k, sorting and graph neighbour aggregation."""

from . import _native as _native
from ._explain import explain
from .aggregate import neighbor_aggregate, sddmm
from .attention import edge_softmax, gatv2_score, neighbor_attention
from .compile_reduction import Reduction, compile_reduction
from .graph import Graph
from .histogram import bincount, histogram
from .reduce import Stats, dot, reduce, stats
from .reduce_segment import segment_expand, segment_reduce
from .reorder import (
    PackedGather,
    PackedRows,
    Redirect,
    gather_packed,
    pack_rows,
    redirect,
    spmv,
    spmv_csr,
    unpack_rows,
)
from .reorder_cache import CacheStats, ReorderCache
from .reorder_out_of_core import aggregate_out_of_core
from .reorder_overlap import overlapped
from .segments import Segments
from .sort import Sort, argsort, sort, sort_by_key, sort_keys
from .sort_out_of_core import sort_out_of_core
from .sort_segment import SegmentSort, segment_sort
from .topk import TopK, topk
from .topk_approx import approx_topk
from .topk_gate import TopKGate, topk_gate
from .topk_merge import merge_topk
from .topk_segment import segment_topk
from .topk_streaming import StreamingTopK

__version__ = "0.1.0"
__all__ = [
    "CacheStats",
    "Graph",
    "PackedGather",
    "PackedRows",
    "Redirect",
    "Reduction",
    "ReorderCache",
    "SegmentSort",
    "Segments",
    "Sort",
    "Stats",
    "StreamingTopK",
    "TopK",
    "TopKGate",
    "aggregate_out_of_core",
    "approx_topk",
    "argsort",
    "bincount",
    "compile_reduction",
    "dot",
    "edge_softmax",
    "explain",
    "gather_packed",
    "gatv2_score",
    "histogram",
    "merge_topk",
    "neighbor_aggregate",
    "neighbor_attention",
    "overlapped",
    "pack_rows",
    "redirect",
    "reduce",
    "sddmm",
    "segment_expand",
    "segment_reduce",
    "segment_sort",
    "segment_topk",
    "sort",
    "sort_by_key",
    "sort_keys",
    "sort_out_of_core",
    "spmv",
    "spmv_csr",
    "stats",
    "topk",
    "topk_gate",
    "unpack_rows",
]
