"""Modules around the ops, with the names of torch.nn and of PyTorch Geometric."""

from .aggregate import NeighborAggregation
from .conv import GCNConv
from .reduce import Reduce, Stats
from .sort import Sort
from .topk import TopK
from .topk_gate import TopKGate
from .topk_segment import SegmentTopK

__all__ = ["GCNConv", "NeighborAggregation", "Reduce", "SegmentTopK", "Sort", "Stats", "TopK", "TopKGate"]
