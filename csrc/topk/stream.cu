// block_row and split_row: the kernels around Stream, and their launches.
#include <utility>

#include "common/launch.h"
#include "common/ticket.cuh"
#include "topk/any_width.cuh"
#include "topk/merge.cuh"

namespace gpuprims {
namespace {

namespace tuning = topk_tuning;

// Before a split row's kernel: zeroes its counters and, for a shared bound, takes the sample. It
// runs beside the start of that kernel, which waits for it only where it needs the result.
template <class S, class Pair>
__device__ __forceinline__ void prepare(const TopkArgs& args,
                                        const KeyCodec<typename S::Key>& codec,
                                        const StreamWorkspace& ws, int lanes) {
  cudaTriggerProgrammaticLaunchCompletion();
  const int64_t row = blockIdx.x;
  if (blockIdx.y == 0 && threadIdx.x == 0) ws.state[row] = 0, ws.again[row] = 0;
  if (lanes == 0) return;
  const Part<typename S::Key> part(args, RowPlace(row, args.inner), 0, args.n);
  const uint64_t threads = gridDim.y * blockDim.x, thread = blockIdx.y * blockDim.x + threadIdx.x;
  // Neighbouring runs go to different blocks: in sorted rows the best few then count as many
  // groups.
  const uint64_t warp = threadIdx.x / 32 * gridDim.y + blockIdx.y;
  uint4 seen[tuning::kSampleVectors];
  uint32_t at[tuning::kSampleVectors];  // vectors
#pragma unroll
  for (int u = 0; u < tuning::kSampleVectors; ++u) {
    // Short runs of vectors, spread evenly; a warp's lie far apart, so that its best stands for no
    // neighbourhood.
    const int s = ws.run_shift;
    const uint64_t run = ((u * (32 >> s) + (threadIdx.x % 32 >> s)) * (threads / 32) + warp) *
                         (part.vectors >> s) / ((threads >> s) * tuning::kSampleVectors);
    at[u] = (static_cast<uint32_t>(run) << s) + (threadIdx.x & ((1 << s) - 1));
    seen[u] = part.load(at[u]);
  }
  Pair best = 0;
  typename S::Top tops[tuning::kSampleVectors];
  if (!part.mask)
    best = tops_pair<S, Pair>(part, seen, tops, [&](int u) { return at[u]; }, 0, codec);
  for (int u = 0; part.mask && u < tuning::kSampleVectors; ++u) {
    const Pair pair = vector_pair<S, Pair>(part, at[u], 0, codec);
    if (pair > best) best = pair;
  }
  __shared__ Pair warps[tuning::kSampleThreads / 32];
#pragma unroll 1
  for (int step = (lanes < 32 ? lanes : 32) / 2; step > 0; step /= 2) {
    const Pair other = shuffle_xor(best, step);
    if (other > best) best = other;
  }
  if (lanes > 32) {
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (thread % lanes != 0) return;
    for (unsigned w = 1; w < lanes / 32; ++w) {
      const Pair other = warps[threadIdx.x / 32 + w];
      if (other > best) best = other;
    }
  }
  if (thread % lanes == 0) static_cast<Pair*>(ws.maxima)[(row * threads + thread) / lanes] = best;
}

// Of 32 registers, so that its blocks and those that wait for them share a multiprocessor.
template <class Key, class Pair>
__global__ void __launch_bounds__(tuning::kSampleThreads, 8)
    topk_prepare(const __grid_constant__ TopkArgs args, const __grid_constant__ KeyCodec<Key> codec,
                 const __grid_constant__ StreamWorkspace ws, int lanes) {
  with_float_scan<Key>(args.dtype, [&]<class S>(std::type_identity<S>) {
    prepare<S, Pair>(args, codec, ws, lanes);
  });
}

// The same for what has no scan of its own, of any width: a switch costs nothing beside the loads.
template <class Pair>
__global__ void __launch_bounds__(tuning::kSampleThreads)
    topk_prepare_any(const __grid_constant__ TopkArgs args, const __grid_constant__ AnyCodec codec,
                     const __grid_constant__ StreamWorkspace ws, int lanes, int bytes) {
  with_width(bytes, codec, [&]<class Key>(const KeyCodec<Key>& keys) {
    if constexpr (sizeof(Key) * 2 <= sizeof(Pair))
      prepare<ScanAny<Key>, Pair>(args, keys, ws, lanes);
  });
}

template <class S, class Pair>
cudaError_t launch_prepare(const TopkArgs& args, const LaunchShape& shape,
                           const StreamWorkspace& ws, int lanes, cudaStream_t stream) {
  using Key = typename S::Key;
  if constexpr (S::kFlips)
    return launch(topk_prepare<Key, Pair>, shape, stream, args,
                  make_codec<Key>(args.dtype, args.largest), ws, lanes);
  else
    return launch(topk_prepare_any<Pair>, shape, stream, args,
                  make_any_codec(args.dtype, args.largest), ws, lanes,
                  static_cast<int>(sizeof(Key)));
}

// The bound that the row's sample gives.
template <class Pair, int kThreads>
__device__ __forceinline__ Pair shared_bound(const StreamWorkspace& ws, const StreamShape& shape,
                                             int64_t row) {
  const Pair* const maxima = static_cast<const Pair*>(ws.maxima) + row * shape.maxima;
  const auto best_of = [&](int first, int step) {
    Pair top = 0;
#pragma unroll 4
    for (int i = first; i < shape.maxima; i += step) {
      const Pair pair = load_written(maxima + i);
      if (pair > top) top = pair;
    }
    return top;
  };
  if (shape.groups > tuning::kMaxGroups) {
    for (int g = threadIdx.x; g < shape.groups; g += kThreads)
      buffer<Pair>()[g] = best_of(g, shape.groups);
    __syncthreads();
    return select_bound<Pair, kThreads>(shape.groups, shape.rank, shape.rank + shape.rank / 8);
  }
  return group_bound<Pair, kThreads>(best_of(threadIdx.x, kThreads), shape.groups, shape.rank);
}

// The block's candidates join the row's. Returns how many there are in all, in the row's last
// block; -1 elsewhere.
template <class Pair, int kThreads>
__device__ __forceinline__ int hand_over(const StreamWorkspace& ws, const StreamShape& shape,
                                         int64_t row, int count) {
  using State = unsigned long long;
  constexpr int kDone = 32;  // the bit from which on blocks are counted
  auto& s = block<Pair>();
  __shared__ int at;
  if (threadIdx.x == 0) at = static_cast<int>(atomicAdd(ws.state + row, static_cast<State>(count)));
  __syncthreads();
  Pair* const out = static_cast<Pair*>(ws.pairs) + row * shape.splits * shape.flush + at;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) out[i] = buffer<Pair>()[i];
  __syncthreads();
  if (threadIdx.x == 0) {
    s.last = -1;
    const State before = add_in_order(ws.state + row, State{1} << kDone);
    if (static_cast<int>(before >> kDone) == shape.splits - 1) {
      s.last = static_cast<int>(before);
      ws.state[row] = 0;  // for the retry
    }
  }
  __syncthreads();
  return s.last;
}

// Blocks a multiprocessor shall hold. Registers follow from it: spilled ones come back from far
// away while L1 streams.
template <class Pair, int kThreads, int kUnroll>
constexpr int kResident = (kThreads == 128                   ? 8
                           : kThreads == 512 && kUnroll == 4 ? 2
                           : kThreads == 256                 ? 2
                                                             : 1);

template <class S, class Pair, int kThreads, int kUnroll>
__global__ void __launch_bounds__(kThreads, kResident<Pair, kThreads, kUnroll>)
    topk_stream(const __grid_constant__ TopkArgs args,
                const __grid_constant__ KeyCodec<typename S::Key> codec,
                const __grid_constant__ StreamShape shape,
                const __grid_constant__ StreamWorkspace ws, bool retry) {
  if (retry) cudaGridDependencySynchronize();
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    if (retry && !ws.again[row]) continue;
    const int64_t begin = kThreads > 128 ? blockIdx.y * shape.chunk : 0;
    const int64_t end = begin + shape.chunk < args.n ? begin + shape.chunk : args.n;
    const RowPlace place(row, args.inner);
    Stream<S, Pair, kThreads, kUnroll> stream(args, codec, shape, row, place, begin, end);
    int count = stream.run([&] {
      if (retry) return Pair(0);
      cudaGridDependencySynchronize();
      return shape.rank > 0 ? shared_bound<Pair, kThreads>(ws, shape, row) : Pair(0);
    });
    const int wanted = static_cast<int>(args.k);
    if (kThreads > 128 && shape.splits > 1) {
      if (count > shape.flush) {
        __syncthreads();
        keep_best<Pair, kThreads>(count, wanted, shape.flush, shape.capacity);
        count = block<Pair>().count;
      }
      const int total = hand_over<Pair, kThreads>(ws, shape, row, count);
      if (total < 0) continue;
      if (shape.retry && !retry &&
          total < wanted) {  // the sample misled, or the mask left fewer than k
        if (threadIdx.x == 0) ws.again[row] = 1;
        continue;
      }
      const Pair* const written =
          static_cast<const Pair*>(ws.pairs) + row * shape.splits * shape.flush;
      count = merge_parts<Pair, kThreads>(written, total, wanted, shape.capacity);
    }
    __syncthreads();
    // Where rows are few, every line of code comes from device memory: this is little, and near.
    if (kThreads > 128 && kUnroll == 8 && count >= wanted && count <= kByCounting<kThreads>) {
      const Output<typename S::Key> output(args, place);
      rank_by_counting<Pair, kThreads>(
          count, wanted, [&](int rank, int, Pair pair) { output.put(rank, pair, codec); });
      __syncthreads();
      continue;
    }
    const uint16_t* const order = rank_best<Pair, kThreads>(count, wanted, shape.capacity);
    const Output<typename S::Key> output(args, place);
#pragma unroll 1
    for (int i = threadIdx.x; i < wanted; i += kThreads) {
      if (i < count)
        output.put(i, buffer<Pair>()[order[i]], codec);
      else
        output.put_missing(i);
    }
    __syncthreads();
  }
}

template <class S, class Pair, int kThreads, int kUnroll>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                  cudaStream_t stream) {
  const auto codec = make_codec<typename S::Key>(args.dtype, args.largest);
  const bool taken = plan.splits > 1 && plan.rank > 0;  // a sample of the row
  StreamShape shape;
  shape.splits = plan.splits;
  shape.chunk = plan.chunk;
  shape.capacity = plan.capacity;
  shape.flush = plan.flush;
  shape.rank = plan.rank;
  shape.groups = plan.groups;
  shape.maxima = plan.maxima;
  shape.sampled = plan.sampled;
  shape.keeps = plan.keeps;
  shape.retry = plan.retry && plan.rank > 0;
  StreamWorkspace ws;
  const auto kernel = topk_stream<S, Pair, kThreads, kUnroll>;
  LaunchShape main{dim3(static_cast<unsigned>(plan.grid / plan.splits), plan.splits),
                   dim3(kThreads), kBufferAt<Pair> + plan.smem};
  if (plan.splits > 1) {
    auto* at = static_cast<unsigned char*>(workspace);
    ws.state = reinterpret_cast<unsigned long long*>(at);
    ws.again = reinterpret_cast<int*>(ws.state + args.rows);
    at += round_up(args.rows * 12, 256);
    ws.pairs = at;
    ws.run_shift = args.rows * args.n >= tuning::kLongSample ? 2 : 1;
    ws.maxima = at + args.rows * plan.splits * plan.flush * sizeof(Pair);
    const LaunchShape before{dim3(static_cast<unsigned>(args.rows), taken ? plan.sample_blocks : 1),
                             dim3(taken ? tuning::kSampleThreads : 32)};
    const int lanes = taken ? plan.sample_lanes : 0;
    const auto code = launch_prepare<S, Pair>(args, before, ws, lanes, stream);
    if (code != cudaSuccess) return code;
    main.dependent = true;
  }
  const auto code = launch(kernel, main, stream, args, codec, shape, ws, false);
  if (code != cudaSuccess || !shape.retry) return code;
  return launch(kernel, main, stream, args, codec, shape, ws, true);
}

template <class S, class Pair>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                  cudaStream_t stream) {
  constexpr size_t kSize = sizeof(typename S::Key);
  if constexpr (kSize < 8 && sizeof(Pair) > 8)  // rows of 2^32 and more: rare, so one size
    return start<S, Pair, 512, 4>(args, plan, workspace, stream);
  else if constexpr (std::is_same_v<S, ScanAny<typename S::Key>>) {  // as the plan has it: fewer
    if constexpr (kSize >= 4)
      if (plan.threads == 128) return start<S, Pair, 128, 8>(args, plan, workspace, stream);
    return start<S, Pair, 512, 8>(args, plan, workspace, stream);
  } else if (plan.threads == 128)
    return start<S, Pair, 128, 8>(args, plan, workspace, stream);
  else if (plan.threads == 256)
    return start<S, Pair, 256, 8>(args, plan, workspace, stream);
  else if (plan.unroll == 8)
    return start<S, Pair, 512, 8>(args, plan, workspace, stream);
  else
    return start<S, Pair, 512, 4>(args, plan, workspace, stream);
}

}  // namespace

cudaError_t launch_topk_stream(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                               cudaStream_t stream) {
  if (!plan.wide) {
    if (args.dtype == Dtype::f32) return start<ScanFloat32, Narrow>(args, plan, workspace, stream);
    if (args.dtype == Dtype::f16)
      return start<ScanFloat16<__half2>, Narrow>(args, plan, workspace, stream);
    if (args.dtype == Dtype::bf16)
      return start<ScanFloat16<__nv_bfloat162>, Narrow>(args, plan, workspace, stream);
  }
  switch (dtype_bytes(args.dtype)) {
    case 1:
      return plan.wide ? start<ScanAny<uint8_t>, Wide>(args, plan, workspace, stream)
                       : start<ScanAny<uint8_t>, Narrow>(args, plan, workspace, stream);
    case 2:
      return plan.wide ? start<ScanAny<uint16_t>, Wide>(args, plan, workspace, stream)
                       : start<ScanAny<uint16_t>, Narrow>(args, plan, workspace, stream);
    case 4:
      return plan.wide ? start<ScanAny<uint32_t>, Wide>(args, plan, workspace, stream)
                       : start<ScanAny<uint32_t>, Narrow>(args, plan, workspace, stream);
    default:
      return start<ScanAny<uint64_t>, Wide>(args, plan, workspace, stream);
  }
}

}  // namespace gpuprims
