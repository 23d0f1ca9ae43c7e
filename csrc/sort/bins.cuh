// Of the last step of the spread (settle.cuh): a window's maps of records to bins, and where its
// results go.
#pragma once
#include "sort/spread.cuh"

namespace gpuprims {
namespace {

// An odd number of four words a thread: 16-byte accesses without bank conflicts.
constexpr int kBinsEach = 12, kBins = kThreads * kBinsEach;

__device__ __forceinline__ uint32_t kept(uint32_t value) {
  return static_cast<uint32_t>(opaque(static_cast<int>(value)));
}

// Where a window's results go; keys of 4 bytes back to elements in few instructions.
struct SettledRow {
  uint32_t* const values;
  void* const indices;
  const uint32_t* const input;
  const uint32_t sign;
  const bool wide, floats;
  const uint32_t turn;
  // Opaque, or they would be computed anew for every record.
  const uint32_t more, negative, zero, nan;

  __device__ __forceinline__ explicit SettledRow(const SortArgs& args)
      : values(static_cast<uint32_t*>(args.values)),
        indices(args.indices),
        input(static_cast<const uint32_t*>(args.input)),
        sign(args.order32.sign),
        wide(args.wide_index),
        floats(args.order32.float_mask != 0),
        turn(args.order32.invert),
        more(kept(args.order32.lossless ? args.order32.nans : 0)),
        negative(kept(args.order32.sign | args.order32.float_mask)),
        zero(kept(args.order32.sign ^ args.order32.invert)),
        nan(kept(~args.order32.invert)) {}

  __device__ __forceinline__ uint32_t decode(uint32_t key) const {
    const uint32_t bits = (key ^ turn) + more;
    return bits ^ (static_cast<int32_t>(bits) < 0 ? sign : negative);
  }
  // kPlain: values and wide indices are wanted.
  template <bool kPlain>
  __device__ __forceinline__ void put(uint32_t place, Record record) const {
    const uint32_t key = key_of(record), index = static_cast<uint32_t>(record);
    if (kPlain || values) values[place] = decode(key);
    if (kPlain || wide)
      static_cast<int64_t*>(indices)[place] = index;
    else
      static_cast<int32_t*>(indices)[place] = static_cast<int32_t>(index);
    // Keys that do not tell all bits. Integers have none; two may be fetched.
    if ((key == zero || key == nan) && (kPlain || values)) values[place] = input[index];
  }
};

// A window's map of records to bins; it never falls as records rise. In four words: this one, or
// ValueMap where `up` is kByValue.
constexpr uint32_t kByValue = 32;
struct BinMap {
  uint32_t least, scale;
  int up, index_up;

  __device__ __forceinline__ BinMap(uint32_t least, uint32_t most, int index_up)
      : least(least), index_up(index_up) {
    const uint32_t range = most - least;
    up = __clz(static_cast<int>(range | 1));
    const float span = (static_cast<float>(range) + 1) * static_cast<float>(1u << up);
    scale = static_cast<uint32_t>(kBins * (4294967296.0f * 0.99999f) / span);
  }
  __device__ __forceinline__ BinMap(const uint4& told, const SettledRow&)
      : least(told.x),
        scale(told.y),
        up(static_cast<int>(told.z)),
        index_up(static_cast<int>(told.w)) {}
  __device__ __forceinline__ uint4 words() const {
    return make_uint4(least, scale, static_cast<uint32_t>(up), static_cast<uint32_t>(index_up));
  }
  // The same map, by which bins are computed anew: registers are few.
  __device__ __forceinline__ BinMap again() const {
    BinMap other = *this;
    other.up = opaque(up);
    return other;
  }
  __device__ __forceinline__ uint32_t of(Record record) const {
    const uint32_t index = static_cast<uint32_t>(record) << index_up;
    return __umulhi(__funnelshift_l(index, key_of(record) - least, up), scale);
  }
};

struct ValueMap {
  const SettledRow& row;
  float first, scale;

  __device__ __forceinline__ ValueMap(const uint4& told, const SettledRow& row) : row(row) {
    first = __uint_as_float(told.x), scale = __uint_as_float(told.y);
  }
  // The words of a window's map, if values spread its keys better than their bits.
  static __device__ __forceinline__ bool words(uint4& told, uint32_t least, uint32_t most,
                                               const SettledRow& row) {
    constexpr uint32_t kBinade = 1u << 23;
    if (!row.floats || most - least < 2 * kBinade) return false;
    const float first = __uint_as_float(row.decode(least));
    const float span = __uint_as_float(row.decode(most)) - first;  // negative where values fall
    const float scale = kBins * 0.9999f / span;
    if (!(fabsf(scale) < INFINITY && scale != 0)) return false;
    told = make_uint4(__float_as_uint(first), __float_as_uint(scale), kByValue, 0);
    return true;
  }
  __device__ __forceinline__ ValueMap again() const { return *this; }
  __device__ __forceinline__ uint32_t of(Record record) const {
    const float value = __uint_as_float(row.decode(key_of(record)));
    return static_cast<uint32_t>((value - first) * scale);
  }
};

}  // namespace
}  // namespace gpuprims
