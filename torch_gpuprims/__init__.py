"""Fast, deterministic GPU primitives for PyTorch: top-k and graph neighbour aggregation."""

from . import _native as _native
from ._explain import explain
from .aggregate import neighbor_aggregate
from .graph import Graph
from .topk import TopK, topk
from .topk_approx import approx_topk
from .topk_gate import TopKGate, topk_gate

__version__ = "0.1.0"
__all__ = ["Graph", "TopK", "TopKGate", "approx_topk", "explain", "neighbor_aggregate", "topk", "topk_gate"]
