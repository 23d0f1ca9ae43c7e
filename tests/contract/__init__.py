"""The table behind test_contract.py: each registered op, how to call it, and which properties it keeps.

To add an op, write its row in a file of its slice's name: the arguments of the raw op (`samples`), its public
functions (`calls`), the empty inputs and messages that it owes, and in `lacks` each property that does not
hold, with the reason. test_contract.py is generic and need not change.
"""

from .aggregate import NEIGHBOR_AGGREGATE, NEIGHBOR_EXTREME_GRAD, SDDMM
from .attention import NEIGHBOR_ATTENTION, NEIGHBOR_ATTENTION_GRAD
from .edge_scores import EDGE_SOFTMAX, EDGE_SOFTMAX_GRAD, GATV2_SCORE, GATV2_SCORE_GRAD
from .reduce import DOT, REDUCE, STATS
from .reduce_histogram import HISTOGRAM
from .reduce_segment import SEGMENT_EXPAND, SEGMENT_REDUCE
from .reorder import GATHER_PACKED, PACK_ROWS, UNPACK_ROWS
from .sort import ARGSORT, SEGMENT_SORT, SORT, SORT_KEYS
from .spec import Call, Op
from .spmv import SPMV, SPMV_CSR
from .topk import TOPK
from .topk_approx import APPROX_TOPK
from .topk_gate import TOPK_GATE
from .topk_segment import MERGE_TOPK, SEGMENT_TOPK

OPS: dict[str, Op] = {
    "topk": TOPK,
    "approx_topk": APPROX_TOPK,
    "topk_gate": TOPK_GATE,
    "segment_topk": SEGMENT_TOPK,
    "merge_topk": MERGE_TOPK,
    "sort": SORT,
    "argsort": ARGSORT,
    "sort_keys": SORT_KEYS,
    "segment_sort": SEGMENT_SORT,
    "reduce": REDUCE,
    "stats": STATS,
    "dot": DOT,
    "segment_reduce": SEGMENT_REDUCE,
    "segment_expand": SEGMENT_EXPAND,
    "histogram": HISTOGRAM,
    "neighbor_aggregate": NEIGHBOR_AGGREGATE,
    "sddmm": SDDMM,
    "neighbor_extreme_grad": NEIGHBOR_EXTREME_GRAD,
    "neighbor_attention": NEIGHBOR_ATTENTION,
    "neighbor_attention_grad": NEIGHBOR_ATTENTION_GRAD,
    "edge_softmax": EDGE_SOFTMAX,
    "edge_softmax_grad": EDGE_SOFTMAX_GRAD,
    "gatv2_score": GATV2_SCORE,
    "gatv2_score_grad": GATV2_SCORE_GRAD,
    "pack_rows": PACK_ROWS,
    "unpack_rows": UNPACK_ROWS,
    "gather_packed": GATHER_PACKED,
    "spmv": SPMV,
    "spmv_csr": SPMV_CSR,
}

__all__ = ["OPS", "Call", "Op"]
