// Where a segment lies, what is wanted of it, and how its slots are written.
#pragma once
#include <cuda_runtime.h>

#include "topk/segment_kernels.h"

namespace gpuprims {

__device__ __forceinline__ int64_t load_integer(const void* p, bool wide, int64_t at) {
  return wide ? static_cast<const int64_t*>(p)[at] : static_cast<const int32_t*>(p)[at];
}

struct Segment {
  int64_t begin;
  int64_t length;
  int64_t wanted;  // slots that hold an element

  // Of offsets that were found good.
  __device__ __forceinline__ Segment(const SegmentArgs& args, int64_t s) {
    begin = load_integer(args.indptr, args.wide_offsets, s);
    length = load_integer(args.indptr, args.wide_offsets, s + 1) - begin;
    wanted = args.counts ? load_integer(args.counts, args.wide_counts, s) : args.k;
    if (wanted > args.k) wanted = args.k;
    if (wanted > length) wanted = length;
  }
};

__device__ __forceinline__ void put_index(const SegmentArgs& args, int64_t at, int64_t index) {
  if (args.wide_index)
    static_cast<int64_t*>(args.out_indices)[at] = index;
  else
    static_cast<int32_t*>(args.out_indices)[at] = static_cast<int32_t>(index);
}

__device__ __forceinline__ void put_bits(const SegmentArgs& args, int64_t at, uint64_t bits) {
  switch (args.bytes) {
    case 1:
      static_cast<uint8_t*>(args.out_values)[at] = static_cast<uint8_t>(bits);
      break;
    case 2:
      static_cast<uint16_t*>(args.out_values)[at] = static_cast<uint16_t>(bits);
      break;
    case 4:
      static_cast<uint32_t*>(args.out_values)[at] = static_cast<uint32_t>(bits);
      break;
    default:
      static_cast<uint64_t*>(args.out_values)[at] = bits;
  }
}

// The element at `index` of values goes to slot `at`: its own bits, read again.
__device__ __forceinline__ void put_element(const SegmentArgs& args, int64_t at, int64_t index) {
  uint64_t bits;
  switch (args.bytes) {
    case 1:
      bits = static_cast<const uint8_t*>(args.values)[index];
      break;
    case 2:
      bits = static_cast<const uint16_t*>(args.values)[index];
      break;
    case 4:
      bits = static_cast<const uint32_t*>(args.values)[index];
      break;
    default:
      bits = static_cast<const uint64_t*>(args.values)[index];
  }
  put_bits(args, at, bits);
  put_index(args, at, index);
}

__device__ __forceinline__ void put_missing(const SegmentArgs& args, int64_t at) {
  put_bits(args, at, args.missing);
  put_index(args, at, -1);
}

}  // namespace gpuprims
