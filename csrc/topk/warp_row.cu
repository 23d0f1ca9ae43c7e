// Short rows: 8, 16 or 32 lanes a row, 16 elements a lane in registers.
//
// The k-th largest of the lanes' best pairs is a bound that k elements reach, and that only k lanes
// have elements above: about G ln(G / (G - k)) of them for G lanes. Those few go to shared memory,
// where a pair's rank is the number of better ones.
#include "common/launch.h"
#include "topk/rows.cuh"

namespace gpuprims {
namespace {

constexpr int kItems = 16;
constexpr int kThreads = 128;

template <class Key, class Pair, int kLanes, bool kAligned>
__global__ void __launch_bounds__(kThreads) topk_warp_row(TopkArgs args, KeyCodec<Key> codec) {
  constexpr int kGroups = kThreads / kLanes;
  constexpr int kVector = kAligned ? Vector<Key>::kSize : 1;
  __shared__ Pair buffers[kGroups][kLanes * kItems];
  const int group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int shift =
      (threadIdx.x % 32) / kLanes * kLanes;  // of this group's lanes in a warp's ballot
  const unsigned below = (1u << lane) - 1;
  Pair* buffer = buffers[group];
  const int n = static_cast<int>(args.n), k = static_cast<int>(args.k);

  for (int64_t first = blockIdx.x * int64_t{kGroups}; first < args.rows;
       first += gridDim.x * int64_t{kGroups}) {
    const int64_t row = first + group;
    const bool active = row < args.rows;  // idle groups walk along: ballots are a warp's
    const RowPlace place(active ? row : args.rows - 1, args.inner);
    const Key* const source = static_cast<const Key*>(args.input) + place.start(args.in);
    const uint8_t* const mask = args.mask ? args.mask + place.start(args.drop) : nullptr;
    Key keys[kItems];
    unsigned valid = 0;
#pragma unroll
    for (int v = 0; v < kItems / kVector; ++v) {
      const int at = (v * kLanes + lane) * kVector;
      if constexpr (kAligned) {
        Vector<Key> loaded;
        loaded.raw = make_uint4(0, 0, 0, 0);
        if (at + kVector <= n) {
          loaded.raw = load_streaming(source + at);
        } else {
#pragma unroll
          for (int j = 0; j < kVector; ++j)
            if (at + j < n) loaded.element[j] = source[at + j];
        }
#pragma unroll
        for (int j = 0; j < kVector; ++j) keys[v * kVector + j] = loaded.element[j];
      } else {
        keys[v] = at < n ? source[at] : Key(0);
      }
    }
    Key best = 0;
    int best_item = -1;
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      const int at = ((e / kVector) * kLanes + lane) * kVector + e % kVector;
      keys[e] = codec.encode(keys[e]);
      const bool here = active && at < n && (!mask || mask[at * args.drop.step]);
      valid |= static_cast<unsigned>(here) << e;
      if (here && (best_item < 0 || keys[e] > best)) best = keys[e], best_item = at;
    }
    const Pair mine = best_item < 0 ? Pair(0) : make_pair<Pair>(best, best_item);
    buffer[lane] = mine;
    __syncwarp();
    int rank = 0;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) rank += buffer[i] > mine || (buffer[i] == mine && i < lane);
    // The lane of rank k - 1 holds the bound (0 where fewer than k lanes have an element).
    const unsigned holder =
        (__ballot_sync(~0u, rank == k - 1) >> shift) & (kLanes == 32 ? ~0u : (1u << kLanes) - 1);
    const Pair bound = buffer[__ffs(static_cast<int>(holder)) - 1];
    __syncwarp();
    const Key bound_key = static_cast<Key>(pair_key(bound));
    int count = 0;
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      const int at = ((e / kVector) * kLanes + lane) * kVector + e % kVector;
      bool take = keys[e] >= bound_key && (valid >> e & 1);
      Pair pair = 0;
      if (take) pair = make_pair<Pair>(keys[e], at), take = pair >= bound;
      const unsigned taken = __ballot_sync(~0u, take);
      if (taken) {
        const unsigned ours = (taken >> shift) & (kLanes == 32 ? ~0u : (1u << kLanes) - 1);
        if (take) buffer[count + __popc(ours & below)] = pair;
        count += __popc(ours);
      }
    }
    __syncwarp();
    if (active) {
      const Output<Key> output(args, place);
      for (int i = lane; i < count; i += kLanes) {
        const Pair pair = buffer[i];
        int better = 0;
        for (int j = 0; j < count; ++j) better += buffer[j] > pair;
        if (better < k) output.put(better, pair, codec);
      }
      for (int i = count + lane; i < k; i += kLanes) output.put_missing(i);
    }
    __syncwarp();
  }
}

template <class Key, class Pair, int kLanes>
cudaError_t start(const TopkArgs& args, bool aligned, cudaStream_t stream) {
  constexpr int kGroups = kThreads / kLanes;
  const int64_t blocks = divide_up(args.rows, kGroups);
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min<int64_t>(blocks, INT32_MAX))),
                          dim3(kThreads)};
  const auto codec = make_codec<Key>(args.dtype, args.largest);
  return aligned ? launch(topk_warp_row<Key, Pair, kLanes, true>, shape, stream, args, codec)
                 : launch(topk_warp_row<Key, Pair, kLanes, false>, shape, stream, args, codec);
}

template <class Key, class Pair>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  constexpr int kVector = Vector<Key>::kSize;
  const bool aligned = reinterpret_cast<uintptr_t>(args.input) % 16 == 0 &&
                       args.in.outer % kVector == 0 &&
                       (args.inner == 1 || args.in.inner_stride % kVector == 0);
  switch (plan.lanes) {
    case 8:
      return start<Key, Pair, 8>(args, aligned, stream);
    case 16:
      return start<Key, Pair, 16>(args, aligned, stream);
    default:
      return start<Key, Pair, 32>(args, aligned, stream);
  }
}

}  // namespace

cudaError_t launch_topk_warp(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  switch (dtype_bytes(args.dtype)) {
    case 1:
      return start<uint8_t, Narrow>(args, plan, stream);
    case 2:
      return start<uint16_t, Narrow>(args, plan, stream);
    case 4:
      return start<uint32_t, Narrow>(args, plan, stream);
    default:
      return start<uint64_t, Wide>(args, plan, stream);
  }
}

}  // namespace gpuprims
