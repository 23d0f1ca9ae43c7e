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

// The best kKeep of one bucket, in registers, the best first; of equal keys the first seen.
template <class Key, int kKeep>
struct Best {
  Key key[kKeep];
  int column[kKeep];

  // Elements 0 .. kKeep - 1 find `filled` places taken; later ones must beat the last.
  __device__ __forceinline__ void insert(Key new_key, int new_column, int filled) {
    if (filled == kKeep && new_key <= key[kKeep - 1]) return;
    bool shift = false;  // the ones behind move on whole, equal keys among them in order
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {
      if (i > filled) break;
      shift = shift || i == filled || new_key > key[i];
      if (!shift) continue;
      const Key old_key = key[i];
      const int old_column = column[i];
      key[i] = new_key, column[i] = new_column;
      new_key = old_key, new_column = old_column;
    }
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
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {  // a bucket has eight elements or more
      const int column = bucket + i * buckets;
      best.insert(codec.encode(from[column]), column, i);
    }
    int column = bucket + kKeep * buckets;
    for (; column + (kInFlight - 1) * buckets < n; column += kInFlight * buckets) {
      Key bits[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) bits[i] = from[column + i * buckets];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        best.insert(codec.encode(bits[i]), column + i * buckets, kKeep);
    }
    for (; column < n; column += buckets) best.insert(codec.encode(from[column]), column, kKeep);
    const int64_t at = row * (args.buckets * kKeep) + bucket;
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {  // [keep, buckets]: adjacent again
      static_cast<Key*>(args.values)[at + static_cast<int64_t>(i) * buckets] =
          from[best.column[i]];  // its own bits: a key does not hold those of NaN and -0.0
      args.columns[at + static_cast<int64_t>(i) * buckets] = best.column[i];
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
  switch (dtype_bytes(args.dtype)) {
    case 1:
      return launch_width<uint8_t>(args, stream);
    case 2:
      return launch_width<uint16_t>(args, stream);
    case 4:
      return launch_width<uint32_t>(args, stream);
    default:
      return launch_width<uint64_t>(args, stream);
  }
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
