#include "common/stable.h"

// Segment s is rows indptr[s] .. indptr[s + 1) of values [n] or [n, features]. Codes of `op`:
// SegmentOp of segment_ops.h. segment_expand is the transpose of a sum: out[i] is the row of
// values [segments, ...] of the segment that holds i.
//   promises: 1 the offsets were validated, 4 no segment is longer than 128 (as segment_topk's).
STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  m.def("segment_reduce(Tensor values, Tensor indptr, int op, int promises=0) -> Tensor");
  m.def("segment_expand(Tensor values, Tensor indptr, SymInt n, int promises=0) -> Tensor");
}
