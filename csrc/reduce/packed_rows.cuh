// Short rows whose elements are neighbours in memory, a few lanes each.
#pragma once
#include "common/launch.h"
#include "reduce/async.cuh"
#include "reduce/tree.cuh"

namespace gpuprims {

// The state of a row, whose elements `lanes` lanes have loaded: of 32 lanes they enter the same
// accumulators in turn; fewer lanes have as many slots as vectors.
template <class Op, class Raw>
__device__ __forceinline__ typename Op::State reduce_packs(const Op& op, const ReduceArgs& args,
                                                           const Pack<Raw> (&packs)[kTogether],
                                                           int lane, int lanes, int count) {
  using State = typename Op::State;
  constexpr int V = kVector<Raw>, kLoads = kTogether;
  using Bundle = typename Op::template Bundle<V>;
  State state;
  bool in_turn = true;
  if constexpr (Op::kTree) {
    in_turn = lanes == 32;
    if (!in_turn) {
      State slots[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        Bundle bundle;
        bundle.begin(op, 0);
        enter(op, args.decode, bundle, packs[i], (lane + i * lanes) * V);
        slots[i] = bundle.close(op, 0, 0);
      }
      state = op.combine(op.combine(slots[0], slots[2]), op.combine(slots[1], slots[3]));
      state = halve_lanes(op, state, lanes);
    }
  }
  if (in_turn) {
    Bundle bundle;
    bundle.begin(op, lane * V);
    enter_together(op, args.decode, bundle, packs, lane * V, lanes * V, lanes, count);
    state = close_lanes(op, bundle, lanes, 0, count);
  }
  return state;
}

// Short rows: each lane has up to 4 vectors, `lanes` apart, all loaded before any is looked at.
template <class Op, class Raw>
__device__ __forceinline__ void reduce_packed(const Op& op, const ReduceArgs& args, int lanes) {
  using State = typename Op::State;
  constexpr int V = kVector<Raw>, kLoads = reduce_tuning::kPackedSlots;
  static_assert(kLoads == kTogether);
  const int shift = 31 - __clz(lanes), lane = threadIdx.x & (lanes - 1);
  const int64_t row = (int64_t{blockIdx.x} * reduce_tuning::kThreads + threadIdx.x) >> shift;
  const bool real = row < args.layout.columns;
  const Place2 place = kept_place(args.layout, real ? row : 0);
  const Raw* const from = static_cast<const Raw*>(args.input) + place.in;
  const uint32_t skew = skew_of(from);
  const int count = real ? static_cast<int>(args.layout.n) : 0;
  Pack<Raw> packs[kLoads];
  // Whole vectors, or none: with less to decide variances are faster, but maxima slower (measured).
  constexpr bool kMayBeWhole = requires(typename Op::template Bundle<V> bundle) { bundle.sums; };
  if (kMayBeWhole && skew == 0 && count % V == 0) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int p = (lane + i * lanes) * V;
      packs[i] = {Words{}, 0};
      if (p < count) packs[i] = {load_words(from + p), kAllValid};
    }
  } else {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      packs[i] = load_pack(from, (lane + i * lanes) * V, count, skew);
  }
  const State state = reduce_packs(op, args, packs, lane, lanes, count);
  if (lane == 0 && real) finish(op, args, place.out, state);
}

template <class Op, class Raw>
constexpr bool kRingPacked =
    std::is_same_v<Raw, float> && std::is_same_v<typename Op::Value, float> && !kAdds<Op> &&
    !std::is_same_v<Op, PlacedStats<float>>;
constexpr int kRingPackedBytes = 2 * kTogether * 512;  // of a warp

// The same of many rows of whole vectors, by blocks that stay: a warp's next rows are on their way
// past its registers while it reduces these. A lane reads what it has asked for itself.
template <class Op>
__device__ __forceinline__ void ring_packed(const Op& op, const ReduceArgs& args, int lanes) {
  constexpr int V = 4;
  const int shift = 31 - __clz(lanes), lane = threadIdx.x & (lanes - 1);
  const int n = static_cast<int>(args.layout.n);
  const int64_t columns = args.layout.columns, step = args.layout.kept_step[0];
  const int64_t stride = int64_t{gridDim.x} * (reduce_tuning::kThreads >> shift);
  const int first = threadIdx.x % 32 >> shift;  // of its warp's rows
  int64_t base = (int64_t{blockIdx.x} * reduce_tuning::kThreads + (threadIdx.x & ~31)) >> shift;
  const float* from = static_cast<const float*>(args.input) + (base + first) * step + lane * V;
  SharedAt slots =
      shared_at(dynamic_memory + threadIdx.x / 32 * kRingPackedBytes + threadIdx.x % 32 * 16);
  const auto ask = [&](int64_t row, int at) {
    if (row < columns) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if ((lane + i * lanes) * V < n) copy_async<16>(slots + at + i * 512, from + i * lanes * V);
    }
    copy_commit();
    from += stride * step;
  };
  ask(base + first, 0);
#pragma unroll 1
  for (int at = 0; base < columns; base += stride, at ^= kRingPackedBytes / 2) {
    const int64_t row = base + first;
    ask(row + stride, at ^ (kRingPackedBytes / 2));
    copy_wait<1>();
    const bool real = row < columns;
    Pack<float> packs[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      packs[i] = {Words{}, 0};
      if (real && (lane + i * lanes) * V < n)
        packs[i] = {load_shared(slots + at + i * 512), kAllValid};
    }
    const auto state = reduce_packs(op, args, packs, lane, lanes, real ? n : 0);
    if (lane == 0 && real) finish(op, args, row * args.layout.kept_out[0], state);
  }
}

template <class Op, class Raw>
__global__ void __launch_bounds__(reduce_tuning::kThreads, kRingPacked<Op, Raw> ? 4 : 1)
    packed_rows(const __grid_constant__ ReduceArgs args, int lanes, bool ring) {
  if constexpr (kRingPacked<Op, Raw>)
    if (ring) return ring_packed(Op{}, args, lanes);
  using Placed = typename AlsoPlaced<Op, Raw>::Type;
  if constexpr (!std::is_same_v<Placed, Op>)
    if (args.indices) return reduce_packed<Placed, Raw>(Placed{}, args, lanes);
  const Op op = make_op<Op>(args);
  if constexpr (std::is_same_v<Raw, AnyInteger>) {  // four kernels in one
    switch (args.decode.bytes) {
      case 1:
        return reduce_packed<Op, Integer<1>>(op, args, lanes);
      case 2:
        return reduce_packed<Op, Integer<2>>(op, args, lanes);
      case 4:
        return reduce_packed<Op, Integer<4>>(op, args, lanes);
      default:
        return reduce_packed<Op, Integer<8>>(op, args, lanes);
    }
  } else {
    reduce_packed<Op, Raw>(op, args, lanes);
  }
}

template <class Op, class Raw>
cudaError_t launch_packed_rows(const ReduceArgs& args, const ReducePlan& plan,
                               cudaStream_t stream) {
  const bool ring = kRingPacked<Op, Raw> && plan.blocks > 0;
  const int64_t grid = ring ? std::min<int64_t>(plan.grid, plan.blocks) : plan.grid;
  const size_t memory = ring ? plan.threads / 32 * kRingPackedBytes : 0;
  return launch(packed_rows<Op, Raw>,
                {dim3(static_cast<unsigned>(grid)), dim3(plan.threads), memory}, stream, args,
                plan.lanes, ring);
}

}  // namespace gpuprims
