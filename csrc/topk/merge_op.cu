// Rows of candidates in shared memory, a warp or a block a row: a candidate's rank is the number of
// better ones where they are few, else they are sorted (bitonic). Equal candidates are told apart
// by their positions, so that ranks are distinct.
#include "common/launch.h"
#include "topk/any_width.cuh"
#include "topk/merge_op_kernels.h"

namespace gpuprims {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpMost = 64;    // candidates of a warp's row
constexpr int kCountMost = 512;  // beyond, counting (m^2) costs more than sorting
constexpr int kWarps = kThreads / 32;

struct Candidates {
  uint64_t* keys;
  uint64_t* indices;  // missing: all ones, with key 0
  uint16_t* positions;

  __device__ __forceinline__ bool better(int a, int b) const {
    if (keys[a] != keys[b]) return keys[a] > keys[b];
    if (indices[a] != indices[b]) return indices[a] < indices[b];
    return positions[a] < positions[b];
  }
  __device__ __forceinline__ void swap(int a, int b) const {
    const uint64_t key = keys[a], index = indices[a];
    const uint16_t position = positions[a];
    keys[a] = keys[b], indices[a] = indices[b], positions[a] = positions[b];
    keys[b] = key, indices[b] = index, positions[b] = position;
  }
};

__device__ __forceinline__ int64_t load_index(const MergeArgs& args, int64_t at) {
  return args.wide_index ? static_cast<const int64_t*>(args.indices)[at]
                         : static_cast<const int32_t*>(args.indices)[at];
}

// Slot `at` gets candidate `from` of the flat input; -1: none.
__device__ __forceinline__ void put(const MergeArgs& args, int64_t at, int64_t from,
                                    int64_t position) {
  const int64_t index = from >= 0 ? load_index(args, from) : -1;
  const bool missing = index < 0;
  store_bits(args.out_values, args.bytes, at,
             missing ? args.missing : load_bits(args.values, args.bytes, from));
  if (args.wide_index)
    static_cast<int64_t*>(args.out_indices)[at] = missing ? -1 : index;
  else
    static_cast<int32_t*>(args.out_indices)[at] = missing ? -1 : static_cast<int32_t>(index);
  args.out_positions[at] = missing ? -1 : position;
}

template <bool kWarp>
__device__ __forceinline__ void sync() {
  if constexpr (kWarp)
    __syncwarp();
  else
    __syncthreads();
}

// `room`: candidates that a row's part of shared memory holds, a power of two where they are
// sorted.
template <bool kWarp>
__global__ void __launch_bounds__(kThreads)
    merge_rows(const __grid_constant__ MergeArgs args, const __grid_constant__ AnyCodec codec,
               int room) {
  extern __shared__ __align__(16) unsigned char dynamic_memory[];
  constexpr int kWorkers = kWarp ? 32 : kThreads, kGroups = kWarp ? kWarps : 1;
  const int group = kWarp ? threadIdx.x / 32 : 0, worker = threadIdx.x % kWorkers;
  const int m = static_cast<int>(args.m);
  Candidates c;
  c.keys = reinterpret_cast<uint64_t*>(dynamic_memory) + group * room;
  c.indices = reinterpret_cast<uint64_t*>(dynamic_memory) + (kGroups + group) * room;
  c.positions = reinterpret_cast<uint16_t*>(dynamic_memory + 16 * kGroups * room) + group * room;
  const bool by_counting = kWarp || m <= kCountMost;
  const int held = by_counting ? m : room;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kGroups + group; row < args.rows;
       row += static_cast<int64_t>(gridDim.x) * kGroups) {
    for (int i = worker; i < held; i += kWorkers) {
      const int64_t index = i < m ? load_index(args, row * m + i) : -1;
      c.keys[i] =
          index < 0 ? 0 : codec.encode(args.bytes, load_bits(args.values, args.bytes, row * m + i));
      c.indices[i] = index < 0 ? ~uint64_t{0} : static_cast<uint64_t>(index);
      c.positions[i] = static_cast<uint16_t>(i);
    }
    sync<kWarp>();
    if (!by_counting) {
      for (int run = 2; run <= room; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
          for (int pair = worker; pair < room / 2; pair += kWorkers) {
            const int a = 2 * pair - (pair & (step - 1)), b = a + step;
            if (c.better(b, a) == ((a & run) == 0)) c.swap(a, b);
          }
          sync<kWarp>();
        }
      }
    }
    for (int i = worker; i < held; i += kWorkers) {
      int rank = i;
      if (by_counting) {
        rank = 0;
        for (int j = 0; j < m; ++j) rank += c.better(j, i);
      }
      const int position = c.positions[i];
      if (rank < args.k && rank < m)
        put(args, row * args.k + rank, position < m ? row * m + position : -1, position);
    }
    for (int64_t slot = m + static_cast<int64_t>(worker); slot < args.k; slot += kWorkers)
      put(args, row * args.k + slot, -1, -1);
    sync<kWarp>();
  }
}

__global__ void __launch_bounds__(kThreads)
    merge_gather(const __grid_constant__ MergeArgs args, const int64_t* order, void* sorted,
                 bool* kept) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads, all = args.rows * args.m;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < all;
       at += threads) {
    const int64_t from = at / args.m * args.m + order[at];
    store_bits(sorted, args.bytes, at, load_bits(args.values, args.bytes, from));
    kept[at] = load_index(args, from) >= 0;
  }
}

__global__ void __launch_bounds__(kThreads)
    merge_write(const __grid_constant__ MergeArgs args, const int64_t* order, const int64_t* chosen,
                int64_t found) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads, all = args.rows * args.k;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < all;
       at += threads) {
    const int64_t row = at / args.k, slot = at - row * args.k;
    const int64_t place = slot < found ? chosen[row * found + slot] : -1;
    const int64_t position = place < 0 ? -1 : order[row * args.m + place];
    put(args, at, position < 0 ? -1 : row * args.m + position, position);
  }
}

LaunchShape blocks_for(int64_t threads, size_t smem = 0) {
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  return {dim3(static_cast<unsigned>(blocks < 65535 ? blocks : 65535)), dim3(kThreads), smem};
}

}  // namespace

cudaError_t launch_merge_rows(const MergeArgs& args, int sms, cudaStream_t stream) {
  const AnyCodec codec = make_any_codec(args.dtype, args.largest);
  const int m = static_cast<int>(args.m);
  if (m <= kWarpMost) {
    const int room = m < 1 ? 1 : m;
    return launch(merge_rows<true>, blocks_for(args.rows * 32, size_t{18} * kWarps * room), stream,
                  args, codec, room);
  }
  int room = m;
  if (m > kCountMost)
    for (room = 1024; room < m;) room *= 2;
  const int64_t blocks = args.rows < 32LL * sms ? args.rows : 32LL * sms;
  return launch(merge_rows<false>,
                {dim3(static_cast<unsigned>(blocks)), dim3(kThreads), size_t{18} * room}, stream,
                args, codec, room);
}

cudaError_t launch_merge_gather(const MergeArgs& args, const int64_t* order, void* sorted,
                                bool* kept, cudaStream_t stream) {
  return launch(merge_gather, blocks_for(args.rows * args.m), stream, args, order, sorted, kept);
}

cudaError_t launch_merge_write(const MergeArgs& args, const int64_t* order, const int64_t* chosen,
                               int64_t found, cudaStream_t stream) {
  return launch(merge_write, blocks_for(args.rows * args.k), stream, args, order, chosen, found);
}

}  // namespace gpuprims
