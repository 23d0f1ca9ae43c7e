// How a warp shares out heads, channels and edges.
//
// The H * lanes_per_head lanes of a feature row form tiles of 32. In a tile of Hp heads (a power of
// two) with P lanes each, L = Hp * P lanes hold one row, so the warp holds G = 32 / L groups that
// gather different edges. In the streams (stream.cuh) a group has rows of its own, and each of its
// lanes makes the score of its head.
//
// In gatv2.cu the groups share a row, and scores need a lane a head, not P: edges go in batches of
// B = 32 / Hp, and lane s * Hp + h has the score of slot s in head h. Group g gathers the slots g,
// G + g, 2 G + g .. (P of them a batch). The tree of a row's sums is a function of its degree,
// heads, channels and element size: lanes add their edges in order, starting from +0; butterflies
// (distances L .. 16) add lanes; chunks of hubs are added in order.
#pragma once
#include "aggregate/elements.cuh"
#include "attention/hash.h"
#include "attention/kernels.h"

namespace gpuprims::attention {

constexpr unsigned kNone = 0xffffffffu;  // no edge, or one out of range
constexpr int kFlight = 4;               // rows that a group has in flight

__device__ __forceinline__ int log2_up(int v) { return v <= 1 ? 0 : 32 - __clz(v - 1); }

struct Lanes {
  int head_bits;    // Hp = 1 << head_bits
  int part_bits;    // P = 1 << part_bits
  int heads;        // of the tile; at most Hp
  int64_t head;     // the tile's first
  int64_t channel;  // the tile's first, in a head of several tiles; 0 otherwise
  bool first;       // the tile begins its heads: it owns their scalars

  template <int kOwned>
  __device__ static Lanes of(int64_t tile, int64_t heads, int64_t channels) {
    Lanes l;
    const int64_t width = lanes_per_head(channels, kOwned);
    l.head = tile * 32 / width;
    l.channel = width > 32 ? (tile * 32 - l.head * width) * kOwned : 0;
    l.first = l.channel == 0;
    const int64_t held = width > 32 ? 1 : 32 / width;
    l.heads = static_cast<int>(heads - l.head < held ? heads - l.head : held);
    l.head_bits = log2_up(l.heads);
    l.part_bits = width > 32 ? 5 : log2_up(static_cast<int>(width));
    return l;
  }

  __device__ int lane() const { return threadIdx.x % 32; }
  __device__ int batch() const { return 32 >> head_bits; }
  __device__ int row_bits() const { return head_bits + part_bits; }  // L
  __device__ int groups() const { return 32 >> row_bits(); }
  __device__ int group() const { return lane() >> row_bits(); }
  // As a lane of features:
  __device__ int own_head() const { return (lane() >> part_bits) & ((1 << head_bits) - 1); }
  __device__ int part() const { return lane() & ((1 << part_bits) - 1); }
  // A head that is there, for idle lanes too.
  __device__ int any_head() const {
    return static_cast<int>(head) + (own_head() < heads ? own_head() : heads - 1);
  }
  // The lane that writes what its head has one of.
  __device__ bool owns_scalars() const { return first && part() == 0 && own_head() < heads; }
  // As a lane of scores:
  __device__ int score_head() const { return lane() & ((1 << head_bits) - 1); }
  __device__ int slot() const { return lane() >> head_bits; }
  // The lane that has the score of a step's edge in this lane's own head.
  __device__ int score_lane(int step) const {
    return (((step << (5 - row_bits())) + group()) << head_bits) + own_head();
  }
  // The lane of features that begins the row part of this lane's slot and score head.
  __device__ int feature_lane() const {
    return ((slot() & (groups() - 1)) << row_bits()) + (score_head() << part_bits);
  }
  __device__ int slot_step() const { return slot() >> (5 - row_bits()); }
};

// A lane's channels of one head, kBytes of them: chunks of 16 bytes, of which the lanes of a head
// take turns, in kLoads loads of kVec channels. How wide loads are changes no bit.
template <class T, int kVec, int kBytes = kLaneBytes>
struct Columns {
  static constexpr int kOwned = kBytes / static_cast<int>(sizeof(T));
  static constexpr int kLoads = kOwned / kVec;
  static constexpr int kChunkOwned = 16 / static_cast<int>(sizeof(T));

  int64_t offset;  // of the head's first channel, then this lane's first
  int left;        // channels from there to the head's end; none for an idle lane
  int step;        // channels between a lane's chunks
  int tile;        // channels from this lane's part of a tile to its part of the next

  __device__ Columns(const Lanes& l, int64_t channels) {
    const int64_t channel = l.channel + static_cast<int64_t>(l.part()) * kChunkOwned;
    const int64_t rest = l.own_head() < l.heads ? channels - channel : 0;
    offset = (l.head + l.own_head()) * channels + channel;
    left = rest > 0x7fffffff ? 0x7fffffff : static_cast<int>(rest);
    step = kChunkOwned << l.part_bits;
    tile = kOwned << l.part_bits;
  }
  // Channels from the lane's first one to those of a load.
  __device__ __forceinline__ int shift(int load) const {
    return load * kVec / kChunkOwned * step + load * kVec % kChunkOwned;
  }
  __device__ bool owns(int load) const { return shift(load) < left; }
  __device__ int64_t at(int load) const { return offset + shift(load); }

  __device__ void load(Packed<T, kVec> (&into)[kLoads], const T* row) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      into[i] = Packed<T, kVec>{};
      if (owns(i)) into[i] = Packed<T, kVec>::load(row + at(i));
    }
  }

  // From a row shifted by safe(). With whole chunks a lane that owns nothing, or no second chunk,
  // reads what it or another has, without a guard; it is multiplied with 0 or not written.
  __device__ int64_t safe(const Lanes& l, int64_t channels) const {
    return left > 0 ? offset : l.any_head() * channels;
  }
  __device__ __forceinline__ void load_near(Packed<T, kVec> (&into)[kLoads], const T* row) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if constexpr (kVec == kChunkOwned && sizeof(T) < 8) {
        into[i] = Packed<T, kVec>::load(row + (i > 0 && owns(i) ? shift(i) : 0));
      } else {
        into[i] = Packed<T, kVec>{};
        if (owns(i)) into[i] = Packed<T, kVec>::load(row + shift(i));
      }
    }
  }

  // A row of T, or of the accumulator's type.
  template <class Out, class Acc>
  __device__ void write(Out* row, const Acc (&value)[kOwned]) const {
    constexpr int kWide = 16 / sizeof(Out), kStep = kVec < kWide ? kVec : kWide;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (!owns(i)) continue;
#pragma unroll
      for (int j = 0; j < kVec; j += kStep) {
        Pack<Out, kStep> pack;
#pragma unroll
        for (int k = 0; k < kStep; ++k) pack.v[k] = narrow<Out>(value[i * kVec + j + k]);
        store<Out, kStep>(row + at(i) + j, pack);
      }
    }
  }

  template <class Acc>
  __device__ void write_partial(Acc* row, const Acc (&value)[kOwned]) const {
    for (int i = 0; i < kLoads; ++i)
      if (owns(i))
#pragma unroll
        for (int j = 0; j < kVec; ++j) row[at(i) + j] = value[i * kVec + j];
  }
};

template <class Acc>
__device__ __forceinline__ Acc add_lanes(Acc value, int from_bit) {
  for (int distance = 1 << from_bit; distance < 32; distance *= 2)
    value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

// exp(v) where a relative error of |v| ulps does no harm; nothing below the normal range.
__device__ __forceinline__ float quick_power2(float v) {
#ifdef __CUDA_ARCH__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
#else  // tests/emulator
  return std::exp2(v);
#endif
}
__device__ __forceinline__ double quick_power2(double v) { return exp2(v); }
__device__ __forceinline__ float quick_exponential(float v) {
  return quick_power2(v * 1.4426950408889634f);
}
__device__ __forceinline__ double quick_exponential(double v) { return exp(v); }

// Scores of the streams are in powers of 2: a factor, and the way back.
template <class Acc>
__device__ __forceinline__ Acc log2_of_e() {
  return static_cast<Acc>(1.4426950408889634);
}
template <class Acc>
__device__ __forceinline__ Acc log_of_2() {
  return static_cast<Acc>(0.6931471805599453);
}
// Of a sum of weights, which is 1 or more: within 2^-22.
__device__ __forceinline__ float logarithm2(float v) {
#ifdef __CUDA_ARCH__
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
#else  // tests/emulator
  return std::log2(v);
#endif
}
__device__ __forceinline__ double logarithm2(double v) { return log2(v); }
__device__ __forceinline__ float power2(float v) { return exp2f(v); }
__device__ __forceinline__ double power2(double v) { return exp2(v); }

template <class Acc>
__device__ __forceinline__ Acc lowest() {
  return sizeof(Acc) == 8 ? static_cast<Acc>(-1.7976931348623157e308)
                          : static_cast<Acc>(-3.402823466e38f);
}

template <class Acc>
__device__ __forceinline__ Acc leaky(Acc raw, Acc slope) {
  return raw > 0 ? raw : raw * slope;
}

// The node at the other end of an edge, or kNone.
__device__ __forceinline__ unsigned node_of(const Csr& csr, bool there, int64_t edge) {
  if (!there) return kNone;
  const int64_t node = load_int(csr.indices, csr.wide_indices, edge);
  return static_cast<uint64_t>(node) < static_cast<uint64_t>(csr.columns)
             ? static_cast<unsigned>(node)
             : kNone;
}

// Which part of the rows a warp works on. Blocks below hub_blocks share the list of chunks, the
// others take kWarps rows each.
struct Piece {
  int64_t row, begin, slot;
  int length;
  bool hub;

  // False where there is nothing (more) to do.
  __device__ bool take(const Csr& csr, const Hubs& hubs, int hub_blocks, int64_t round) {
    hub = static_cast<int>(blockIdx.x) < hub_blocks;
    const int64_t warp = threadIdx.x / 32;
    int64_t number = 0;
    if (hub) {
      slot = static_cast<int64_t>(blockIdx.x) * kWarps + warp + round * hub_blocks * kWarps;
      if (*hubs.flag || slot >= static_cast<int64_t>(*hubs.count)) return false;
      row = hubs.chunks[slot].row;
      number = hubs.chunks[slot].number;
    } else {
      row = static_cast<int64_t>(blockIdx.x - hub_blocks) * kWarps + warp;
      if (round > 0 || row >= csr.rows) return false;
    }
    begin = load_int(csr.indptr, csr.wide_offsets, row);
    const int64_t degree = load_int(csr.indptr, csr.wide_offsets, row + 1) - begin;
    if (!hub && hub_blocks > 0 && degree >= kHubDegree) return false;
    const int64_t last = degree / kChunk - 1;
    length = static_cast<int>(!hub ? degree : number < last ? kChunk : degree - number * kChunk);
    begin += number * kChunk;
    return true;
  }
};

}  // namespace gpuprims::attention
