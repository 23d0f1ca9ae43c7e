// Short rows whose elements are neighbours in memory, a few lanes each.
#pragma once
#include "common/launch.h"
#include "reduce/tree.cuh"

namespace gpuprims {

// Short rows: each lane has up to 4 vectors, `lanes` apart, all loaded before any is looked at. Of
// 32 lanes they enter the same accumulators in turn; fewer lanes have as many slots as vectors.
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
  if (lane == 0 && real) finish(op, args, place.out, state);
}

// Of float32 five blocks a multiprocessor, four for maxima. Measured, 1e6 rows of 64: maxima in six
// or five blocks 69 us, in four 60; positions and logsumexp in six 66, in five 62; variances in
// five 62, in four 66; statistics in four 78, in five 75.
template <class Op, class Raw>
constexpr int kPackedBlocks =
    !std::is_same_v<Raw, float> || std::is_same_v<Op, PlacedStats<float>> ? 1
    : std::is_same_v<Op, Extreme<float>>                                  ? 4
                                                                          : 5;

// For a branch that is never taken: a kernel has the registers of what it holds at once, so that no
// more blocks fit. Shared memory would see to that too, but is taken from the L1 that loads need.
template <int Held>
__device__ __forceinline__ void keep_registers(void* somewhere) {
  volatile uint32_t* const words = static_cast<uint32_t*>(somewhere);
  uint32_t held[Held];
#pragma unroll
  for (int i = 0; i < Held; ++i) held[i] = words[i];
#pragma unroll
  for (int i = 0; i < Held; ++i) words[i] = held[i];
}

template <class Op, class Raw>
__global__ void __launch_bounds__(reduce_tuning::kThreads, kPackedBlocks<Op, Raw>)
    packed_rows(const __grid_constant__ ReduceArgs args, int lanes) {
  if constexpr (kPackedBlocks<Op, Raw> > 1)
    if (lanes <= 0) return keep_registers<kPackedBlocks<Op, Raw> == 4 ? 48 : 42>(args.partials);
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
  return launch(packed_rows<Op, Raw>, {dim3(static_cast<unsigned>(plan.grid)), dim3(plan.threads)},
                stream, args, plan.lanes);
}

}  // namespace gpuprims
