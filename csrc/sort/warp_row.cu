// A few lanes a row (at most 256 elements): a bitonic network over 8 records a lane, in registers
// and shuffles. An index makes records of equal keys distinct, so the order is the stable one.
// Network: Batcher (1968), in the form whose comparisons all point the same way.
#include "common/launch.h"
#include "sort/records.cuh"

namespace gpuprims {
namespace {

constexpr int kThreads = 128;
constexpr int kItems = sort_tuning::kWarpItems;

struct Indexed {
  uint64_t key;
  uint32_t index;
};

__device__ __forceinline__ bool less(uint32_t a, uint32_t b) { return a < b; }
__device__ __forceinline__ bool less(uint64_t a, uint64_t b) { return a < b; }
__device__ __forceinline__ bool less(const Indexed& a, const Indexed& b) {
  return a.key < b.key || (a.key == b.key && a.index < b.index);
}

__device__ __forceinline__ uint32_t from_lane(uint32_t record, int mask) {
  return __shfl_xor_sync(~0u, record, mask);
}
__device__ __forceinline__ uint64_t from_lane(uint64_t record, int mask) {
  return __shfl_xor_sync(~0u, static_cast<unsigned long long>(record), mask);
}
__device__ __forceinline__ Indexed from_lane(const Indexed& record, int mask) {
  return {from_lane(record.key, mask), from_lane(record.index, mask)};
}

template <class Record>
__device__ __forceinline__ void in_order(Record& a, Record& b) {
  const bool swap = less(b, a);
  const Record low = swap ? b : a;
  b = swap ? a : b;
  a = low;
}

// Record e of a lane meets record `other(e)` of the lane `mask` away.
template <class Record, bool kMirror>
__device__ __forceinline__ void with_lane(Record (&v)[kItems], int mask, bool low) {
  Record theirs[kItems];
#pragma unroll
  for (int e = 0; e < kItems; ++e) theirs[e] = from_lane(v[kMirror ? kItems - 1 - e : e], mask);
#pragma unroll
  for (int e = 0; e < kItems; ++e)
    if (less(theirs[e], v[e]) == low) v[e] = theirs[e];
}

// Sorts 8 kLanes records: lane l ends with those of ranks 8 l to 8 l + 7.
template <class Record, int kLanes>
__device__ __forceinline__ void sort_lanes(Record (&v)[kItems], int lane) {
#pragma unroll
  for (int size = 2; size <= kItems * kLanes; size *= 2) {
    if (size <= kItems) {
#pragma unroll
      for (int e = 0; e < kItems; ++e)
        if ((e ^ (size - 1)) > e) in_order(v[e], v[e ^ (size - 1)]);
    } else {
      const int mask = size / kItems - 1;
      with_lane<Record, true>(v, mask, (lane & (size / kItems / 2)) == 0);
    }
#pragma unroll
    for (int stride = size / 4; stride > 0; stride /= 2) {
      if (stride >= kItems) {
        with_lane<Record, false>(v, stride / kItems, (lane & (stride / kItems)) == 0);
      } else {
#pragma unroll
        for (int e = 0; e < kItems; ++e)
          if (!(e & stride)) in_order(v[e], v[e | stride]);
      }
    }
  }
}

template <class Record>
__device__ __forceinline__ Record make_record(const SortArgs& args, uint64_t key, uint32_t index) {
  if constexpr (sizeof(Record) > 8)
    return {key, index};
  else
    return static_cast<Record>(args.packed ? key << 32 | index : key);
}

template <class Record, int kLanes>
__global__ void __launch_bounds__(kThreads) sort_warp(const __grid_constant__ SortArgs args) {
  constexpr int kGroups = kThreads / kLanes, kLongest = kLanes * kItems;
  __shared__ Record buffer[kGroups][kLongest + kLanes];  // one more a lane, against bank conflicts
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const int64_t rows = row_count(args);
  for (int64_t first = blockIdx.x * int64_t{kGroups}; first < rows;
       first += gridDim.x * int64_t{kGroups}) {
    const int64_t r = first + group;
    RowSpan row = r < rows ? row_span(args, r) : RowSpan{0, 0};
    if (args.longest && (row.n < args.shortest || row.n > args.longest)) row.n = 0;
    const int n = static_cast<int>(row.n);
    if (!__any_sync(~0u, n > 0)) continue;
    Record v[kItems];
    by_width(args, [&](auto elements) {
      const auto* const from = elements.input() + row.start;
      std::remove_cv_t<std::remove_reference_t<decltype(*from)>> raw[kItems];
#pragma unroll
      for (int e = 0; e < kItems; ++e) raw[e] = e * kLanes + lane < n ? from[e * kLanes + lane] : 0;
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        const int i = e * kLanes + lane;
        v[e] = i < n ? make_record<Record>(args, elements.key(raw[e]), i)
                     : make_record<Record>(args, ~uint64_t{0}, ~0u);
      }
    });
    sort_lanes<Record, kLanes>(v, lane);
    __syncwarp();
#pragma unroll
    for (int e = 0; e < kItems; ++e) buffer[group][lane * (kItems + 1) + e] = v[e];
    __syncwarp();
    const RowSpan kept = kept_span(args, r, row);
    by_width(args, [&](auto elements) {
      using Key = typename decltype(elements)::Word;
      Record record[kItems];
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        const int i = e * kLanes + lane;
        record[e] = buffer[group][i + i / kItems];
      }
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        const int i = e * kLanes + lane;
        if (i >= static_cast<int>(kept.n)) break;
        uint64_t key;
        uint32_t index;
        if constexpr (sizeof(Record) > 8) {
          key = record[e].key, index = record[e].index;
        } else {
          key = args.packed ? static_cast<uint64_t>(record[e]) >> 32 : record[e];
          index = static_cast<uint32_t>(record[e]);
        }
        elements.store(kept.start + i, static_cast<Key>(key), row.start + index);
        if (args.indices) store_index(args, kept.start + i, index_of(args, row.start, index));
      }
    });
  }
}

template <class Record>
cudaError_t start(const SortArgs& args, const SortPlan& plan, cudaStream_t stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads)};
  switch (plan.lanes) {
    case 4:
      return launch(sort_warp<Record, 4>, shape, stream, args);
    case 8:
      return launch(sort_warp<Record, 8>, shape, stream, args);
    case 16:
      return launch(sort_warp<Record, 16>, shape, stream, args);
    default:
      return launch(sort_warp<Record, 32>, shape, stream, args);
  }
}

}  // namespace

cudaError_t launch_sort_warp(const SortArgs& args, const SortPlan& plan, cudaStream_t stream) {
  if (plan.side) return start<Indexed>(args, plan, stream);
  if (args.packed || args.bytes == 8) return start<uint64_t>(args, plan, stream);
  return start<uint32_t>(args, plan, stream);
}

}  // namespace gpuprims
