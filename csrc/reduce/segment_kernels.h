// What the host may ask of the GPU for segment_reduce and segment_expand: raw pointers, a plan, a
// stream; no PyTorch.
#pragma once
#include <cuda_runtime_api.h>

#include "reduce/segment_plan.h"

namespace gpuprims {

struct SegmentReduceArgs {
  const void* values = nullptr;  // [n, features]
  const void* indptr = nullptr;  // [segments + 1]
  void* out = nullptr;           // [segments, features]
  int64_t n = 0;
  int64_t segments = 0;
  int64_t features = 1;
  Dtype dtype = Dtype::f32;
  Dtype out_dtype = Dtype::f32;
  SegmentOp op = SegmentOp::sum;
  bool wide = true;     // int64 offsets, else int32
  bool check = true;    // nobody has looked at the offsets
  uint64_t empty = 0;   // bits of the result of an empty segment
  uint64_t filler = 0;  // of every result, where the offsets are bad
};

struct SegmentReduceHeader {
  int flag;  // 1: the offsets are bad
  int unused;
  unsigned long long listed;  // cut segments in the upper 28 bits, pieces in the lower 36
};
constexpr int kListShift = 36;

struct CutSegment {
  int64_t segment;
  int64_t first;            // of its pieces, among all
  unsigned long long done;  // groups of chunks that have come together
};

struct SegmentReduceSpace {
  SegmentReduceHeader* header = nullptr;
  CutSegment* list = nullptr;  // in the order of `first`
  unsigned* done = nullptr;    // [pieces] chunks done of each group, at its first
  void* states = nullptr;      // [pieces, features] and the levels of rows
};

cudaError_t launch_segment_tiles(const SegmentReduceArgs& args, const SegmentReducePlan& plan,
                                 const SegmentReduceSpace& space, cudaStream_t stream);
// What the tiles left: long segments, or the filling of every result.
cudaError_t launch_segment_long(const SegmentReduceArgs& args, const SegmentReducePlan& plan,
                                const SegmentReduceSpace& space, cudaStream_t stream);
// Columns: `pieces` false: every segment that need not be cut; true: the pieces of the others.
cudaError_t launch_segment_rows(const SegmentReduceArgs& args, const SegmentReducePlan& plan,
                                const SegmentReduceSpace& space, bool pieces, cudaStream_t stream);
cudaError_t launch_segment_levels(const SegmentReduceArgs& args, const SegmentReducePlan& plan,
                                  const SegmentReduceSpace& space, int level, cudaStream_t stream);

struct SegmentExpandArgs {
  const void* values = nullptr;  // [segments, features]
  const void* indptr = nullptr;  // [segments + 1]
  void* out = nullptr;           // [n, features]
  int64_t n = 0;
  int64_t segments = 0;
  int64_t features = 1;
  int bytes = 4;
  bool wide = true;
  int* flag = nullptr;  // null: the offsets are known to be good
  uint64_t filler = 0;
};

cudaError_t launch_segment_check(const SegmentExpandArgs& args, cudaStream_t stream);
cudaError_t launch_segment_expand(const SegmentExpandArgs& args, cudaStream_t stream);

}  // namespace gpuprims
