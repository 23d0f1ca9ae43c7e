// A dot product an edge. Edges, not rows, are dealt to warps (kSddmmEdges in a row each), so hubs
// need no care.
//
// The tree of a dot (a function of F and the element size alone): lane l of L owns 16 bytes of
// columns in each tile of 16 L bytes (L as in lanes.cuh) and adds its products in order of
// columns, one fused multiply-add each; the lanes are added by a butterfly (distances 1, 2, .. L /
// 2).
#include "aggregate/lanes.cuh"
#include "common/launch.h"

namespace gpuprims {
namespace {

// The row that holds an edge: the last one that starts at or before it. The whole warp asks for one
// edge, and 32 probes a step find it in log32(rows) dependent loads.
__device__ int64_t row_of(const Csr& csr, int64_t edge) {
  int64_t low = 0, high = csr.rows;  // indptr[low] <= edge < indptr[high]
  while (high - low > 1) {
    const int64_t step = (high - low + 31) / 32;
    const int64_t probe = low + (threadIdx.x % 32 + 1) * step;
    const bool before = probe < high && load_int(csr.indptr, csr.wide_offsets, probe) <= edge;
    low += __popc(__ballot_sync(~0u, before)) * step;
    high = high < low + step ? high : low + step;
  }
  return low;
}

// Each lane's row for its own edge, knowing that it is not before `first`. 32 row ends mostly cover
// 32 edges; runs of empty rows take a binary search.
__device__ int64_t rows_of(const Csr& csr, int64_t first, int64_t edge) {
  const int lane = threadIdx.x % 32;
  const int64_t probe = first + 1 + lane;
  const int64_t start = load_int(csr.indptr, csr.wide_offsets, probe < csr.rows ? probe : csr.rows);
  const int64_t last = __shfl_sync(~0u, edge, 31);
  if (__shfl_sync(~0u, start, 31) > last) {
    int rows = 0;  // row starts at or before the edge
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const int64_t value = __shfl_sync(~0u, start, rows + step - 1);
      if (value <= edge) rows += step;
    }
    return first + rows;
  }
  int64_t low = first, high = csr.rows;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (load_int(csr.indptr, csr.wide_offsets, middle) <= edge)
      low = middle;
    else
      high = middle;
  }
  return low;
}

template <class T, int kVec>
__global__ void __launch_bounds__(32 * kWarps) sddmm_edges(const __grid_constant__ SddmmArgs s) {
  using Acc = typename Math<T>::Acc;
  constexpr int kOwned = kLaneBytes / sizeof(T);
  constexpr int kLoads = kOwned / kVec;
  const int lane = threadIdx.x % 32;
  const int64_t begin =
      (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) * kSddmmEdges;
  if (begin >= s.csr.edges) return;
  const int64_t end = begin + kSddmmEdges < s.csr.edges ? begin + kSddmmEdges : s.csr.edges;
  T* out = static_cast<T*>(s.out);
  if (s.flag && *s.flag) {
    for (int64_t edge = begin + lane; edge < end; edge += 32) out[edge] = not_a_number<T>();
    return;
  }
  const Lanes lanes = Lanes::of<kOwned, kVec>(0, s.features);
  const int own = lane & (lanes.count - 1);
  int64_t row = row_of(s.csr, begin);
  for (int64_t base = begin; base < end; base += 32) {
    const int64_t edge = base + lane < end ? base + lane : end - 1;
    const int64_t place = rows_of(s.csr, row, edge);
    row = __shfl_sync(~0u, place, 31);
    int64_t my_row = place;
    if (s.csr.order) my_row = __ldg(reinterpret_cast<const long long*>(s.csr.order) + place);
    const int64_t my_id = edge_id(s.csr, edge);
    int64_t my_source = load_int(s.csr.indices, s.csr.wide_indices, edge);
    if (static_cast<uint64_t>(my_source) >= static_cast<uint64_t>(s.csr.columns)) my_source = -1;
    if (static_cast<uint64_t>(my_row) >= static_cast<uint64_t>(s.csr.rows))
      my_row = 0, my_source = -1;
    for (int from = lanes.group; from - lanes.group < 32; from += lanes.groups) {
      const int64_t to = __shfl_sync(~0u, my_row, from);
      const int64_t source = __shfl_sync(~0u, my_source, from);
      const int64_t id = __shfl_sync(~0u, my_id, from);
      const T* a = static_cast<const T*>(s.a) + to * s.a_stride;
      const T* b = static_cast<const T*>(s.b) + source * s.b_stride;
      Acc dot = source < 0 ? not_a_number<Acc>() : Acc(0);
      if (source >= 0) {
#pragma unroll 1
        for (int64_t column = static_cast<int64_t>(own) * kOwned; column < s.features;
             column += static_cast<int64_t>(lanes.count) * kOwned) {
          Packed<T, kVec> left[kLoads], right[kLoads];
          unsigned taken = s.arg ? 0u : ~0u;
#pragma unroll
          for (int i = 0; i < kLoads; ++i) {
            left[i] = right[i] = Packed<T, kVec>{};
            const int64_t at = column + i * kVec;
            if (at < s.features) {
              left[i] = Packed<T, kVec>::load(a + at);
              right[i] = Packed<T, kVec>::load(b + at);
              if (s.arg) {
                const int64_t where = to * s.features + at;
                taken |= (s.csr.wide_offsets
                              ? equal_mask<long long, kVec>(
                                    static_cast<const long long*>(s.arg) + where, id)
                              : equal_mask<int, kVec>(static_cast<const int*>(s.arg) + where, id))
                         << (i * kVec);
              }
            }
          }
#pragma unroll
          for (int k = 0; k < kOwned; ++k)
            if (taken >> k & 1)
              dot = fused(left[k / kVec][k % kVec], right[k / kVec][k % kVec], dot);
        }
      }
      for (int distance = 1; distance < lanes.count; distance *= 2)
        dot += __shfl_xor_sync(~0u, dot, distance);
      if (own == 0 && base + from < end &&
          static_cast<uint64_t>(id) < static_cast<uint64_t>(s.csr.edges))
        out[id] = narrow<T>(dot);
    }
  }
}

template <class T, int kVec>
cudaError_t launch_edges(const SddmmPlan& plan, const SddmmArgs& args, cudaStream_t stream) {
  return launch(sddmm_edges<T, kVec>, {dim3(static_cast<unsigned>(plan.blocks)), dim3(32 * kWarps)},
                stream, args);
}

}  // namespace

cudaError_t launch_sddmm(Dtype dtype, const SddmmPlan& plan, const SddmmArgs& args,
                         cudaStream_t stream) {
  const int bytes = plan.load_bytes;
  switch (dtype) {
    case Dtype::f32:
      return bytes == 16 ? launch_edges<float, 4>(plan, args, stream)
                         : launch_edges<float, 1>(plan, args, stream);
    case Dtype::f64:
      return launch_edges<double, 1>(plan, args, stream);
    case Dtype::f16:
      return bytes == 16  ? launch_edges<__half, 8>(plan, args, stream)
             : bytes == 4 ? launch_edges<__half, 2>(plan, args, stream)
                          : launch_edges<__half, 1>(plan, args, stream);
    case Dtype::bf16:
      return bytes == 16  ? launch_edges<__nv_bfloat16, 8>(plan, args, stream)
             : bytes == 4 ? launch_edges<__nv_bfloat16, 2>(plan, args, stream)
                          : launch_edges<__nv_bfloat16, 1>(plan, args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace gpuprims
