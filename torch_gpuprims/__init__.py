"""Fast, deterministic GPU primitives for PyTorch: top-k and graph neighbour aggregation."""

from . import _native as _native
from .topk import TopK, topk

__version__ = "0.1.0"
__all__ = ["TopK", "topk"]
