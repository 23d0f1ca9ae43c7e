// The first stage of approx_topk, and the way back from candidates to columns.
#include <cuda_runtime.h>

#include <algorithm>

#include "common/launch.h"
#include "common/radix_keys.h"
#include "topk/approx_kernels.h"

namespace gpuprims {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 8;  // loads a thread has under way

// The best kKeep of one bucket, in registers, the best first; of equal keys the first seen. Every
// element takes its way through all of them without a branch: of a warp's 32 buckets one has a new
// best at nearly every step, and a branch would be taken by all.
template <class Key, int kKeep>
struct Best {
  Key key[kKeep];
  int step[kKeep];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kKeep; ++i) key[i] = 0, step[i] = -1;
  }
  // A key of 0 is offered only where it is one of the first kKeep: it then finds its place empty.
  __device__ __forceinline__ void insert(Key new_key, int new_step) {
    bool better = false;  // the ones behind a new one move on whole, equal keys among them in order
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {
      better = better || new_key > key[i] || step[i] < 0;
      const Key low = better ? key[i] : new_key;
      const int low_step = better ? step[i] : new_step;
      key[i] = better ? new_key : key[i];
      step[i] = better ? new_step : step[i];
      new_key = low, new_step = low_step;
    }
  }
  __device__ __forceinline__ int at(int i) const { return step[i]; }
};

// Keys of at most 16 bits share a word with the step: a maximum and a minimum a place.
template <class Key, int kKeep>
  requires(sizeof(Key) <= 2)
struct Best<Key, kKeep> {
  uint32_t word[kKeep];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kKeep; ++i) word[i] = 0;
  }
  __device__ __forceinline__ void insert(Key new_key, int new_step) {
    uint32_t fresh =
        static_cast<uint32_t>(new_key) << 16 | static_cast<uint32_t>(0xffff - new_step);
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {
      const uint32_t low = fresh < word[i] ? fresh : word[i];
      word[i] = fresh < word[i] ? word[i] : fresh;
      fresh = low;
    }
  }
  __device__ __forceinline__ int at(int i) const {
    return 0xffff - static_cast<int>(word[i] & 0xffff);
  }
};

// A thread a bucket: columns bucket, bucket + buckets, ..., so that a warp's loads are adjacent. No
// shared memory, no atomics.
template <class Key, int kKeep>
__global__ void __launch_bounds__(kThreads) bucket_best(ApproxArgs args, KeyCodec<Key> codec) {
  const int bucket = blockIdx.x * kThreads + threadIdx.x;
  const int buckets = static_cast<int>(args.buckets), n = static_cast<int>(args.n);
  if (bucket >= buckets) return;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const Key* const from = static_cast<const Key*>(args.input) + row * args.n;
    Best<Key, kKeep> best;
    best.clear();
    int column = bucket, step = 0;
    for (; column + (kInFlight - 1) * buckets < n; column += kInFlight * buckets) {
      Key bits[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) bits[i] = from[column + i * buckets];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) best.insert(codec.encode(bits[i]), step + i);
      step += kInFlight;
    }
    for (; column < n; column += buckets) best.insert(codec.encode(from[column]), step++);
    const int64_t at = row * (args.buckets * kKeep) + bucket;
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {                  // [keep, buckets]: adjacent again
      const int kept = bucket + best.at(i) * buckets;  // a bucket has eight elements or more
      static_cast<Key*>(args.values)[at + static_cast<int64_t>(i) * buckets] =
          from[kept];  // its own bits: a key does not hold those of NaN and -0.0
      args.columns[at + static_cast<int64_t>(i) * buckets] = kept;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    remap(int64_t* indices, const int32_t* columns, int64_t count, int64_t k, int64_t candidates) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < count) indices[at] = columns[at / k * candidates + indices[at]];
}

template <class Key>
cudaError_t launch_width(const ApproxArgs& args, cudaStream_t stream) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((args.buckets + kThreads - 1) / kThreads),
                    static_cast<unsigned>(std::min<int64_t>(args.rows, 65535)));
  shape.block = dim3(kThreads);
  const auto codec = make_codec<Key>(args.dtype, args.largest);
  if (args.keep == 1) return launch(bucket_best<Key, 1>, shape, stream, args, codec);
  if (args.keep == 2) return launch(bucket_best<Key, 2>, shape, stream, args, codec);
  return launch(bucket_best<Key, 4>, shape, stream, args, codec);
}

}  // namespace

cudaError_t launch_bucket_best(const ApproxArgs& args, cudaStream_t stream) {
  return dtype_bytes(args.dtype) == 2 ? launch_width<uint16_t>(args, stream)
                                      : launch_width<uint32_t>(args, stream);
}

cudaError_t launch_remap(int64_t* indices, const int32_t* columns, int64_t rows, int64_t k,
                         int64_t candidates, cudaStream_t stream) {
  const int64_t count = rows * k;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads));
  shape.block = dim3(kThreads);
  return launch(remap, shape, stream, indices, columns, count, k, candidates);
}

}  // namespace gpuprims
