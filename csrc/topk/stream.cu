// block_row and split_row: the kernels around Stream, and their launches.
#include <utility>

#include "common/launch.h"
#include "topk/merge.cuh"

namespace gpuprims {
namespace {

namespace tuning = topk_tuning;

// Before a split row's kernel: zeroes its counters and, for a shared bound, takes the sample. It
// runs beside the start of that kernel, which waits for it only where it needs the result.
template <class Key, class Pair>
__global__ void __launch_bounds__(tuning::kSampleThreads)
    topk_prepare(TopkArgs args, KeyCodec<Key> codec, StreamWorkspace ws, int groups) {
  cudaTriggerProgrammaticLaunchCompletion();
  const int64_t row = blockIdx.y;
  if (blockIdx.x == 0 && threadIdx.x == 0) ws.done[row] = 0, ws.again[row] = 0;
  if (groups == 0) return;
  const Part<Key> part(args, RowPlace(row, args.inner), 0, args.n);
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  uint4 seen[tuning::kSampleVectors];
  uint32_t at[tuning::kSampleVectors];  // vectors
#pragma unroll
  for (int u = 0; u < tuning::kSampleVectors; ++u) {
    const uint64_t run = static_cast<uint64_t>(u * groups + warp) * (part.vectors / 32) /
                         (groups * tuning::kSampleVectors);
    at[u] = static_cast<uint32_t>(run) * 32 + threadIdx.x % 32;
    seen[u] = part.load(at[u]);
  }
  Pair best = 0;
#pragma unroll
  for (int u = 0; u < tuning::kSampleVectors; ++u) {
    const Pair pair =
        best_of_vector<Pair>(seen[u], part.present(at[u]), part.position(at[u]), codec);
    if (pair > best) best = pair;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Pair other = shuffle_xor(best, step);
    if (other > best) best = other;
  }
  if (threadIdx.x % 32 == 0) static_cast<Pair*>(ws.maxima)[row * groups + warp] = best;
}

template <class Key, class Pair, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    topk_stream(const __grid_constant__ TopkArgs args, const __grid_constant__ KeyCodec<Key> codec,
                const __grid_constant__ StreamShape shape,
                const __grid_constant__ StreamWorkspace ws, bool retry) {
  if (retry) cudaGridDependencySynchronize();
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    if (retry && !ws.again[row]) continue;
    const int64_t begin = blockIdx.y * shape.chunk;
    const int64_t end = begin + shape.chunk < args.n ? begin + shape.chunk : args.n;
    const RowPlace place(row, args.inner);
    Stream<Key, Pair, kThreads> stream(args, codec, shape, place, begin, end);
    Pair bound = 0;
    if (shape.shared && !retry) {
      cudaGridDependencySynchronize();
      for (int i = threadIdx.x; i < shape.groups; i += kThreads)
        buffer<Pair>()[i] =
            load_written(static_cast<const Pair*>(ws.maxima) + row * shape.groups + i);
      __syncthreads();
      bound = select_bound<Pair, kThreads>(shape.groups, shape.rank);
      __syncthreads();
    }
    int count = stream.run(bound);
    const int wanted = static_cast<int>(args.k);
    if (shape.splits > 1) {
      if (count > shape.flush) {
        __syncthreads();
        keep_best<Pair, kThreads>(count, wanted, shape.capacity);
        count = wanted;
      }
      const int64_t part = row * shape.splits + blockIdx.y;
      Pair* const out = static_cast<Pair*>(ws.pairs) + part * shape.flush;
      for (int i = threadIdx.x; i < count; i += kThreads) out[i] = buffer<Pair>()[i];
      if (threadIdx.x == 0) ws.counts[part] = count;
      if (!shape.shared && !retry) cudaGridDependencySynchronize();  // the counter is zero only now
      if (!last_block<Pair>(ws.done + row, shape.splits)) continue;
      count = merge_parts<Pair, kThreads>(
          static_cast<const Pair*>(ws.pairs) + row * shape.splits * shape.flush,
          ws.counts + row * shape.splits, shape.splits, shape.flush, wanted, shape.capacity);
      if (threadIdx.x == 0) ws.done[row] = 0;
      if (shape.shared && !retry &&
          count < wanted) {  // the sample misled, or the mask left fewer than k
        if (threadIdx.x == 0) ws.again[row] = 1;
        __syncthreads();
        continue;
      }
    }
    __syncthreads();
    const Output<Key> output(args, place);
    emit_sorted<Pair, kThreads>(count, wanted, shape.capacity,
                                [&](int64_t rank, Pair pair) { output.put(rank, pair, codec); });
    for (int i = count + threadIdx.x; i < wanted; i += kThreads) output.put_missing(i);
    __syncthreads();
  }
}

template <class Key, class Pair, int kThreads>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                  cudaStream_t stream) {
  const auto codec = make_codec<Key>(args.dtype, args.largest);
  StreamShape shape{plan.splits, plan.chunk,  plan.capacity,   plan.flush,
                    plan.rank,   plan.groups, plan.sample > 0, plan.shared_threshold};
  StreamWorkspace ws;
  const auto kernel = topk_stream<Key, Pair, kThreads>;
  LaunchShape main{
      dim3(static_cast<unsigned>(std::min<int64_t>(args.rows, INT32_MAX)), plan.splits),
      dim3(kThreads), kBufferAt<Pair> + plan.smem};
  if (plan.splits > 1) {
    auto* at = static_cast<unsigned char*>(workspace);
    const auto take = [&](int64_t bytes) { return std::exchange(at, at + round_up(bytes, 256)); };
    ws.pairs = take(plan.grid * plan.flush * sizeof(Pair));
    ws.counts = reinterpret_cast<int*>(take(plan.grid * 4));
    ws.done = reinterpret_cast<int*>(take(args.rows * 8));
    ws.again = ws.done + args.rows;
    ws.maxima = at;
    const int groups = plan.shared_threshold ? plan.groups : 0;
    const LaunchShape prepare{
        dim3(groups ? tuning::kSampleBlocks : 1, static_cast<unsigned>(args.rows)),
        dim3(groups ? tuning::kSampleThreads : 32)};
    const auto code = launch(topk_prepare<Key, Pair>, prepare, stream, args, codec, ws, groups);
    if (code != cudaSuccess) return code;
    main.dependent = true;
  }
  auto code = launch(kernel, main, stream, args, codec, shape, ws, false);
  if (code != cudaSuccess || !plan.shared_threshold) return code;
  shape.rank = 0;
  return launch(kernel, main, stream, args, codec, shape, ws, true);
}

template <class Key, class Pair>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                  cudaStream_t stream) {
  if constexpr (sizeof(Key) < 8 && sizeof(Pair) > 8)  // rows of 2^32 and more: rare, so one size
    return start<Key, Pair, 512>(args, plan, workspace, stream);
  else
    switch (plan.threads) {
      case 256:
        return start<Key, Pair, 256>(args, plan, workspace, stream);
      case 512:
        return start<Key, Pair, 512>(args, plan, workspace, stream);
      default:
        return start<Key, Pair, 1024>(args, plan, workspace, stream);
    }
}

template <class Key>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                  cudaStream_t stream) {
  if constexpr (sizeof(Key) < 8)
    if (!plan.wide) return start<Key, Narrow>(args, plan, workspace, stream);
  return start<Key, Wide>(args, plan, workspace, stream);
}

}  // namespace

cudaError_t launch_topk_stream(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                               cudaStream_t stream) {
  switch (dtype_bytes(args.dtype)) {
    case 1:
      return start<uint8_t>(args, plan, workspace, stream);
    case 2:
      return start<uint16_t>(args, plan, workspace, stream);
    case 4:
      return start<uint32_t>(args, plan, workspace, stream);
    default:
      return start<uint64_t>(args, plan, workspace, stream);
  }
}

}  // namespace gpuprims
