// Vectors of elements enter accumulators.
#pragma once
#include "reduce/load.cuh"

namespace gpuprims {

// Positions of vectors of V neighbours, `step` apart.
template <int V>
struct Neighbours {
  uint32_t first;
  int step;
  __device__ __forceinline__ uint32_t operator()(int e) const {
    return first + e / V * step + e % V;
  }
};

// The sum of a vector of narrow integers, or the greatest of its bytes: a few instructions a word,
// where one by one they are up to twenty an element. False where they must be looked at one by one.
template <class Op, class Raw>
__device__ __forceinline__ bool join_integers(const Op& op, const Decode& d, const Words& v,
                                              typename Op::Value& joined) {
  using Value = typename Op::Value;
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<Op, Extreme<Value>> && sizeof(Raw) == 1) {
    // in unsigned order, as which "not 0" rises
    const uint32_t turn = (d.is_signed ? 0x80808080u : 0u) ^ (d.flip ? 0xffffffffu : 0u);
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = v.w[i] ^ turn;
      most = __vmaxu2(most, word & 0x00ff00ffu);
      most = __vmaxu2(most, word >> 8 & 0x00ff00ffu);
    }
    most = max(most & 0xffu, most >> 16);
    joined = element<Op>(Integer<1>{static_cast<uint8_t>(most ^ turn)}, d);
    return true;
  }
  if constexpr (std::is_same_v<Op, Additive<Value>>) {
    if (op.product || op.transform != Op::as_is || d.nonzero) return false;
    const auto add_words = [&](auto sum) {  // signed or not
      using Sum = decltype(sum);
      using Word = std::conditional_t<std::is_signed_v<Sum>, int, unsigned>;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto word = static_cast<Word>(v.w[i]);
        if constexpr (sizeof(Raw) == 1)
          sum = __dp4a(word, static_cast<Word>(0x01010101), static_cast<Word>(sum));
        else if constexpr (sizeof(Raw) == 2)
          sum = __dp2a_lo(word, static_cast<Word>(0x0101), static_cast<Word>(sum));
        else
          sum += word;
      }
      joined = static_cast<Value>(sum);
    };
    if (d.is_signed)
      add_words(int64_t{0});
    else
      add_words(uint64_t{0});
    return true;
  }
#endif
  return false;
}

template <class Raw>
constexpr bool kNarrow = false;
template <int Bytes>
constexpr bool kNarrow<Integer<Bytes>> = Bytes <= 4;

template <class Op, class Raw, class Bundle>
__device__ __forceinline__ void enter(const Op& op, const Decode& d, Bundle& bundle,
                                      const Pack<Raw>& pack, uint32_t position) {
  constexpr int V = kVector<Raw>;
  if (pack.valid == 0) return;
  if constexpr (kNarrow<Raw>) {
    typename Op::Value joined[1];
    if (pack.valid == kAllValid && join_integers<Op, Raw>(op, d, pack.words, joined[0])) {
      bundle.add(op, joined, Neighbours<V>{position, 0}, kAllValid);
      return;
    }
  }
  typename Op::Value x[V];
#pragma unroll
  for (int e = 0; e < V; ++e) x[e] = element<Op>(pack.get(e), d);
  const Neighbours<V> at{position, 0};
  if (pack.valid == kAllValid) {
    bundle.add(op, x, at, kAllValid);
    return;
  }
#pragma unroll
  for (int e = 0; e < V; ++e)
    if (!(pack.valid >> e & 1)) x[e] = op.pad();
  bundle.add(op, x, at, pack.valid);
}

// Vectors that enter at once where all are whole; their places in a row decide that, and nothing
// else, so that a row has the same bits everywhere.
constexpr int kTogether = 4;
template <class Op>
constexpr bool kAdds = std::is_same_v<Op, Additive<typename Op::Value>>;  // gain nothing from it

// f(op, decode) with what can be settled outside of a loop known to the compiler there.
template <class Op, class Raw, class F>
__device__ __forceinline__ void with_settled(const Op& op, const Decode& d, const F& f) {
  if constexpr (kAdds<Op>) {
    if (!op.product && op.transform == Op::as_is) {
      Decode known;
      known.is_signed = d.is_signed;
      known.bf16 = true;
      if (std::is_same_v<Raw, Half16> && d.bf16) return f(Op{}, known);
      known.bf16 = false;
      return f(Op{}, known);
    }
  }
  f(op, d);
}

constexpr uint32_t kWholeWarp = 0xffffffffu;

// The mean of what `lanes` lanes have loaded, `count` elements in all: the same in each of them.
template <class Op, class Raw>
__device__ __forceinline__ typename Op::Value mean_of_lanes(const Op& op, const Decode& d,
                                                            const Pack<Raw> (&packs)[kTogether],
                                                            int lanes, int count) {
  constexpr int V = kVector<Raw>;
  typename Op::Value sum = 0;
#pragma unroll
  for (int e = 0; e < kTogether * V; ++e) {
    const Pack<Raw>& pack = packs[e / V];
    sum += pack.valid >> e % V & 1 ? element<Op>(pack.get(e % V), d) : op.pad();
  }
  for (int by = 1; by < lanes; by *= 2) sum += __shfl_xor_sync(kWholeWarp, sum, by);
  return quotient(sum, static_cast<typename Op::Value>(count));
}

// `step` elements apart, of `lanes` lanes that come here together; `left` elements of the row or
// chunk from the first lane's on.
template <class Op, class Raw, class Bundle>
__device__ __forceinline__ void enter_together(const Op& op, const Decode& d, Bundle& bundle,
                                               const Pack<Raw> (&packs)[kTogether],
                                               uint32_t position, int step, int lanes, int left) {
  constexpr int V = kVector<Raw>;
  if constexpr (requires { bundle.sums; })
    if (!bundle.sums.has_k)
      bundle.sums.set_k(
          mean_of_lanes(op, d, packs, lanes, left < kTogether * step ? left : kTogether * step));
  if constexpr (V <= 8 && !kAdds<Op>) {
    uint32_t whole = kAllValid;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) whole &= packs[i].valid;
    if (whole == kAllValid) {
      typename Op::Value x[kTogether * V];
#pragma unroll
      for (int e = 0; e < kTogether * V; ++e) x[e] = element<Op>(packs[e / V].get(e % V), d);
      bundle.add(op, x, Neighbours<V>{position, step}, kAllValid);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kTogether; ++i) enter(op, d, bundle, packs[i], position + i * step);
}

}  // namespace gpuprims
