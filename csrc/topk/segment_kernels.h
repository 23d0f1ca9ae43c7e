// What the host may ask of the GPU for segment_topk: raw pointers, a plan, a stream; no PyTorch.
#pragma once
#include <cuda_runtime_api.h>

#include "topk/missing.h"
#include "topk/segment_plan.h"

namespace gpuprims {

struct SegmentArgs {
  const void* values = nullptr;  // [n]
  const void* indptr = nullptr;  // [segments + 1]
  const void* counts = nullptr;  // [segments] how many are wanted; null: k
  void* out_values = nullptr;    // [segments, k]
  void* out_indices = nullptr;   // the same
  int64_t n = 0;
  int64_t segments = 0;
  int64_t k = 0;
  int64_t first = 0;  // of the slots that this pass fills
  Dtype dtype = Dtype::f32;
  int bytes = 4;  // of a value
  bool largest = true;
  bool wide_offsets = true;  // int64, else int32
  bool wide_counts = true;
  bool wide_index = true;
  uint64_t missing = 0;  // bits of a slot without an element
  uint64_t bad = 0;      // of every slot, where the offsets are bad
};

// Set by prepare; the counters of work taken and the bounds are zeroed before each pass.
struct SegmentHeader {
  int flag;  // kBad* of segment_checks.h
  int unused;
  unsigned long long chunks, big, medium;  // list lengths
  unsigned long long next_item, next_medium;
  unsigned long long unused_too[2];
};
static_assert(sizeof(SegmentHeader) == segment_tuning::kHeader);
constexpr int64_t kSegmentCounters = 32;  // bytes before next_item

struct SegmentChunk {
  int64_t segment;
  int64_t number;  // within its segment; a segment's chunks lie together, in order
};

struct SegmentSpace {
  SegmentHeader* header = nullptr;  // null: offsets and counts are known to be good, all is small
  unsigned long long* bounds =
      nullptr;                     // [chunks] at a segment's first chunk: what its best k reach
  SegmentChunk* chunks = nullptr;  // [chunks]
  int64_t* big = nullptr;          // [big] segments
  int64_t* medium = nullptr;       // [medium] segments
  void* pairs = nullptr;           // [chunks, width], 0 where there is none
  void* ceilings = nullptr;        // [segments] the greatest pairs of a further pass, or null
};

cudaError_t launch_segment_prepare(const SegmentArgs& args, const SegmentPlan& plan,
                                   const SegmentSpace& space, cudaStream_t stream);
cudaError_t launch_segment_small(const SegmentArgs& args, const SegmentPlan& plan,
                                 const SegmentSpace& space, cudaStream_t stream);
// Lists medium, big and chunks.
cudaError_t launch_segment_items(const SegmentArgs& args, const SegmentPlan& plan,
                                 const SegmentSpace& space, cudaStream_t stream);
cudaError_t launch_segment_merge(const SegmentArgs& args, const SegmentPlan& plan,
                                 const SegmentSpace& space, cudaStream_t stream);

}  // namespace gpuprims
