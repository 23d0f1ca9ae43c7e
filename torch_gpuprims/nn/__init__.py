"""Modules around the ops, with the names of torch.nn and of PyTorch Geometric."""

from .aggregate import NeighborAggregation
from .conv import GCNConv
from .sort import Sort
from .topk import TopK

__all__ = ["GCNConv", "NeighborAggregation", "Sort", "TopK"]
