// How a 16-byte vector is looked at: the best key in it, whether it may hold an element that
// reaches a bound, and which elements do. One class for any dtype of a width; float32, float16 and
// bfloat16 have their own, since the card takes their maximum, NaN included, in one instruction an
// element or two: 1-2 instructions an element instead of 5.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "topk/rows.cuh"

namespace gpuprims {

// KeyFilter on a vector's words. Keys of less than a word are compared where they are, shifted to
// the top: what lies below cannot borrow, and the span's low bits are ones.
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

// Sets one scan for a bound and one for what is better than it; for the best key of all, which
// nothing beats, both the same.
template <class Scan, class Key>
__device__ __forceinline__ void set_scans(const KeyCodec<Key>& codec, Key bound, Scan& loose,
                                          Scan& strict) {
  loose.set(codec, bound);
  strict.set(codec, static_cast<Key>(bound == static_cast<Key>(~Key(0)) ? bound : bound + 1));
}

// A Scan has:
// Key, and Top, a vector's best element (or a worse one, where NaNs hide it): top<kFlip>(raw,
// codec), better(top, top), top_key<kFlip>(top, codec), its key; and, once set for a bound,
// reaches<kFlip>(raw), true at least where an element's key is the bound or more, and hits(raw), a
// bit for each such element. A bound of 0 lets all through. kFlip says that the smallest elements
// are wanted; scans that need no such help ignore it.
template <class K>
struct ScanAny {
  using Key = K;
  using Top = K;
  static constexpr bool kFlips = false;

  template <bool kFlip>
  static __device__ __forceinline__ Key top(const uint4& raw, const KeyCodec<Key>& codec) {
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
  static __device__ __forceinline__ Key better(Key a, Key b) { return a > b ? a : b; }
  template <bool kFlip>
  static __device__ __forceinline__ Key top_key(Key top, const KeyCodec<Key>&) {
    return top;
  }
  __device__ __forceinline__ void set(const KeyCodec<Key>& codec, Key bound) {
    filter_ = {codec, bound};
    bound_ = bound;
  }
  static __device__ __forceinline__ void set_both(const KeyCodec<Key>& codec, Key bound,
                                                  ScanAny& loose, ScanAny& strict) {
    set_scans(codec, bound, loose, strict);
  }
  __device__ __forceinline__ bool reaches_top(Key top) const { return top >= bound_; }
  template <bool kFlip>
  __device__ __forceinline__ bool reaches(const uint4& raw) const {
    return filter_.hits(raw) != 0;
  }
  __device__ __forceinline__ uint32_t hits(const uint4& raw) const { return filter_.hits(raw); }

 private:
  WordFilter<Key> filter_;
  Key bound_;
};

// The bits of a float such that elements reach the bound exactly where !(element <= float), NaNs
// included; where the smallest elements are wanted, of the negated float for negated elements
// (there NaNs, which are the worst, are let through too).
template <class Key>
__device__ __forceinline__ Key float_below(const KeyCodec<Key>& codec, Key bound) {
  const Key nan = static_cast<Key>(codec.infinity | (codec.infinity >> 1));
  if (bound == 0) return nan;
  Key plain = static_cast<Key>((bound - 1) ^ codec.invert);
  const Key infinity = static_cast<Key>(codec.sign | codec.infinity);  // as a key
  if (codec.invert)
    return plain > infinity ? nan
                            : static_cast<Key>(codec.decode(static_cast<Key>(~plain)) ^ codec.sign);
  if (plain > infinity) plain = infinity;  // only NaNs are above
  if (plain == static_cast<Key>(codec.sign - 1))
    plain = static_cast<Key>(plain - 1);  // -0.0 is no key
  return codec.decode(plain);
}

__device__ __forceinline__ float max_nan(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

struct ScanFloat32 {
  using Key = uint32_t;
  using Top = float;
  static constexpr bool kFlips = true;

  template <bool kFlip>
  static __device__ __forceinline__ float top(const uint4& raw) {
    const auto value = [](uint32_t bits) {
      return kFlip ? -__uint_as_float(bits) : __uint_as_float(bits);
    };
    return max_nan(max_nan(value(raw.x), value(raw.y)), max_nan(value(raw.z), value(raw.w)));
  }
  template <bool kFlip>
  static __device__ __forceinline__ float top(const uint4& raw, const KeyCodec<Key>&) {
    return top<kFlip>(raw);
  }
  static __device__ __forceinline__ float better(float a, float b) { return max_nan(a, b); }
  template <bool kFlip>
  static __device__ __forceinline__ Key top_key(float top, const KeyCodec<Key>& codec) {
    return codec.encode(static_cast<uint32_t>(__float_as_int(kFlip ? -top : top)));
  }
  __device__ __forceinline__ void set(const KeyCodec<Key>& codec, Key bound) {
    flip_ = codec.invert & codec.sign;
    below_ = __uint_as_float(float_below(codec, bound));
  }
  static __device__ __forceinline__ void set_both(const KeyCodec<Key>& codec, Key bound,
                                                  ScanFloat32& loose, ScanFloat32& strict) {
    // The bound's own float, negated where the smallest are wanted, is what better elements exceed;
    // the float before it what equal ones do. NaNs, zero and keys of no element: the long way.
    const uint32_t flip = codec.invert & codec.sign;
    const uint32_t bits = codec.decode(bound) ^ flip;
    if (bound == 0 || (bits << 1) - 1 >= 0xff000000u) {
      set_scans(codec, bound, loose, strict);
      return;
    }
    loose.flip_ = strict.flip_ = flip;
    strict.below_ = __uint_as_float(bits);
    loose.below_ = __uint_as_float(static_cast<int32_t>(bits) < 0 ? bits + 1 : bits - 1);
  }
  __device__ __forceinline__ bool reaches_top(float top) const { return !(top <= below_); }
  template <bool kFlip>
  __device__ __forceinline__ bool reaches(const uint4& raw) const {
    return reaches_top(top<kFlip>(raw));
  }
  __device__ __forceinline__ uint32_t hits(const uint4& raw) const {
    const auto hit = [&](uint32_t bits) {
      return static_cast<uint32_t>(!(__uint_as_float(bits ^ flip_) <= below_));
    };
    return hit(raw.x) | hit(raw.y) << 1 | hit(raw.z) << 2 | hit(raw.w) << 3;
  }

 private:
  uint32_t flip_;
  float below_;
};

template <class Pair>  // __half2 or __nv_bfloat162
struct ScanFloat16 {
  using Key = uint16_t;
  using Top = Pair;
  static constexpr bool kFlips = true;

  // The larger of both halves is the vector's best element.
  template <bool kFlip>
  static __device__ __forceinline__ Pair top(const uint4& raw) {
    constexpr uint32_t flip = kFlip ? 0x80008000u : 0;
    return __hmax2_nan(__hmax2_nan(pair(raw.x ^ flip), pair(raw.y ^ flip)),
                       __hmax2_nan(pair(raw.z ^ flip), pair(raw.w ^ flip)));
  }
  template <bool kFlip>
  static __device__ __forceinline__ Pair top(const uint4& raw, const KeyCodec<Key>&) {
    return top<kFlip>(raw);
  }
  static __device__ __forceinline__ Pair better(Pair a, Pair b) { return __hmax2_nan(a, b); }
  template <bool kFlip>
  static __device__ __forceinline__ Key top_key(Pair top, const KeyCodec<Key>& codec) {
    const uint32_t both = word(top) ^ (kFlip ? 0x80008000u : 0);
    const Key low = codec.encode(static_cast<Key>(both)),
              high = codec.encode(static_cast<Key>(both >> 16));
    return low > high ? low : high;
  }
  __device__ __forceinline__ void set(const KeyCodec<Key>& codec, Key bound) {
    flip_ = codec.invert ? 0x80008000u : 0;
    const uint32_t below = float_below(codec, bound);
    below_ = pair(below | below << 16);
  }
  static __device__ __forceinline__ void set_both(const KeyCodec<Key>& codec, Key bound,
                                                  ScanFloat16& loose, ScanFloat16& strict) {
    set_scans(codec, bound, loose, strict);
  }
  __device__ __forceinline__ bool reaches_top(Pair top) const { return !__hble2(top, below_); }
  template <bool kFlip>
  __device__ __forceinline__ bool reaches(const uint4& raw) const {
    return reaches_top(top<kFlip>(raw));
  }
  __device__ __forceinline__ uint32_t hits(const uint4& raw) const {
    const auto hit = [&](uint32_t bits) {  // both elements of a word: all ones where not greater
      const uint32_t not_greater = __hle2_mask(pair(bits ^ flip_), below_);
      return (~not_greater & 1u) | (~not_greater >> 16 & 1u) << 1;
    };
    return hit(raw.x) | hit(raw.y) << 2 | hit(raw.z) << 4 | hit(raw.w) << 6;
  }

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

// Calls visit(std::type_identity<Scan>) for a float with a scan of its own. Those of 16 bits share
// their kernels: a branch costs nothing there, and two kernels each for the build.
template <class Key, class Visit>
__device__ __forceinline__ void with_float_scan(Dtype dtype, const Visit& visit) {
  if constexpr (sizeof(Key) == 4)
    visit(std::type_identity<ScanFloat32>{});
  else if (dtype == Dtype::f16)
    visit(std::type_identity<ScanFloat16<__half2>>{});
  else
    visit(std::type_identity<ScanFloat16<__nv_bfloat162>>{});
}

// Calls visit(std::bool_constant<kFlip>) for the scan's direction: one branch for many vectors.
template <class Scan, class Key, class Visit>
__device__ __forceinline__ auto with_flip(const KeyCodec<Key>& codec, const Visit& visit) {
  if constexpr (Scan::kFlips)
    if (codec.invert) return visit(std::true_type{});
  return visit(std::false_type{});
}

// Calls take(j, pair) for the elements j of `hits` of a vector that starts at `index`; stops where
// take returns false, and then returns false.
template <class Pair, class Key, class Take>
__device__ __forceinline__ bool for_hits(const uint4& raw, uint32_t hits, uint64_t index,
                                         const KeyCodec<Key>& codec, const Take& take) {
#pragma unroll 1
  while (hits) {
    const int j = __ffs(static_cast<int>(hits)) - 1;
    hits &= hits - 1;
    Key bits;  // by selects: a run-time index would send the vector to memory
    if constexpr (sizeof(Key) == 4) {
      bits = j < 2 ? (j == 0 ? raw.x : raw.y) : (j == 2 ? raw.z : raw.w);
    } else {
      const int byte = j * static_cast<int>(sizeof(Key));
      const uint64_t half = byte < 8 ? static_cast<uint64_t>(raw.y) << 32 | raw.x
                                     : static_cast<uint64_t>(raw.w) << 32 | raw.z;
      bits = static_cast<Key>(half >> (byte % 8 * 8));
    }
    if (!take(j, make_pair<Pair>(codec.encode(bits), index + j))) return false;
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
