// A block reads its part of a row once and keeps, in shared memory, the pairs that can still win.
//
// Every kept pair reaches a bound that at least k of the block's pairs reach, or that a sample says
// they reach (then the count is checked at the end, and the part read again without a bound if luck
// failed). When the buffer overflows, a radix select keeps the best k and raises the bound; what
// did not fit is offered again. So the result never depends on the bound's quality, only the time
// does.
#pragma once
#include "topk/select.cuh"

namespace gpuprims {

struct StreamShape {
  int splits;
  int64_t chunk;
  int capacity;
  int flush;
  int rank;
  int groups;
  bool sampled;  // the part is longer than one tile: its sample is read first
  bool shared;   // bounds come from the prepare kernel
};

// A part of a row: 16-byte vectors, and before and behind them the elements that fill none.
// Positions are 32-bit and count from the part's first element; the plan keeps parts below 2^31
// elements.
template <class Key>
struct Part {
  static constexpr uint32_t kVector = Vector<Key>::kSize;
  const Key* data;      // of the part's first element
  const uint8_t* mask;  // likewise, or null
  int64_t mask_step;
  uint32_t length;
  uint32_t head;  // elements before the first vector
  uint32_t vectors;

  __device__ __forceinline__ Part(const TopkArgs& args, const RowPlace& place, int64_t begin,
                                  int64_t end)
      : data(static_cast<const Key*>(args.input) + place.start(args.in) + begin),
        mask(args.mask ? args.mask + place.start(args.drop) + begin * args.drop.step : nullptr),
        mask_step(args.drop.step),
        length(static_cast<uint32_t>(end - begin)) {
    const uint32_t past =
        static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data) & 15) / sizeof(Key);
    head = past ? kVector - past : 0;
    if (head > length) head = length;
    vectors = (length - head) / kVector;
  }

  __device__ __forceinline__ uint32_t position(uint32_t v) const { return head + v * kVector; }
  __device__ __forceinline__ bool keeps(uint32_t at) const { return !mask || mask[at * mask_step]; }
  __device__ __forceinline__ uint4 load(uint32_t v) const {
    return v < vectors ? load_streaming(data + position(v)) : make_uint4(0, 0, 0, 0);
  }

  // At most 2 * kVector - 2 elements are in no vector.
  __device__ __forceinline__ uint32_t edges() const { return length - vectors * kVector; }
  __device__ __forceinline__ uint32_t edge(uint32_t i) const {
    return i < head ? i : i + vectors * kVector;
  }

  // Bit j: element j of vector v is there.
  __device__ __forceinline__ uint32_t present(uint32_t v) const {
    if (v >= vectors) return 0;
    if (!mask) return ~0u;
    uint32_t bits = 0;
#pragma unroll 1
    for (uint32_t j = 0; j < kVector; ++j)
      bits |= static_cast<uint32_t>(keeps(position(v) + j)) << j;
    return bits;
  }
};

// The most promising pair of a vector, or 0; found on keys, so that an element costs a compare and
// two selects.
template <class Pair, class Key>
__device__ __forceinline__ Pair best_of_vector(const uint4& raw, uint32_t present, uint64_t index,
                                               const KeyCodec<Key>& codec) {
  Vector<Key> vector;
  vector.raw = raw;
  Key best = 0;
  int item = -1;
#pragma unroll
  for (int j = 0; j < Vector<Key>::kSize; ++j) {
    const Key key = codec.encode(vector.element[j]);
    if ((present >> j & 1) && (item < 0 || key > best)) best = key, item = j;
  }
  return item < 0 ? Pair(0) : make_pair<Pair>(best, index + item);
}

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

template <class Pair>
__device__ __forceinline__ Pair shuffle_xor(Pair pair, int step) {
  if constexpr (sizeof(Pair) == 8) {
    return __shfl_xor_sync(~0u, static_cast<unsigned long long>(pair), step);
  } else {
    const auto low = __shfl_xor_sync(~0u, static_cast<unsigned long long>(pair), step);
    const auto high = __shfl_xor_sync(~0u, static_cast<unsigned long long>(pair >> 64), step);
    return (static_cast<Pair>(high) << 64) | low;
  }
}

// The rank-th largest (1 is the largest) of 32 pairs in shared memory, found by each warp for
// itself.
template <class Pair>
__device__ __forceinline__ Pair nth_of_32(const Pair* pairs, int rank) {
  const int lane = threadIdx.x % 32;
  const Pair mine = pairs[lane];
  int better = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) better += pairs[i] > mine || (pairs[i] == mine && i < lane);
  const unsigned holder = __ballot_sync(~0u, better == rank - 1);
  return pairs[__ffs(static_cast<int>(holder)) - 1];
}

template <class Key, class Pair, int kThreads>
class Stream {
 public:
  static constexpr int kVector = Vector<Key>::kSize;
  static constexpr int kUnroll = topk_tuning::kUnroll;
  static constexpr uint32_t kTile = kThreads * kUnroll;  // vectors
  using Slots = std::conditional_t<(kUnroll * kVector > 32), uint64_t,
                                   uint32_t>;  // a bit an element of a thread

  __device__ __forceinline__ Stream(const TopkArgs& args, const KeyCodec<Key>& codec,
                                    const StreamShape& shape, const RowPlace& place, int64_t begin,
                                    int64_t end)
      : part_(args, place, begin, end),
        codec_(codec),
        shape_(shape),
        origin_(static_cast<Index>(begin)),
        k_(static_cast<int>(args.k < end - begin ? args.k : end - begin)) {}

  // Fills the buffer with at least min(k, what the mask leaves) pairs, the best among them; returns
  // how many.
  __device__ __forceinline__ int run(Pair bound) {
    auto& s = block<Pair>();
    uint4 tile[kUnroll];
    bound_ = bound;
    if (shape_.rank > 0 && !shape_.shared) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        tile[u] = part_.load(shape_.sampled ? sample_vector(u) : tile_vector(0, u));
      set_bound(tile);
    }
    while (true) {
      if (threadIdx.x == 0) s.count = 0;
      __syncthreads();
      filter_ = WordFilter<Key>(codec_, static_cast<Key>(pair_key(bound_)));
      if (threadIdx.x < part_.edges()) offer_edge(part_.edge(threadIdx.x));
      for (uint32_t v = 0; v < part_.vectors; v += kTile) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) tile[u] = part_.load(tile_vector(v, u));
        offer_tile(tile, v);
      }
      __syncthreads();
      const int count = s.count;
      if (count >= k_ || bound_ == 0 || shape_.shared) return count;
      __syncthreads();
      bound_ = 0;  // the sample misled, or the mask left fewer than k
    }
  }

 private:
  using Index = std::conditional_t<sizeof(Pair) == 8, uint32_t, uint64_t>;

  static __device__ __forceinline__ uint32_t tile_vector(uint32_t v, int u) {
    return v + u * kThreads + threadIdx.x;
  }

  // Runs of 32 vectors, one a warp and load, spread evenly over the part.
  __device__ __forceinline__ uint32_t sample_vector(int u) const {
    constexpr uint32_t kRuns = kUnroll * kThreads / 32;
    const uint64_t run = static_cast<uint64_t>(u * (kThreads / 32) + threadIdx.x / 32) *
                         (part_.vectors / 32) / kRuns;
    return static_cast<uint32_t>(run) * 32 + threadIdx.x % 32;
  }

  __device__ __forceinline__ void set_bound(const uint4 (&seen)[kUnroll]) {
    Pair top = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t v = shape_.sampled ? sample_vector(u) : tile_vector(0, u);
      const Pair best =
          best_of_vector<Pair>(seen[u], part_.present(v), origin_ + part_.position(v), codec_);
      if (shape_.groups == kThreads * kUnroll) buffer<Pair>()[u * kThreads + threadIdx.x] = best;
      top = best > top ? best : top;
    }
    if (shape_.groups == topk_tuning::kGroups) {
      constexpr int kLanes = kThreads / topk_tuning::kGroups;
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) {
        const Pair other = shuffle_xor(top, step);
        if (other > top) top = other;
      }
      if (threadIdx.x % kLanes == 0) block<Pair>().groups[threadIdx.x / kLanes] = top;
      __syncthreads();
      bound_ = nth_of_32(block<Pair>().groups, shape_.rank);
      return;
    }
    if (shape_.groups == kThreads) buffer<Pair>()[threadIdx.x] = top;
    __syncthreads();
    bound_ = select_bound<Pair, kThreads>(shape_.groups, shape_.rank);
    __syncthreads();
  }

  __device__ __forceinline__ void offer_tile(const uint4 (&tile)[kUnroll], uint32_t v) {
    Slots hits = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      hits |= static_cast<Slots>(filter_.hits(tile[u])) << (u * kVector);
    if (hits) hits = offer(tile, v, hits);
    while (__syncthreads_or(hits != 0)) {
      bound_ = keep_best<Pair, kThreads>(shape_.capacity, k_, shape_.capacity);
      filter_ = WordFilter<Key>(codec_, static_cast<Key>(pair_key(bound_)));
      if (hits) hits = offer(tile, v, hits);
    }
  }

  // There are few edges, and they come first: there is room.
  __device__ __forceinline__ void offer_edge(uint32_t at) {
    const Pair pair = make_pair<Pair>(codec_.encode(part_.data[at]), origin_ + at);
    if (part_.keeps(at) && pair >= bound_)
      buffer<Pair>()[atomicAdd(&block<Pair>().count, 1)] = pair;
  }

  // Stores the elements of `hits` that reach the bound; returns those that found no room.
  __device__ __forceinline__ Slots offer(const uint4 (&tile)[kUnroll], uint32_t v, Slots hits) {
    Slots lost = 0;
#pragma unroll 1
    while (hits) {
      const int slot = (sizeof(Slots) == 8 ? __ffsll(static_cast<long long>(hits))
                                           : __ffs(static_cast<int>(hits))) -
                       1;
      hits &= hits - 1;
      const uint32_t vector = tile_vector(v, slot / kVector);
      const uint32_t at = part_.position(vector) + slot % kVector;
      if (vector >= part_.vectors || !part_.keeps(at)) continue;
      const Pair pair = make_pair<Pair>(codec_.encode(element(tile, slot)), origin_ + at);
      if (pair < bound_) continue;
      const int to = atomicAdd(&block<Pair>().count, 1);
      if (to < shape_.capacity)
        buffer<Pair>()[to] = pair;
      else
        lost |= Slots{1} << slot;
    }
    return lost;
  }

  // Element `slot` of a thread's vectors, by selects: a run-time index would send the array to
  // memory.
  static __device__ __forceinline__ Key element(const uint4 (&tile)[kUnroll], int slot) {
    const int vector = slot / kVector;
    uint4 raw = tile[0];
#pragma unroll
    for (int u = 1; u < kUnroll; ++u)
      if (vector == u) raw = tile[u];
    const int byte = slot % kVector * static_cast<int>(sizeof(Key));
    const uint64_t half = byte < 8 ? (static_cast<uint64_t>(raw.y) << 32 | raw.x)
                                   : (static_cast<uint64_t>(raw.w) << 32 | raw.z);
    return static_cast<Key>(half >> (byte % 8 * 8));
  }

  const Part<Key> part_;
  const KeyCodec<Key>& codec_;
  const StreamShape& shape_;
  const Index origin_;  // index in the row of the part's first element
  const int k_;
  Pair bound_ = 0;
  WordFilter<Key> filter_;
};

}  // namespace gpuprims
