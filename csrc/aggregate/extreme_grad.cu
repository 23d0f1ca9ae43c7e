// The gradient of max and min: a sum over the transpose of the columns that an edge gave.
#include "aggregate/rows.cuh"

namespace gpuprims {

// Vectors look at the low bytes of stored edges first, where those were made: most edges can be
// told from them that no column of the lane took them, and the others alone are looked at in full.
template <class Group>
__device__ __forceinline__ void find_by_low_bytes(const Group& group, typename Group::Batch& batch,
                                                  const int32_t (&source)[Group::kFlight],
                                                  const int64_t (&id)[Group::kFlight]) {
  constexpr int kFlight = Group::kFlight, kWords = Group::kOwned / 4;
  const AggregateArgs& a = group.a;
  const auto* const bytes = static_cast<const uint8_t*>(a.arg_out);
  const int64_t first = group.tile_at + (group.column < group.width ? group.column : 0);
  bool maybe[kFlight];
#pragma unroll
  for (int u = 0; u < kFlight; ++u) maybe[u] = bytes == nullptr;
  if (bytes) {
    unsigned low[kFlight][kWords];
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
      const auto* const from = at_offset(bytes + first, static_cast<uint32_t>(source[u]),
                                         static_cast<uint32_t>(a.features));
      load_vector<unsigned, kWords>(low[u], reinterpret_cast<const unsigned*>(from));
    }
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
      const unsigned wanted = (static_cast<unsigned>(id[u]) & 255) * 0x01010101u;
      unsigned zeros = 0;  // not 0: some byte differs in nothing
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const unsigned differs = low[u][i] ^ wanted;
        zeros |= (differs - 0x01010101u) & ~differs & 0x80808080u;
      }
      maybe[u] = zeros != 0;
    }
  }
  if (a.csr.wide_offsets) {
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
      batch.taken[u] = 0;
      if (maybe[u])
        batch.taken[u] =
            group.template took<long long>(static_cast<const long long*>(a.arg), source[u], id[u]);
    }
    return;
  }
  // All loads before the first comparison: each would wait for its own otherwise.
  int stored[kFlight][Group::kOwned];
#pragma unroll
  for (int u = 0; u < kFlight; ++u) {
    const int* const from =
        at_offset(static_cast<const int*>(a.arg) + first, static_cast<uint32_t>(source[u]),
                  static_cast<uint32_t>(a.features) * 4);
#pragma unroll
    for (int k = 0; k < Group::kOwned; ++k) stored[u][k] = -1;
    if (maybe[u]) {
#pragma unroll
      for (int k = 0; k < Group::kOwned; k += 4) load_vector<int, 4>(stored[u] + k, from + k);
    }
  }
#pragma unroll
  for (int u = 0; u < kFlight; ++u) {
    batch.taken[u] = 0;
#pragma unroll
    for (int k = 0; k < Group::kOwned; ++k)
      batch.taken[u] |= (stored[u][k] == static_cast<int>(id[u]) ? 1u : 0u) << k;
  }
}

template <class T>
using GradGroup = RowGroup<T, kLaneBytes / sizeof(T), Mode::extreme_grad, int32_t>;
#define GPUPRIMS_FIND_BY_LOW_BYTES(T)                                                       \
  template <>                                                                               \
  __device__ __forceinline__ void GradGroup<T>::find_taken(                                 \
      Batch& batch, const int32_t (&source)[kFlight], const int64_t (&id)[kFlight]) const { \
    find_by_low_bytes(*this, batch, source, id);                                            \
  }
GPUPRIMS_FIND_BY_LOW_BYTES(float)
GPUPRIMS_FIND_BY_LOW_BYTES(__half)
GPUPRIMS_FIND_BY_LOW_BYTES(__nv_bfloat16)

namespace {

// The low bytes of stored edges, 4 a thread: what most edges can be told from without reading the
// rest.
__global__ void __launch_bounds__(256)
    low_bytes(const void* const arg, const bool wide, const int64_t words, unsigned* const low) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (at >= words) return;
  unsigned packed = 0;
  if (wide) {
    const auto* const from = static_cast<const ulonglong2*>(arg) + 2 * at;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const ulonglong2 two = __ldg(from + i);
      packed |= static_cast<unsigned>((two.x & 255) | (two.y & 255) << 8) << 16 * i;
    }
  } else {
    const uint4 four = __ldg(static_cast<const uint4*>(arg) + at);
    packed = (four.x & 255) | (four.y & 255) << 8 | (four.z & 255) << 16 | four.w << 24;
  }
  low[at] = packed;
}

}  // namespace

cudaError_t launch_extreme_grad(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                                cudaStream_t stream) {
  if (args.arg_out) {
    const int64_t words = args.csr.columns * args.features / 4;
    const auto blocks = static_cast<unsigned>(ceil_div(words, 256));
    const auto code = launch(low_bytes, {dim3(blocks), dim3(256)}, stream, args.arg,
                             args.csr.wide_offsets, words, static_cast<unsigned*>(args.arg_out));
    if (code != cudaSuccess) return code;
  }
  return launch_mode<Mode::extreme_grad>(dtype, plan, args, stream);
}

}  // namespace gpuprims
