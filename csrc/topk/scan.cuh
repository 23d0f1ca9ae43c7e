// How a 16-byte vector is looked at: the best key in it, whether it may hold an element that reaches a bound, and
// which elements do. One class for any dtype of a width; float32, float16 and bfloat16 have their own, since the
// card takes their maximum, NaN included, in one instruction an element or two: 1-2 instructions an element
// instead of 5.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "topk/rows.cuh"

namespace gpuprims {

// KeyFilter on a vector's words. Keys of less than a word are compared where they are, shifted to the top: what
// lies below cannot borrow, and the span's low bits are ones.
template <class Key>
struct WordFilter {
  using Word = std::conditional_t<sizeof(Key) == 8, uint64_t, uint32_t>;
  static constexpr int kShift = 8 * (sizeof(Word) - sizeof(Key));
  Word from[2];
  Word span[2];

  WordFilter() = default;
  __device__ __forceinline__ WordFilter(const KeyCodec<Key>& codec, Key bound) {
    const KeyFilter<Key> filter = make_filter(codec, bound);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      from[i] = static_cast<Word>(filter.from[i]) << kShift;
      span[i] = (static_cast<Word>(filter.span[i]) << kShift) | ((Word{1} << kShift) - 1);
    }
  }

  // Bit j: element j may reach the bound.
  __device__ __forceinline__ uint32_t hits(const uint4& raw) const {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < Vector<Key>::kSize; ++j) {
      Word word;
      if constexpr (sizeof(Key) == 8)
        word = static_cast<uint64_t>(words[2 * j + 1]) << 32 | words[2 * j];
      else
        word = words[j * sizeof(Key) / 4] << (kShift - j * 8 * sizeof(Key) % 32);
      if (word - from[0] <= span[0] || word - from[1] <= span[1]) bits |= 1u << j;
    }
    return bits;
  }
};

// A Scan has Key; best(raw, codec): the key of the vector's best element, or less; and, once set for a bound,
// reaches(raw): true at least where an element's key is the bound or more. A bound of 0 lets all through.
template <class K>
struct ScanAny {
  using Key = K;

  static __device__ __forceinline__ Key best(const uint4& raw, const KeyCodec<Key>& codec) {
    Vector<Key> vector;
    vector.raw = raw;
    Key top = 0;
#pragma unroll
    for (int j = 0; j < Vector<Key>::kSize; ++j) {
      const Key key = codec.encode(vector.element[j]);
      top = key > top ? key : top;
    }
    return top;
  }
  __device__ __forceinline__ void set(const KeyCodec<Key>& codec, Key bound) { filter_ = {codec, bound}; }
  __device__ __forceinline__ bool reaches(const uint4& raw) const { return filter_.hits(raw) != 0; }

 private:
  WordFilter<Key> filter_;
};

// The bits of a float such that elements reach the bound exactly where !(element <= float), NaNs included; where
// the smallest elements are wanted, of the negated float for negated elements (there NaNs, which are the worst,
// are let through too).
template <class Key>
__device__ __forceinline__ Key float_below(const KeyCodec<Key>& codec, Key bound) {
  const Key nan = static_cast<Key>(codec.infinity | (codec.infinity >> 1));
  if (bound == 0) return nan;
  Key plain = static_cast<Key>((bound - 1) ^ codec.invert);
  const Key infinity = static_cast<Key>(codec.sign | codec.infinity);  // as a key
  if (codec.invert) return plain > infinity ? nan : static_cast<Key>(codec.decode(static_cast<Key>(~plain)) ^ codec.sign);
  if (plain > infinity) plain = infinity;                           // only NaNs are above
  if (plain == static_cast<Key>(codec.sign - 1)) plain = static_cast<Key>(plain - 1);  // -0.0 is no key
  return codec.decode(plain);
}

__device__ __forceinline__ float max_nan(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

struct ScanFloat32 {
  using Key = uint32_t;

  static __device__ __forceinline__ float top(const uint4& raw, uint32_t flip) {
    const float a = max_nan(__uint_as_float(raw.x ^ flip), __uint_as_float(raw.y ^ flip));
    const float b = max_nan(__uint_as_float(raw.z ^ flip), __uint_as_float(raw.w ^ flip));
    return max_nan(a, b);
  }
  static __device__ __forceinline__ Key best(const uint4& raw, const KeyCodec<Key>& codec) {
    const uint32_t flip = codec.invert & codec.sign;
    return codec.encode(__float_as_uint(top(raw, flip)) ^ flip);
  }
  __device__ __forceinline__ void set(const KeyCodec<Key>& codec, Key bound) {
    flip_ = codec.invert & codec.sign;
    below_ = __uint_as_float(float_below(codec, bound));
  }
  __device__ __forceinline__ bool reaches(const uint4& raw) const { return !(top(raw, flip_) <= below_); }

 private:
  uint32_t flip_;
  float below_;
};

template <class Pair>  // __half2 or __nv_bfloat162
struct ScanFloat16 {
  using Key = uint16_t;
  static constexpr uint32_t kSigns = 0x80008000u;

  // The larger of both halves is the vector's best element.
  static __device__ __forceinline__ Pair top(const uint4& raw, uint32_t flip) {
    return __hmax2_nan(__hmax2_nan(pair(raw.x ^ flip), pair(raw.y ^ flip)),
                       __hmax2_nan(pair(raw.z ^ flip), pair(raw.w ^ flip)));
  }
  static __device__ __forceinline__ Key best(const uint4& raw, const KeyCodec<Key>& codec) {
    const uint32_t flip = codec.invert ? kSigns : 0;
    const uint32_t both = word(top(raw, flip)) ^ flip;
    const Key low = codec.encode(static_cast<Key>(both)), high = codec.encode(static_cast<Key>(both >> 16));
    return low > high ? low : high;
  }
  __device__ __forceinline__ void set(const KeyCodec<Key>& codec, Key bound) {
    flip_ = codec.invert ? kSigns : 0;
    const uint32_t below = float_below(codec, bound);
    below_ = pair(below | below << 16);
  }
  __device__ __forceinline__ bool reaches(const uint4& raw) const { return !__hble2(top(raw, flip_), below_); }

 private:
  static __device__ __forceinline__ Pair pair(uint32_t bits) {
    Pair out;
    memcpy(&out, &bits, sizeof out);
    return out;
  }
  static __device__ __forceinline__ uint32_t word(Pair both) {
    uint32_t out;
    memcpy(&out, &both, sizeof out);
    return out;
  }
  uint32_t flip_;
  Pair below_;
};

// Calls take(j, pair) for each element j of the vector, which starts at `index`, whose key reaches the bound's;
// stops where take returns false, and then returns false.
template <class Pair, class Key, class Take>
__device__ __forceinline__ bool for_reaching(const uint4& raw, uint64_t index, Pair bound, const KeyCodec<Key>& codec,
                                             const Take& take) {
  Vector<Key> vector;
  vector.raw = raw;
  const Key least = static_cast<Key>(pair_key(bound));
  uint32_t hits = 0;
#pragma unroll
  for (int j = 0; j < Vector<Key>::kSize; ++j)
    hits |= static_cast<uint32_t>(codec.encode(vector.element[j]) >= least) << j;
#pragma unroll 1
  while (hits) {
    const int j = __ffs(static_cast<int>(hits)) - 1;
    hits &= hits - 1;
    const int byte = j * static_cast<int>(sizeof(Key));  // selects: a run-time index would send the vector to memory
    const uint64_t half = byte < 8 ? static_cast<uint64_t>(raw.y) << 32 | raw.x : static_cast<uint64_t>(raw.w) << 32 | raw.z;
    const Pair pair = make_pair<Pair>(codec.encode(static_cast<Key>(half >> (byte % 8 * 8))), index + j);
    if (!take(j, pair)) return false;
  }
  return true;
}

// tile[u] for a run-time u, by selects.
template <int kCount>
__device__ __forceinline__ uint4 pick(const uint4 (&tile)[kCount], int u) {
  uint4 raw = tile[0];
#pragma unroll
  for (int other = 1; other < kCount; ++other)
    if (u == other) raw = tile[other];
  return raw;
}

}  // namespace gpuprims
