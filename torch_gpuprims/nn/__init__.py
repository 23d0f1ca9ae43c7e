"""Modules around the ops, with the names of torch.nn and of PyTorch Geometric."""

from .aggregate import NeighborAggregation
from .attention import GATConv, GATv2Conv
from .conv import GCNConv
from .maxk import MaxK, MaxKConv
from .pna import PNAConv
from .pool import TopKPooling, global_add_pool, global_max_pool, global_mean_pool
from .reduce import Reduce, Stats
from .reduce_segment import SegmentReduce
from .sage import GINConv, SAGEConv
from .sort import Sort
from .topk import TopK
from .topk_gate import TopKGate
from .topk_segment import SegmentTopK

__all__ = [
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "MaxK",
    "MaxKConv",
    "NeighborAggregation",
    "PNAConv",
    "Reduce",
    "SAGEConv",
    "SegmentReduce",
    "SegmentTopK",
    "Sort",
    "Stats",
    "TopK",
    "TopKGate",
    "TopKPooling",
    "global_add_pool",
    "global_max_pool",
    "global_mean_pool",
]
