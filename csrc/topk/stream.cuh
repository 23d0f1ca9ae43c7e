// A block reads its part of a row once and keeps, in shared memory, the pairs that can still win.
//
// Every kept pair reaches a bound that at least k of the block's pairs reach, or that a sample says
// they reach (then the count is checked at the end, and the part read again without a bound if luck
// failed). When the buffer overflows, a radix select keeps the best k and raises the bound; what
// did not fit is offered again. So the result never depends on the bound's quality, only the time
// does. Warps run free between overflows.
#pragma once
#include "topk/scan.cuh"
#include "topk/select.cuh"

namespace gpuprims {

struct StreamShape {
  int splits;     // blocks a row
  int64_t chunk;  // elements a block
  int capacity;   // of the buffer
  int flush;      // pairs a block hands over at most
  int rank;       // the bound is the rank-th best of
  int groups;     // that many group maxima; rank 0: no bound
  int maxima;     // split rows: numbers that the sample left, several to a group
  bool sampled;   // one block a row, longer than a tile: its sample is read first
  bool retry;     // split rows: the bound may be too high
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
};

// A pair that some element of vector v equals or beats, or 0.
template <class Scan, class Pair, class Key = typename Scan::Key>
__device__ __forceinline__ Pair vector_pair(const Part<Key>& part, const uint4& raw, uint32_t v,
                                            uint64_t origin, const KeyCodec<Key>& codec) {
  if (v >= part.vectors) return 0;
  const uint32_t at = part.position(v);
  if (!part.mask) {
    const auto order =
        with_flip<Scan>(codec, [&](auto flip) { return Scan::template order<flip>(raw, codec); });
    return make_pair<Pair>(Scan::key(order, codec), origin + at + Vector<Key>::kSize - 1);
  }
  Pair best = 0;
  for_hits<Pair>(raw, (1u << Vector<Key>::kSize) - 1, origin + at, codec, [&](int j, Pair pair) {
    if (pair > best && part.keeps(at + j)) best = pair;
    return true;
  });
  return best;
}

// The best of a thread's vectors of a tile. Later vectors have higher indices, so they must be
// better to win.
template <class Scan, class Pair, int kCount, class Key, class Number>
__device__ __forceinline__ Pair tile_pair(const Part<Key>& part, const uint4 (&tile)[kCount],
                                          const Number& number, uint64_t origin,
                                          const KeyCodec<Key>& codec) {
  if (part.mask) {
    Pair best = 0;
#pragma unroll 1
    for (int u = 0; u < kCount; ++u) {
      const Pair pair = vector_pair<Scan, Pair>(part, pick(tile, u), number(u), origin, codec);
      if (pair > best) best = pair;
    }
    return best;
  }
  if (number(0) >= part.vectors) return 0;  // numbers rise
  uint32_t from = number(0);
  const auto best = with_flip<Scan>(codec, [&](auto flip) {
    auto top = Scan::template order<flip>(tile[0], codec);
#pragma unroll
    for (int u = 1; u < kCount; ++u) {
      const auto order = Scan::template order<flip>(tile[u], codec);
      const uint32_t v = number(u);
      if (v < part.vectors && order > top) top = order, from = v;
    }
    return top;
  });
  return make_pair<Pair>(Scan::key(best, codec),
                         origin + part.position(from) + Vector<Key>::kSize - 1);
}

template <class S, class Pair, int kThreads, int kUnroll>
class Stream {
 public:
  using Key = typename S::Key;
  static constexpr int kVector = Vector<Key>::kSize;
  static constexpr uint32_t kTile = kThreads * kUnroll;  // vectors
  static constexpr int kSlots = kUnroll * kVector;       // elements a thread takes of a tile

  __device__ __forceinline__ Stream(const TopkArgs& args, const KeyCodec<Key>& codec,
                                    const StreamShape& shape, const RowPlace& place, int64_t begin,
                                    int64_t end)
      : part_(args, place, begin, end),
        codec_(codec),
        shape_(shape),
        origin_(static_cast<Index>(begin)),
        k_(static_cast<int>(args.k < end - begin ? args.k : end - begin)) {}

  // Fills the buffer with at least min(k, what the mask leaves) pairs, the best among them; returns
  // how many. A split row's bound comes from shared(), called once the first loads are on their
  // way.
  template <class Shared>
  __device__ __forceinline__ int run(const Shared& shared) {
    auto& s = block<Pair>();
    uint4 tile[kUnroll];
    const bool sample = shape_.sampled && shape_.rank > 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      tile[u] = part_.load(sample ? sample_vector(u) : tile_vector(0, u));
    bool loaded = !sample;
    Pair bound = shape_.splits > 1 ? shared() : shape_.rank > 0 ? sample_bound(tile) : Pair(0);
    while (true) {
      use_bound(bound);
      if (threadIdx.x == 0) s.count = 0;
      __syncthreads();
      if (threadIdx.x < part_.edges()) offer_edge(part_.edge(threadIdx.x));
      read(tile, loaded);
      const int count = s.count;
      if (count >= k_ || bound == 0 || shape_.splits > 1) return count;
      __syncthreads();
      bound = 0;  // the sample misled, or the mask left fewer than k
      loaded = false;
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

  __device__ __forceinline__ Pair sample_bound(const uint4 (&seen)[kUnroll]) const {
    const auto number = [&](int u) {
      return shape_.sampled ? sample_vector(u) : tile_vector(0, u);
    };
    if (shape_.groups > kThreads) {
#pragma unroll 1
      for (int u = 0; u < kUnroll; ++u)
        buffer<Pair>()[u * kThreads + threadIdx.x] =
            vector_pair<S, Pair>(part_, pick(seen, u), number(u), origin_, codec_);
      __syncthreads();
      return select_bound<Pair, kThreads>(shape_.groups, shape_.rank);
    }
    const Pair top = tile_pair<S, Pair>(part_, seen, number, origin_, codec_);
    if (shape_.groups <= topk_tuning::kMaxGroups)
      return group_bound<Pair, kThreads>(top, shape_.groups, shape_.rank);
    buffer<Pair>()[threadIdx.x] = top;
    __syncthreads();
    return select_bound<Pair, kThreads>(shape_.groups, shape_.rank);
  }

  // Elements at or before the bound's index may equal its key; later ones must beat it.
  __device__ __forceinline__ void use_bound(Pair bound) {
    const Key key = static_cast<Key>(pair_key(bound));
    const uint64_t index = pair_index(bound);
    bound_ = bound;
    bound_at_ = index < origin_                ? 0
                : index - origin_ < UINT32_MAX ? static_cast<uint32_t>(index - origin_)
                                               : UINT32_MAX;
    last_at_ = key == static_cast<Key>(~Key(0)) ? bound_at_ : UINT32_MAX;
    loose_.set(codec_, key);
    strict_.set(codec_, static_cast<Key>(key == static_cast<Key>(~Key(0)) ? key : key + 1));
  }

  // A warp moves as one, so that its loads stay whole; warps wait for each other only where the
  // buffer is full.
  __device__ __forceinline__ void read(uint4 (&tile)[kUnroll], bool loaded) {
    uint32_t v = 0;  // a tile's first vector
    int from = 0;    // this thread's slots before it have been offered
    while (true) {
      while (v < part_.vectors && !full()) {
        if (!loaded) {
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) tile[u] = part_.load(tile_vector(v, u));
        }
        loaded = false;
        uint32_t vectors = 0;
        with_flip<S>(codec_, [&](auto flip) {
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            const uint32_t at = part_.position(tile_vector(v, u));
            const S& scan = at > bound_at_ ? strict_ : loose_;
            vectors |= static_cast<uint32_t>(scan.template reaches<flip>(tile[u]) && at <= last_at_)
                       << u;
          }
        });
        vectors &= ~0u << (from / kVector);
        from = vectors ? offer(tile, v, vectors, from) : kSlots;
        if (__any_sync(~0u, from < kSlots)) {
          if (threadIdx.x % 32 == 0) atomicExch(&block<Pair>().full, 1);
          break;
        }
        from = 0;
        v = part_.position(v) > last_at_ ? part_.vectors : v + kTile;
      }
      if (!__syncthreads_or(v < part_.vectors)) return;
      use_bound(keep_best<Pair, kThreads>(shape_.capacity, k_, shape_.capacity));
    }
  }

  // Whether a warp has found the buffer full: a whole warp asks, with one atomic read, since others
  // may write.
  static __device__ __forceinline__ bool full() {
    const int flag = threadIdx.x % 32 == 0 ? atomicOr(&block<Pair>().full, 0) : 0;
    return __shfl_sync(~0u, flag, 0);
  }

  // There are few edges, and they come first: there is room.
  __device__ __forceinline__ void offer_edge(uint32_t at) {
    const Pair pair = make_pair<Pair>(codec_.encode(part_.data[at]), origin_ + at);
    if (part_.keeps(at) && pair >= bound_)
      buffer<Pair>()[atomicAdd(&block<Pair>().count, 1)] = pair;
  }

  // Stores the elements of the tile's `vectors`, from slot `from` on, that reach the bound; returns
  // the first that found no room, or kSlots.
  __device__ __forceinline__ int offer(const uint4 (&tile)[kUnroll], uint32_t v, uint32_t vectors,
                                       int from) {
#pragma unroll 1
    while (vectors) {
      const int u = __ffs(static_cast<int>(vectors)) - 1;
      vectors &= vectors - 1;
      const uint32_t number = tile_vector(v, u);
      if (number >= part_.vectors) break;
      const uint4 raw = pick(tile, u);
      const uint32_t at = part_.position(number);
      int lost = kSlots;
      const bool all =
          for_hits<Pair>(raw, loose_.hits(raw), origin_ + at, codec_, [&](int j, Pair pair) {
            if (u * kVector + j < from || pair < bound_ || !part_.keeps(at + j)) return true;
            const int to = atomicAdd(&block<Pair>().count, 1);
            if (to < shape_.capacity)
              buffer<Pair>()[to] = pair;
            else
              lost = u * kVector + j;
            return to < shape_.capacity;
          });
      if (!all) return lost;
    }
    return kSlots;
  }

  const Part<Key> part_;
  const KeyCodec<Key>& codec_;
  const StreamShape& shape_;
  const Index origin_;  // index in the row of the part's first element
  const int k_;
  Pair bound_ = 0;
  uint32_t bound_at_ = 0;  // position from which on keys must be better than the bound's
  uint32_t last_at_ = 0;   // position from which on nothing can be better: no need to read on
  S loose_, strict_;
};

}  // namespace gpuprims
