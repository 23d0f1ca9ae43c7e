// A short row in shared memory, as the lanes that share it see it: the bests of groups of elements,
// and which elements pass a gate.
#pragma once
#include "topk/lane_keys.cuh"
#include "topk/rows.cuh"

namespace gpuprims {

using Yes = std::true_type;
using No = std::false_type;

// What is known of a warp's rows when their kernel is compiled: they are whole vectors, so that
// they start at multiples of 16 bytes; they are not; or nothing, and `whole` says it at run time.
enum class RowAlign { vectors, elements, either };

// A row in shared memory as the lanes that share it see it.
template <class Key, RowAlign kAlign>
struct SharedRow {
  static constexpr int kVector = Vector<Key>::kSize;
  const unsigned char* bytes;
  int n;
  int begin, end;  // this lane's vectors
  int twist;       // lanes look at vectors in different orders, so that banks do not clash
  bool twisted;    // some lanes' twist is not 0
  bool whole;      // RowAlign::either

  __device__ __forceinline__ const Key* as_elements() const {
    return reinterpret_cast<const Key*>(bytes);
  }
  __device__ __forceinline__ Key element(int index) const { return as_elements()[index]; }
  __device__ __forceinline__ bool aligned() const {
    return kAlign == RowAlign::either ? whole : kAlign == RowAlign::vectors;
  }
  __device__ __forceinline__ uint4 load(int vector) const {
    const unsigned char* const from = bytes + vector * 16;
    if (aligned()) return *reinterpret_cast<const uint4*>(from);
    const auto address = reinterpret_cast<uintptr_t>(from);
    const auto* const words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t{3});
    if constexpr (sizeof(Key) >= 4) return make_uint4(words[0], words[1], words[2], words[3]);
    const unsigned shift = static_cast<unsigned>(address) % 4 * 8;
    return make_uint4(
        __funnelshift_r(words[0], words[1], shift), __funnelshift_r(words[1], words[2], shift),
        __funnelshift_r(words[2], words[3], shift), __funnelshift_r(words[3], words[4], shift));
  }
};

// The groups' best elements of this lane. The first `full` vectors of every lane's share are whole.
template <int kGroups, class S, class Row>
__device__ __forceinline__ void group_maxima(const S& view, const Row& row, int share, int full,
                                             typename S::Value (&out)[kGroups]) {
  constexpr int kVector = Row::kVector, kLoads = kGroups / kVector;
  constexpr int kBlock = kLoads > 8 ? kLoads : 8;  // vectors; a multiple of the twist's reach
  typename S::Value best[kLoads][kVector];
#pragma unroll
  for (int a = 0; a < kLoads; ++a)
#pragma unroll
    for (int j = 0; j < kVector; ++j) best[a][j] = S::worst();
  const auto take = [&](int v, int a, auto whole) {
    Vector<typename S::Key> vector;
    vector.raw = row.load(v);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      if (decltype(whole)::value || v * kVector + j < row.n)
        best[a][j] = S::best(best[a][j], view.value(vector.element[j]));
  };
  int u = 0;
#pragma unroll 1
  for (; u + kBlock <= full; u += kBlock)
#pragma unroll
    for (int i = 0; i < kBlock; ++i) take(row.begin + (i ^ row.twist) + u, i % kLoads, Yes{});
#pragma unroll 1
  for (; u < share; u += kLoads) {
#pragma unroll
    for (int a = 0; a < kLoads; ++a) {
      const int v = row.begin + ((u + a) ^ row.twist);
      if (u + a < share && v < row.end) take(v, a, No{});
    }
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) out[g] = best[g / kVector][g % kVector];
}

// Bit i: element i of the 32 that start with this lane's vector u passes the gate.
template <class S, class Row>
__device__ __forceinline__ uint32_t passing(const S& view, const Row& row, int u, int share,
                                            int full, typename S::Value gate) {
  constexpr int kVector = Row::kVector, kVectors = 32 / kVector;
  uint32_t bits = 0;
  const auto look = [&](int i, int v) {
    Vector<typename S::Key> vector;
    vector.raw = row.load(v);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      if (S::passes(view.value(vector.element[j]), gate)) bits |= 1u << (i * kVector + j);
  };
  if (u + kVectors <= full) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) look(i, row.begin + (i ^ row.twist) + u);
  } else {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int v = row.begin + u + (i ^ row.twist);
      if (u + i < share && v < row.end) look(i, v);
    }
  }
  if (row.twisted) {  // vector i's bits lie where vector i ^ twist's belong
#pragma unroll
    for (int bit = 1; bit < kVectors && bit < 8; bit *= 2) {
      const int width = bit * kVector;
      const uint32_t low = ~0u / ((1u << width) + 1);  // every other field of that width
      if (row.twist & bit) bits = (bits & low) << width | (bits >> width & low);
    }
  }
  const int left = row.n - (row.begin + u) * kVector;
  return left < 32 ? bits & ((1u << (left > 0 ? left : 0)) - 1) : bits;
}

}  // namespace gpuprims
