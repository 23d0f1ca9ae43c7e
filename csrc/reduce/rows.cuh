// Rows whose elements are neighbours in memory.
#pragma once
#include "common/launch.h"
#include "reduce/async.cuh"
#include "reduce/tree.cuh"

namespace gpuprims {

constexpr int kRowThreads = reduce_tuning::kThreads;

template <class Op>
constexpr bool kSummary = std::is_same_v<Op, Stats<typename Op::Value>>;

template <class Raw>
__device__ __forceinline__ uint32_t skew_of(const Raw* row) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row) & 15);
}

// Short rows: each lane has up to 4 vectors, `lanes` apart, all loaded before any is looked at. Of
// 32 lanes they enter the same accumulators in turn; fewer lanes have as many slots as vectors.
template <class Op, class Raw>
__device__ __forceinline__ void reduce_packed(const Op& op, const ReduceArgs& args, int lanes) {
  using State = typename Op::State;
  constexpr int V = kVector<Raw>, kLoads = reduce_tuning::kPackedSlots;
  static_assert(kLoads == kTogether);
  const int shift = 31 - __clz(lanes), lane = threadIdx.x & (lanes - 1);
  const int64_t row = (int64_t{blockIdx.x} * kRowThreads + threadIdx.x) >> shift;
  const bool real = row < args.layout.columns;
  const Place2 place = kept_place(args.layout, real ? row : 0);
  const Raw* const from = static_cast<const Raw*>(args.input) + place.in;
  const uint32_t skew = skew_of(from);
  const int64_t n = real ? args.layout.n : 0;
  Pack<Raw> packs[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) packs[i] = load_pack(from, (lane + i * lanes) * V, n, skew);
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
        slots[i] = bundle.close(op, 0);
      }
      state = op.combine(op.combine(slots[0], slots[2]), op.combine(slots[1], slots[3]));
    }
  }
  if (in_turn) {
    Bundle bundle;
    bundle.begin(op, lane * V);
    enter_together(op, args.decode, bundle, packs, lane * V, lanes * V);
    state = bundle.close(op, 0);
  }
  state = halve_lanes(op, state, lanes);
  if (lane == 0 && real) finish(op, args, place.out, state);
}

template <class Op, class Raw>
__global__ void __launch_bounds__(kRowThreads)
    packed_rows(const __grid_constant__ ReduceArgs args, int lanes) {
  const Op op = make_op<Op>(args);
  if constexpr (kSummary<Op>)
    if (is_plain(op)) return reduce_packed<Op, Raw>(Op{}, args, lanes);
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

// Rounded before it is added to anything: dot is the sum of products, bit for bit.
template <class A>
__device__ __forceinline__ A product_of(A a, A b) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<A, float>)
    return __fmul_rn(a, b);
  else
    return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// Products of two packs enter.
template <class Op, class Raw, class Bundle>
__device__ __forceinline__ void enter_products(const Op& op, const Decode& d, Bundle& bundle,
                                               const Pack<Raw>& a, const Pack<Raw>& b) {
  constexpr int V = kVector<Raw>;
  typename Op::Value x[V];
#pragma unroll
  for (int e = 0; e < V; ++e)
    x[e] = a.valid >> e & 1 ? product_of(element<Op>(a.get(e), d), element<Op>(b.get(e), d))
                            : op.pad();
  bundle.add(op, x, Neighbours<V>{0, 0}, kAllValid);
}

// What takes elements at any alignment from aligned vectors. An element's accumulator is known by
// its position alone; in a row that begins s elements behind an aligned address, lane l's vectors
// hold those of accumulators l V - s and up, always the same: they are turned at the end, not the
// elements.
template <class Op>
constexpr bool kTurns = Op::kTree || std::is_integral_v<typename Op::Value> ||
                        std::is_same_v<Op, Extreme<typename Op::Value>> ||
                        std::is_same_v<Op, ArgExtreme<typename Op::Value>>;

// Accumulators s and up of this lane, then those below s of the next: a warp's turned by s.
template <int V, class A>
__device__ __forceinline__ void turn(A (&a)[V], int s) {
  A two[2 * V];
#pragma unroll
  for (int e = 0; e < V; ++e) {
    two[e] = a[e];
    two[e + V] = __shfl_sync(kWholeWarp, a[e], (threadIdx.x + 1) & 31);
  }
#pragma unroll
  for (int d = V / 2; d > 0; d /= 2) {
    if (s & d) {
#pragma unroll
      for (int e = 0; e + d < 2 * V; ++e) two[e] = two[e + d];
    }
  }
#pragma unroll
  for (int e = 0; e < V; ++e) a[e] = two[e];
}

// The whole steps of a warp's chunk, all asked for before the first is waited for: where there are
// few warps, their waiting is what takes time. The number of elements that have entered.
template <class Op, class Raw, class Bundle>
__device__ __forceinline__ int staged_chunk(const Op& op, const ReduceArgs& args, const Raw* from,
                                            int count, Bundle& bundle) {
  constexpr int V = kVector<Raw>, kStep = 32 * V;
  const int lane = threadIdx.x & 31, steps = count / (kTogether * kStep) * kTogether;
  unsigned char* const slots =
      dynamic_memory + threadIdx.x / 32 * (kChunk * sizeof(Raw)) + lane * 16;
#pragma unroll 8
  for (int i = 0; i < steps; ++i) copy_async<16>(slots + i * 512, from + lane * V + i * kStep);
  copy_commit();
  copy_wait<0>();
#pragma unroll 1
  for (int i = 0; i < steps; i += kTogether) {
    Pack<Raw> packs[kTogether];
#pragma unroll
    for (int e = 0; e < kTogether; ++e)
      packs[e] = {*reinterpret_cast<const Words*>(slots + (i + e) * 512), kAllValid};
    enter_together(op, args.decode, bundle, packs, lane * V + i * kStep, kStep);
  }
  return steps * kStep;
}

// A warp's chunk by aligned vectors, `s` elements before it the first: the ends one by one.
template <class Op, class Raw, int Loads, class Bundle>
__device__ __forceinline__ void aligned_chunk(const Op& op, const ReduceArgs& args, const Raw* from,
                                              int s, int count, bool staged, Bundle& bundle) {
  constexpr int V = kVector<Raw>, kStep = 32 * V;
  const int lane = threadIdx.x & 31;
  int start = -s;
  if constexpr (!kAdds<Op>)  // whose loop would spill
    if (staged && s == 0) start = staged_chunk(op, args, from, count, bundle);
#pragma unroll 1
  while (start < count) {
    const int p = start + lane * V;
    if (start >= 0 && start + Loads * kStep <= count) {
      Pack<Raw> packs[Loads / kTogether][kTogether];
#pragma unroll
      for (int i = 0; i < Loads; ++i)
        packs[i / kTogether][i % kTogether] = {load_words(from + p + i * kStep), kAllValid};
#pragma unroll
      for (int i = 0; i < Loads / kTogether; ++i)
        enter_together(op, args.decode, bundle, packs[i], p + i * kTogether * kStep, kStep);
      start += Loads * kStep;
      continue;
    }
    Pack<Raw> packs[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int q = p + i * kStep;
      packs[i] = {Words{}, 0};
      if (q >= 0 && q + V <= count) packs[i] = {load_words(from + q), kAllValid};
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int q = p + i * kStep;
      Pack<Raw>& pack = packs[i];
      if (pack.valid != 0 || q <= -V || q >= count) continue;
#pragma unroll
      for (int e = 0; e < V; ++e) {
        if (q + e < 0 || q + e >= count) continue;
        pack.put(e, from[q + e]);
      }
    }
    enter_together(op, args.decode, bundle, packs, p, kStep);
    start += kTogether * kStep;
  }
}

// A warp's chunk: `count` elements from `from` on; where Pair, times those from `other` on.
template <class Op, class Raw, int Loads, bool Pair>
__device__ __forceinline__ typename Op::State warp_chunk(const Op& op, const ReduceArgs& args,
                                                         const Raw* from, const Raw* other,
                                                         int count, bool staged, int64_t base) {
  constexpr int V = kVector<Raw>, kStep = 32 * V;
  const int lane = threadIdx.x & 31;
  const uint32_t skew = skew_of(from);
  typename Op::template Bundle<V> bundle;
  if constexpr (!Pair) {
    if (kTurns<Op> || skew == 0) {
      const int s = static_cast<int>(skew / sizeof(Raw));
      bundle.begin(op, lane * V > s ? lane * V - s : 0);
      aligned_chunk<Op, Raw, Loads>(op, args, from, s, count, staged, bundle);
      if constexpr (Op::kTree)
        if (s > 0) turn(bundle.a, s);
      return halve_lanes(op, bundle.close(op, base), 32);
    }
  }
  bundle.begin(op, lane * V);
#pragma unroll 1
  for (int p = lane * V; p - lane * V < count; p += kTogether * kStep) {
    Pack<Raw> packs[kTogether];  // misaligned ones are two loads each
#pragma unroll
    for (int i = 0; i < kTogether; ++i) packs[i] = load_pack(from, p + i * kStep, count, skew);
    if constexpr (Pair) {
      const uint32_t skew_other = skew_of(other);
      Pack<Raw> factors[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        factors[i] = load_pack(other, p + i * kStep, count, skew_other);
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        enter_products(op, args.decode, bundle, packs[i], factors[i]);
    } else if constexpr (!kTurns<Op>) {
      enter_together(op, args.decode, bundle, packs, p, kStep);
    }
  }
  return halve_lanes(op, bundle.close(op, base), 32);
}

// The last block of a row: groups go to kFinish accumulators in turn, which are combined by
// halving. Those that have no group are left out.
template <class Op>
__device__ void finish_row(const Op& op, const ReduceArgs& args, typename Op::State* finals,
                           int64_t row, int64_t parts, int per, int64_t out) {
  using State = typename Op::State;
  const int per_group = kGroup / per;
  const int groups =
      static_cast<int>((parts + per_group - 1) / per_group);  // the grid fits 31 bits
  int width = 32;
  while (width < kFinish && width < groups) width *= 2;
  for (int a = threadIdx.x; a < width; a += blockDim.x) {
    State state = op.identity();
    if (per_group == 1) {  // many: a batch is on its way while none is waited for
      constexpr int kBatch = sizeof(State) <= 8 ? 4 : 2;
#pragma unroll 1
      for (int g = a; g < groups; g += kBatch * kFinish) {
        State some[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          some[i] = op.identity();
          if (g + i * kFinish < groups)
            some[i] = get_partial<State>(args.partials, row * parts + g + i * kFinish);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) state = op.combine(state, some[i]);
      }
    } else {
      for (int g = a; g < groups; g += kFinish)
        state =
            op.combine(state, load_group(op, args.partials, row * parts, 1, g, per_group, parts));
    }
    finals[a] = state;
  }
  for (int d = width / 2; d >= 32; d /= 2) {
    __syncthreads();
    for (int a = threadIdx.x; a < d; a += blockDim.x)
      finals[a] = op.combine(finals[a], finals[a + d]);
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const State state = halve_lanes(op, finals[threadIdx.x], 32);
  if (threadIdx.x == 0) finish(op, args, out, state);
}

// A block has `per` neighbouring chunks of one row, a warp each, or whole rows of `per` chunks.
// 512 blocks, which are 2^24 elements, shall run at once on 132 multiprocessors: 64 registers a
// thread, where elements and states leave it at that.
template <class Op, class Raw, bool Pair>
constexpr int kRowBlocks = sizeof(typename Op::State) > 48                      ? 1
                           : Pair || std::is_same_v<typename Op::Value, double> ? 2
                           : sizeof(Raw) < 4 || sizeof(Raw) > 4                 ? 3
                                                                                : 4;

template <class Op, class Raw, int Loads, bool Pair>
__device__ __forceinline__ void reduce_long(const Op& op, const ReduceArgs& args, int64_t parts,
                                            int per, bool staged, typename Op::State* states) {
  using State = typename Op::State;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, unit = warp / per;
  const uint32_t at = blockIdx.x * (warps / per) + unit;
  const uint32_t row = parts == 1 ? at : at / static_cast<uint32_t>(parts);
  const uint32_t part = parts == 1 ? 0 : at - row * static_cast<uint32_t>(parts);
  const int64_t base = int64_t{kChunk} * (part * per + (warp - unit * per));
  const bool real = row < args.layout.columns;
  const Raw* const from =
      static_cast<const Raw*>(args.input) + kept_place(args.layout, real ? row : 0).in + base;
  const int64_t left = real ? args.layout.n - base : 0;
  State state = op.identity();
  if (left > 0)
    state = warp_chunk<Op, Raw, Loads, Pair>(
        op, args, from, static_cast<const Raw*>(args.other) + (Pair ? base : 0),
        static_cast<int>(left < kChunk ? left : kChunk), staged, base);
  if (per > 1) {  // pairwise, by the first warp: a lane has a warp's state
    if ((threadIdx.x & 31) == 0) states[warp] = state;
    __syncthreads();
    if (warp == 0) {
      if (threadIdx.x < warps) state = states[threadIdx.x];
#pragma unroll 1
      for (int d = 1; d < per; d *= 2) state = op.combine(state, shuffle_down(op, state, d));
    }
  }
  if (parts == 1) {
    const int lane = threadIdx.x & 31;
    const bool has = per > 1 ? warp == 0 && lane < warps && lane % per == 0 : lane == 0;
    const uint32_t mine = per > 1 ? blockIdx.x * (warps / per) + lane / per : row;
    if (has && mine < args.layout.columns)
      finish(op, args, kept_place(args.layout, mine).out, state);
    return;
  }
  if (threadIdx.x == 0) put_partial(args.partials, int64_t{row} * parts + part, state);
  if (is_last_block(args.tickets + row, static_cast<uint32_t>(parts)))
    finish_row(op, args, states, row, parts, per, kept_place(args.layout, row).out);
}

template <class Op, class Raw, int Loads, bool Pair>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<Op, Raw, Pair>)
    long_rows(const __grid_constant__ ReduceArgs args, int64_t parts, int per, bool staged) {
  using State = typename Op::State;
  __shared__ __align__(16) unsigned char memory[kFinish * sizeof(State)];
  State* const states = reinterpret_cast<State*>(memory);
  const Op op = make_op<Op>(args);
  if constexpr (kSummary<Op>)  // positions take registers
    if (is_plain(op))
      return reduce_long<Op, Raw, Loads, Pair>(Op{}, args, parts, per, staged, states);
  reduce_long<Op, Raw, Loads, Pair>(op, args, parts, per, staged, states);
}

template <class Op, class Raw, int Loads = 8, bool Pair = false>
cudaError_t launch_long_rows(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  const size_t stage = plan.staged ? plan.threads / 32 * kChunk * sizeof(Raw) : 0;
  return launch(long_rows<Op, Raw, Loads, Pair>,
                {dim3(static_cast<unsigned>(plan.grid)), dim3(plan.threads), stage}, stream, args,
                plan.parts, plan.per, plan.staged);
}

template <class Op, class Raw>
cudaError_t launch_packed_rows(const ReduceArgs& args, const ReducePlan& plan,
                               cudaStream_t stream) {
  return launch(packed_rows<Op, Raw>, {dim3(static_cast<unsigned>(plan.grid)), dim3(plan.threads)},
                stream, args, plan.lanes);
}

}  // namespace gpuprims
