// A chunk of a row whose elements are neighbours in memory, by a warp.
#pragma once
#include "reduce/async.cuh"
#include "reduce/tree.cuh"

namespace gpuprims {

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
  const SharedAt at = shared_at(slots);
#pragma unroll 8
  for (int i = 0; i < steps; ++i) copy_async<16>(at + i * 512, from + lane * V + i * kStep);
  copy_commit();
  copy_wait<0>();
#pragma unroll 1
  for (int i = 0; i < steps; i += kTogether) {
    Pack<Raw> packs[kTogether];
#pragma unroll
    for (int e = 0; e < kTogether; ++e)
      packs[e] = {*reinterpret_cast<const Words*>(slots + (i + e) * 512), kAllValid};
    enter_together(op, args.decode, bundle, packs, lane * V + i * kStep, kStep, 32,
                   count - i * kStep);
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
      with_settled<Op, Raw>(op, args.decode, [&](const Op& o, const Decode& d) {
#pragma unroll
        for (int i = 0; i < Loads / kTogether; ++i)
          enter_together(o, d, bundle, packs[i], p + i * kTogether * kStep, kStep, 32,
                         count - start - i * kTogether * kStep);
      });
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
    enter_together(op, args.decode, bundle, packs, p, kStep, 32, count - start);
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
      return close_lanes(op, bundle, 32, base, count);
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
      enter_together(op, args.decode, bundle, packs, p, kStep, 32, count - (p - lane * V));
    }
  }
  return close_lanes(op, bundle, 32, base, count);
}

}  // namespace gpuprims
