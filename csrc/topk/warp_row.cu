// Short rows: 8, 16 or 32 lanes a row, 16 elements a lane in registers.
//
// The k-th largest of the lanes' best pairs is a bound that k elements reach, and that only k lanes
// have elements above: about G ln(G / (G - k)) of them for G lanes. Those few go to shared memory,
// where a pair's rank is the number of better ones.
#include "common/launch.h"
#include "topk/scan.cuh"

namespace gpuprims {
namespace {

constexpr int kItems = 16;
constexpr int kThreads = 128;

constexpr unsigned lane_mask(int lanes) { return lanes == 32 ? ~0u : (1u << lanes) - 1; }

// The k-th best of the lanes' pairs, which lie in buffer[0 .. kLanes); 0 where fewer are not 0.
template <class Pair, int kLanes>
__device__ __forceinline__ Pair lanes_bound(const Pair* buffer, Pair mine, int shift, int k) {
  int rank = 0;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) rank += buffer[i] > mine;
  const unsigned holder = (__ballot_sync(~0u, rank == k - 1) >> shift) & lane_mask(kLanes);
  return holder ? buffer[__ffs(static_cast<int>(holder)) - 1] : Pair(0);
}

template <class Pair, int kLanes, class Key>
__device__ __forceinline__ void emit(const TopkArgs& args, const RowPlace& place,
                                     const Pair* buffer, int count, int lane,
                                     const KeyCodec<Key>& codec) {
  const Output<Key> output(args, place);
  const int k = static_cast<int>(args.k);
  for (int i = lane; i < count; i += kLanes) {
    const Pair pair = buffer[i];
    int better = 0;
    for (int j = 0; j < count; ++j) better += buffer[j] > pair;
    if (better < k) output.put(better, pair, codec);
  }
  for (int i = count + lane; i < k; i += kLanes) output.put_missing(i);
}

// Rows of whole, aligned vectors and no mask.
template <class S, class Pair, int kLanes>
__global__ void __launch_bounds__(kThreads)
    topk_warp_vectors(const __grid_constant__ TopkArgs args,
                      const __grid_constant__ KeyCodec<typename S::Key> codec) {
  using Key = typename S::Key;
  constexpr int kGroups = kThreads / kLanes;
  constexpr int kVector = Vector<Key>::kSize, kVectors = kItems / kVector;
  __shared__ Pair buffers[kGroups][kLanes * kItems];
  __shared__ int counts[kGroups];
  const int group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int shift = (threadIdx.x % 32) / kLanes * kLanes;
  Pair* const buffer = buffers[group];
  const int vectors = static_cast<int>(args.n) / kVector;

  for (int64_t first = blockIdx.x * int64_t{kGroups}; first < args.rows;
       first += gridDim.x * int64_t{kGroups}) {
    const int64_t row = first + group;
    const bool active = row < args.rows;  // idle groups walk along: ballots are a warp's
    const RowPlace place(active ? row : args.rows - 1, args.inner);
    const Key* const source = static_cast<const Key*>(args.input) + place.start(args.in);
    uint4 tile[kVectors];
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      const int v = u * kLanes + lane;
      tile[u] = v < vectors ? load_streaming(source + v * kVector) : make_uint4(0, 0, 0, 0);
    }
    int from = lane;  // rows are longer than the lanes' first vectors, or this lane has none
    const auto best = with_flip<S>(codec, [&](auto flip) {
      auto top = S::template order<flip>(tile[0], codec);
#pragma unroll
      for (int u = 1; u < kVectors; ++u) {
        const auto order = S::template order<flip>(tile[u], codec);
        const int v = u * kLanes + lane;
        if (v < vectors && order > top) top = order, from = v;
      }
      return top;
    });
    const Pair mine = lane < vectors
                          ? make_pair<Pair>(S::key(best, codec), from * kVector + kVector - 1)
                          : Pair(0);
    buffer[lane] = mine;
    if (lane == 0) counts[group] = 0;
    __syncwarp();
    const Pair bound = lanes_bound<Pair, kLanes>(buffer, mine, shift, static_cast<int>(args.k));
    __syncwarp();
    S scan;
    scan.set(codec, static_cast<Key>(pair_key(bound)));
    uint32_t reaching = 0;
    with_flip<S>(codec, [&](auto flip) {
#pragma unroll
      for (int u = 0; u < kVectors; ++u)
        reaching |= static_cast<uint32_t>(scan.template reaches<flip>(tile[u])) << u;
    });
#pragma unroll 1
    while (reaching) {
      const int u = __ffs(static_cast<int>(reaching)) - 1, v = u * kLanes + lane;
      reaching &= reaching - 1;
      if (v >= vectors) break;
      const uint4 raw = pick(tile, u);
      for_hits<Pair>(raw, scan.hits(raw), v * kVector, codec, [&](int, Pair pair) {
        if (pair >= bound) buffer[atomicAdd(&counts[group], 1)] = pair;
        return true;
      });
    }
    __syncwarp();
    if (active) emit<Pair, kLanes>(args, place, buffer, counts[group], lane, codec);
    __syncwarp();
  }
}

// Any row.
template <class Key, class Pair, int kLanes>
__global__ void __launch_bounds__(kThreads)
    topk_warp_elements(const __grid_constant__ TopkArgs args,
                       const __grid_constant__ KeyCodec<Key> codec) {
  constexpr int kGroups = kThreads / kLanes;
  __shared__ Pair buffers[kGroups][kLanes * kItems];
  const int group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int shift =
      (threadIdx.x % 32) / kLanes * kLanes;  // of this group's lanes in a warp's ballot
  const unsigned below = (1u << lane) - 1;
  Pair* const buffer = buffers[group];
  const int n = static_cast<int>(args.n);

  for (int64_t first = blockIdx.x * int64_t{kGroups}; first < args.rows;
       first += gridDim.x * int64_t{kGroups}) {
    const int64_t row = first + group;
    const bool active = row < args.rows;
    const RowPlace place(active ? row : args.rows - 1, args.inner);
    const Key* const source = static_cast<const Key*>(args.input) + place.start(args.in);
    const uint8_t* const mask = args.mask ? args.mask + place.start(args.drop) : nullptr;
    Key keys[kItems];
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      const int at = e * kLanes + lane;
      keys[e] = at < n ? source[at] : Key(0);
    }
    unsigned valid = 0;
    Pair mine = 0;
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      const int at = e * kLanes + lane;
      keys[e] = codec.encode(keys[e]);
      const bool here = at < n && (!mask || mask[at * args.drop.step]);
      valid |= static_cast<unsigned>(here) << e;
      const Pair pair = make_pair<Pair>(keys[e], at);
      if (here && pair > mine) mine = pair;
    }
    buffer[lane] = mine;
    __syncwarp();
    const Pair bound = lanes_bound<Pair, kLanes>(buffer, mine, shift, static_cast<int>(args.k));
    __syncwarp();
    int count = 0;
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      const Pair pair = make_pair<Pair>(keys[e], e * kLanes + lane);
      const bool take = (valid >> e & 1) && pair >= bound;
      const unsigned taken = __ballot_sync(~0u, take) >> shift & lane_mask(kLanes);
      if (take) buffer[count + __popc(taken & below)] = pair;
      count += __popc(taken);
    }
    __syncwarp();
    if (active) emit<Pair, kLanes>(args, place, buffer, count, lane, codec);
    __syncwarp();
  }
}

template <class S, class Pair, int kLanes>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  using Key = typename S::Key;
  constexpr int kVector = Vector<Key>::kSize;
  const bool whole = reinterpret_cast<uintptr_t>(args.input) % 16 == 0 &&
                     args.in.outer % kVector == 0 && args.in.inner_stride % kVector == 0 &&
                     args.n % kVector == 0 && !args.mask;
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads)};
  const auto codec = make_codec<Key>(args.dtype, args.largest);
  return whole ? launch(topk_warp_vectors<S, Pair, kLanes>, shape, stream, args, codec)
               : launch(topk_warp_elements<Key, Pair, kLanes>, shape, stream, args, codec);
}

template <class S, class Pair>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  switch (plan.lanes) {
    case 8:
      return start<S, Pair, 8>(args, plan, stream);
    case 16:
      return start<S, Pair, 16>(args, plan, stream);
    default:
      return start<S, Pair, 32>(args, plan, stream);
  }
}

}  // namespace

cudaError_t launch_topk_warp(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  switch (args.dtype) {
    case Dtype::f32:
      return start<ScanFloat32, Narrow>(args, plan, stream);
    case Dtype::f16:
      return start<ScanFloat16<__half2>, Narrow>(args, plan, stream);
    case Dtype::bf16:
      return start<ScanFloat16<__nv_bfloat162>, Narrow>(args, plan, stream);
    default:
      break;
  }
  switch (dtype_bytes(args.dtype)) {
    case 1:
      return start<ScanAny<uint8_t>, Narrow>(args, plan, stream);
    case 2:
      return start<ScanAny<uint16_t>, Narrow>(args, plan, stream);
    case 4:
      return start<ScanAny<uint32_t>, Narrow>(args, plan, stream);
    default:
      return start<ScanAny<uint64_t>, Wide>(args, plan, stream);
  }
}

}  // namespace gpuprims
