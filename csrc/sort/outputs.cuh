// Where a row's results go.
#pragma once
#include "sort/records.cuh"

namespace gpuprims {
namespace {

template <class Element>
struct Outputs {
  Element* value;
  int64_t* wide;
  int32_t* narrow;
  bool has_value, has_wide, has_narrow;
  uint64_t base;  // of indices

  __device__ __forceinline__ Outputs(const SortArgs& args, const RowSpan& row)
      : value(static_cast<Element*>(args.values) + row.start),
        wide(static_cast<int64_t*>(args.indices) + row.start),
        narrow(static_cast<int32_t*>(args.indices) + row.start),
        has_value(args.values),
        has_wide(args.indices && args.wide_index),
        has_narrow(args.indices && !args.wide_index),
        base(args.indptr ? row.start : 0) {}

  __device__ __forceinline__ void put(int rank, Element element, uint32_t place) const {
    const uint64_t index = base + place;
    if (has_value) value[rank] = element;
    if (has_wide) wide[rank] = static_cast<int64_t>(index);
    if (has_narrow) narrow[rank] = static_cast<int32_t>(index);
  }
};

}  // namespace
}  // namespace gpuprims
