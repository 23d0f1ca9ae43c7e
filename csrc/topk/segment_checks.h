// Which inputs segment_topk takes, in the words that CPU, CUDA and the fake kernel share
// (torch_gpuprims/topk_segment.py).
#pragma once
#include <optional>

#include "common/bad_data.h"
#include "common/stable.h"
#include "topk/slots.h"

namespace gpuprims {

constexpr int64_t kSegmentsChecked = 1;  // bits of `promises`

// What is wrong with the data.
constexpr int kBadSegments = 1;
constexpr int kBadCounts = 2;

inline void check_segment_ints(const char* name, const Tensor& t, const Tensor& values) {
  check(t.dim() == 1, "segment_topk: ", name, " must have 1 dimension, got ", t.dim());
  check(t.scalar_type() == ScalarType::Int || t.scalar_type() == ScalarType::Long,
        "segment_topk: ", name, " must be int32 or int64, got ", scalar_type_name(t.scalar_type()));
  check(same_device(t, values), "segment_topk: ", name, " must be on the device of values");
}

inline Dtype check_segment_topk(const Tensor& values, const Tensor& indptr, int64_t k,
                                const std::optional<Tensor>& counts, int64_t index_bits) {
  check(is_strided(values), "segment_topk: values must be a dense tensor, got a sparse layout");
  const Dtype dtype = dtype_of("segment_topk", values.scalar_type());
  check(values.dim() == 1, "segment_topk: values must have 1 dimension, got ", values.dim());
  check_segment_ints("indptr", indptr, values);
  check(indptr.size(0) >= 1, "segment_topk: indptr must have at least 1 element, got 0");
  check(k >= 0, "segment_topk: k must not be negative, got ", k);
  check_slots("segment_topk", indptr.size(0) - 1, k);
  if (counts) {
    check_segment_ints("k", *counts, values);
    check(counts->size(0) == indptr.size(0) - 1, "segment_topk: k must have ", indptr.size(0) - 1,
          " elements (the number of segments), got ", counts->size(0));
  }
  check(index_bits == 64 || index_bits == 32, "segment_topk: index_dtype must be int64 or int32");
  check(index_bits == 64 || values.size(0) <= INT32_MAX,
        "segment_topk: index_dtype int32 holds no index of ", values.size(0), " values");
  return dtype;
}

// The words for a flag that the checks of the data raised.
inline void check_segment_flag(int flag, int64_t n) {
  check(!(flag & kBadSegments),
        "segment_topk: indptr must start at 0, not decrease and end at the number of values (", n,
        ")");
  check(!(flag & kBadCounts), "segment_topk: k must not be negative in any segment");
}

inline Tensor dense_1d(const Tensor& t) {
  return t.is_contiguous() ? t : torch::stable::contiguous(t);
}

}  // namespace gpuprims
