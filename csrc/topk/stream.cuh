// A block reads its part of a row once and keeps, in shared memory, the pairs that can still win.
//
// Every kept pair reaches a bound that at least k of the block's pairs reach, or that a sample says
// they reach (then the count is checked at the end, and the part read again without a bound if luck
// failed). While it reads, a warp only lists the vectors whose best element reaches the bound: a
// few instructions a vector, and they are kept in shared memory (of rows that fill the device with
// two blocks a multiprocessor, few are: these are read again from L2). When the list is full, and
// at the end, the block takes them up, a thread a vector, and stores their elements. When
// the buffer of pairs overflows, a radix select keeps the best k and raises the bound; what did not
// fit is offered again. So the result never depends on the bound's quality, only the time does.
#pragma once
#include "topk/part.cuh"
#include "topk/plan_stream.h"
#include "topk/rank.cuh"
#include "topk/scan.cuh"

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
  bool keeps;     // the vectors that are listed, too
};

__device__ __forceinline__ void prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// A pair that some element of vector v equals or beats, or 0. For long ranks and masked rows: slow.
template <class Scan, class Pair, class Key = typename Scan::Key>
__device__ __noinline__ Pair vector_pair(const Key* data, const uint8_t* mask, int64_t mask_step,
                                         uint64_t index, const KeyCodec<Key>& codec) {
  Pair best = 0;
  for_hits<Pair>(load_streaming(data), (1u << Vector<Key>::kSize) - 1, index, codec,
                 [&](int j, Pair pair) {
                   if (pair > best && (!mask || mask[j * mask_step])) best = pair;
                   return true;
                 });
  return best;
}
template <class Scan, class Pair, class Key = typename Scan::Key>
__device__ __forceinline__ Pair vector_pair(const Part<Key>& part, uint32_t v, uint64_t origin,
                                            const KeyCodec<Key>& codec) {
  if (v >= part.vectors) return 0;
  const uint32_t at = part.position(v);
  return vector_pair<Scan, Pair>(part.data + at,
                                 part.mask ? part.mask + at * part.args.drop.step : nullptr,
                                 part.args.drop.step, origin + at, codec);
}

// The tops of a thread's vectors, whose numbers rise, and a pair that some element of them equals
// or beats, or 0: the best key, with the index of the first vector or, if that has no such key, of
// the last. For rows without a mask.
template <class Scan, class Pair, int kCount, class Key, class Number>
__device__ __forceinline__ Pair tops_pair(const Part<Key>& part, const uint4 (&tile)[kCount],
                                          typename Scan::Top (&tops)[kCount], const Number& number,
                                          uint64_t origin, const KeyCodec<Key>& codec) {
  uint32_t from = number(0);
  const Key key = with_flip<Scan>(codec, [&](auto flip) {
    tops[0] = Scan::template top<flip>(tile[0], codec);
    auto best = tops[0];
#pragma unroll
    for (int u = 1; u < kCount; ++u) {
      tops[u] = Scan::template top<flip>(tile[u], codec);
      const uint32_t v = number(u);
      if (v < part.vectors) best = Scan::better(best, tops[u]), from = v;
    }
    const Key top = Scan::template top_key<flip>(best, codec);
    if (Scan::template top_key<flip>(tops[0], codec) == top) from = number(0);
    return top;
  });
  if (number(0) >= part.vectors) return 0;
  return make_pair<Pair>(key, origin + part.position(from) + Vector<Key>::kSize - 1);
}

// A bound that at least k of a row's pairs reach, as a proof and not by luck: the k-th best of the
// best of each of its first vectors. 0 where there are too few. For what has gone wrong, in rows
// without a mask: it finds its row anew, so that the usual way keeps its registers.
template <class Scan, class Pair, int kThreads, class Key = typename Scan::Key>
__device__ __noinline__ Pair proven_bound(const TopkArgs& args, const KeyCodec<Key>& codec,
                                          int64_t row) {
  constexpr int kVectors = topk_tuning::kProofVectors, kLoads = 4;
  static_assert(kVectors % (kLoads * kThreads) == 0);
  const int k = static_cast<int>(args.k);
  const Part<Key> part(args, RowPlace(row, args.inner), 0, args.n);
  if (k > kVectors * 3 / 4 || part.vectors == 0) return 0;
#pragma unroll 1
  for (uint32_t first = threadIdx.x; first < kVectors; first += kLoads * kThreads) {
    uint4 seen[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) seen[u] = part.load(first + u * kThreads);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const uint32_t v = first + u * kThreads;
      const Key key = with_flip<Scan>(codec, [&](auto flip) {
        return Scan::template top_key<flip>(Scan::template top<flip>(seen[u], codec), codec);
      });
      buffer<Pair>()[v] = v < part.vectors
                              ? make_pair<Pair>(key, part.position(v) + Vector<Key>::kSize - 1)
                              : Pair(0);
    }
  }
  __syncthreads();
  return select_bound<Pair, kThreads>(kVectors, k, k);
}

template <class S, class Pair, int kThreads, int kUnroll>
class Stream {
 public:
  using Key = typename S::Key;
  static constexpr int kVector = Vector<Key>::kSize;
  static constexpr int kSample = topk_tuning::kSampleLoads;
  static constexpr uint32_t kTile = kThreads * kUnroll;  // vectors
  static constexpr int kList = 4 * kThreads;             // vectors the list holds
  static constexpr bool kMaySplit = kThreads > 128;
  static constexpr bool kOnlySplit = kUnroll == 4;  // the plan's promise
  static constexpr bool kMayKeep = !kOnlySplit;
  // Many rows: what a misleading sample costs is not made up for by other blocks.
  static constexpr bool kProves = kThreads == 128 && sizeof(Key) == 2;

  __device__ __forceinline__ Stream(const TopkArgs& args, const KeyCodec<Key>& codec,
                                    const StreamShape& shape, int64_t row, const RowPlace& place,
                                    int64_t begin, int64_t end)
      : part_(args, place, begin, end),
        row_(row),
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
    typename S::Top tops[kUnroll];
    bool known = false;  // tops are those of the first tile
    Pair bound = 0;
    if (kOnlySplit || (kMaySplit && shape_.splits > 1)) {
      prefetch_tile();
      bound = shared();
    } else if (shape_.rank > 0 && (part_.mask || shape_.groups > topk_tuning::kMaxGroups)) {
      bound = slow_bound();
    } else if (shape_.rank > 0) {
      bound = sample_bound(tops);
      known = !shape_.sampled;
    }
    while (true) {
      use_bound(bound);
      if (threadIdx.x == 0) s.count = 0, s.hits = 0;
      __syncthreads();
      if (threadIdx.x < part_.edges()) offer_edge(part_.edge(threadIdx.x));
      read(known, known ? reaching(tops) : ~0u);
      const int count = s.count;
      if (kOnlySplit || count >= k_ || bound == 0 || (kMaySplit && shape_.splits > 1)) return count;
      __syncthreads();
      bound = 0;  // the sample misled, or the mask left fewer than k
      known = false;
      if constexpr (kProves)
        if (!part_.mask) bound = proven_bound<S, Pair, kThreads>(part_.args, codec_, row_);
    }
  }

 private:
  using Index = std::conditional_t<sizeof(Pair) == 8, uint32_t, uint64_t>;

  static __device__ __forceinline__ uint32_t tile_vector(uint32_t v, int u) {
    return v + u * kThreads + threadIdx.x;
  }

  __device__ __forceinline__ void load_tile(uint4 (&tile)[kUnroll], uint32_t v) const {
    if (v + kTile <= part_.vectors) {
      const Key* const first = part_.data + part_.position(v + threadIdx.x);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) tile[u] = load_streaming(first + u * kThreads * kVector);
    } else {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) tile[u] = part_.load(tile_vector(v, u));
    }
  }

  // The first tile to L2, a line a thread.
  __device__ __forceinline__ void prefetch_tile() const {
    const uint32_t at = threadIdx.x * (128 / sizeof(Key));
    if (at < part_.length && threadIdx.x < kTile / 8) prefetch(part_.data + at);
  }

  // Runs of 32 vectors, one a warp and load, spread evenly over the part.
  __device__ __forceinline__ uint32_t sample_vector(int u) const {
    constexpr uint32_t kRuns = kSample * kThreads / 32;
    const uint64_t run = static_cast<uint64_t>(u * (kThreads / 32) + threadIdx.x / 32) *
                         (part_.vectors / 32) / kRuns;
    return static_cast<uint32_t>(run) * 32 + threadIdx.x % 32;
  }

  // The bound that a sample, or the first tile, gives; of that, `tops` are kept.
  __device__ __forceinline__ Pair sample_bound(typename S::Top (&tops)[kUnroll]) const {
    Pair best = 0;
    if (shape_.sampled) {
      typename S::Top sample_tops[kSample];
      uint4 seen[kSample];
#pragma unroll
      for (int u = 0; u < kSample; ++u) seen[u] = part_.load(sample_vector(u));
      best = tops_pair<S, Pair>(
          part_, seen, sample_tops, [&](int u) { return sample_vector(u); }, origin_, codec_);
      prefetch_tile();
    } else if (part_.vectors > 0) {
      uint4 seen[kUnroll];
      load_tile(seen, 0);
      best = tops_pair<S, Pair>(
          part_, seen, tops, [&](int u) { return tile_vector(0, u); }, origin_, codec_);
    }
    if constexpr (kThreads == 128 && sizeof(Pair) == 8) {
      if (!shape_.sampled) return warps_bound<kThreads>(best, shape_.rank);
    }
    return group_bound<Pair, kThreads>(best, shape_.groups, shape_.rank);
  }

  // The bound of masked rows, and where every thread, or every vector, is a group.
  __device__ __forceinline__ Pair slow_bound() const {
    const bool each = shape_.groups > kThreads;
    const int loads = shape_.sampled ? kSample : kUnroll;
    Pair best = 0;
#pragma unroll 1
    for (int u = 0; u < loads; ++u) {
      const uint32_t v = shape_.sampled ? sample_vector(u) : tile_vector(0, u);
      const Pair pair = vector_pair<S, Pair>(part_, v, origin_, codec_);
      if (each || pair > best) best = pair;
      if (each || u == loads - 1) buffer<Pair>()[(each ? u * kThreads : 0) + threadIdx.x] = best;
    }
    __syncthreads();
    return shape_.groups <= topk_tuning::kMaxGroups
               ? group_bound<Pair, kThreads>(best, shape_.groups, shape_.rank)
               : select_bound<Pair, kThreads>(shape_.groups, shape_.rank, shape_.rank);
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
    S::set_both(codec_, key, loose_, strict_);
  }

  // Warps run free between barriers, at which the block takes up what they have listed. A warp
  // moves as one, so that its loads stay whole. pending: this thread's vectors of the tile that may
  // have to be listed, and if `known`, they do.
  __device__ __forceinline__ void read(bool known, uint32_t pending) {
    auto& s = block<Pair>();
    uint32_t v = 0;  // a tile's first vector
    bool fresh = kProves && !part_.mask;
    const bool kept = kMayKeep && shape_.keeps && !known;  // of known tops, the vectors have gone
    while (true) {
      bool stuck = false;
      while (v < part_.vectors && part_.position(v) <= last_at_) {
        if (!known) {
          uint4 tile[kUnroll];
          load_tile(tile, v);
          pending &= reaching(tile, v);
          if (kept && pending) pending = keep(tile, pending, v);
        }
        if (!kept && pending) pending = list(pending, v);
        known = false;
        stuck = __any_sync(~0u, pending != 0);
        if (stuck) break;
        pending = ~0u;
        v += kTile;
      }
      const bool more = __syncthreads_or(stuck);
      if constexpr (kProves)
        if (fresh && more && __syncthreads_or(stuck && v == 0)) raise_bound();
      fresh = false;
      take_up(s.hits < kList ? s.hits : kList, kept);
      if (!more) return;
      if (threadIdx.x == 0) s.hits = 0;
      __syncthreads();
    }
  }

  // The first tile alone fills the list: the sample had little of what is good, or the bound it
  // gave was too high and has been dropped. Before anything but edges is in the buffer.
  __device__ __forceinline__ void raise_bound() {
    const Pair better = proven_bound<S, Pair, kThreads>(part_.args, codec_, row_);
    if (better > bound_) use_bound(better);
    if (threadIdx.x == 0) block<Pair>().count = 0;
    __syncthreads();
    if (threadIdx.x < part_.edges()) offer_edge(part_.edge(threadIdx.x));
    __syncthreads();
  }

  // Bit u: this thread's vector u of the tile may hold an element that reaches the bound.
  template <class Reaches>
  __device__ __forceinline__ uint32_t reaching(uint32_t v, const Reaches& reaches) const {
    const uint32_t first = v + threadIdx.x, from = part_.position(first);
    uint32_t hits = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t at = from + u * kThreads * kVector;
      S scan = loose_;
      if (at > bound_at_) scan = strict_;
      if (reaches(scan, u) && at <= last_at_) hits |= 1u << u;
    }
    if (v + kTile > part_.vectors) {  // the last tile
      const uint32_t left = first < part_.vectors ? part_.vectors - first : 0;
      hits &= (1u << (left + kThreads - 1) / kThreads) - 1;
    }
    return hits;
  }
  __device__ __forceinline__ uint32_t reaching(const uint4 (&tile)[kUnroll], uint32_t v) const {
    return with_flip<S>(codec_, [&](auto flip) {
      return reaching(v,
                      [&](const S& scan, int u) { return scan.template reaches<flip>(tile[u]); });
    });
  }
  __device__ __forceinline__ uint32_t reaching(const typename S::Top (&tops)[kUnroll]) const {
    return reaching(0, [&](const S& scan, int u) { return scan.reaches_top(tops[u]); });
  }

  // Appends vectors of the tile to the list; returns those that found no room.
  __device__ __forceinline__ uint32_t list(uint32_t hits, uint32_t v) const {
    uint32_t* const vectors = scratch<Pair>(shape_.capacity);
    int at = shared_add(&block<Pair>().hits, __popc(hits));
#pragma unroll 1
    for (; hits && at < kList; hits &= hits - 1)
      vectors[at++] = tile_vector(v, __ffs(static_cast<int>(hits)) - 1);
    return hits;
  }

  // The same, with the vectors themselves. By predicates, not in a loop: a run-time index would
  // send the tile to memory.
  __device__ __forceinline__ uint32_t keep(const uint4 (&tile)[kUnroll], uint32_t hits,
                                           uint32_t v) const {
    uint32_t* const vectors = scratch<Pair>(shape_.capacity);
    int at = shared_add(&block<Pair>().hits, __popc(hits));
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if ((hits >> u & 1) && at < kList) {
        vectors[at] = tile_vector(v, u);
        kept_vectors()[at++] = tile[u];
        hits ^= 1u << u;
      }
    return hits;
  }
  __device__ __forceinline__ uint4* kept_vectors() const {
    return reinterpret_cast<uint4*>(ranked<Pair, kThreads>(shape_.capacity) +
                                    (part_.args.k + 7) / 8 * 8);
  }

  // There are few edges, and they come first: there is room.
  __device__ __forceinline__ void offer_edge(uint32_t at) {
    const Pair pair = make_pair<Pair>(codec_.encode(part_.data[at]), origin_ + at);
    if (part_.keeps(at) && pair >= bound_)
      buffer<Pair>()[atomicAdd(&block<Pair>().count, 1)] = pair;
  }

  // Stores the elements of the listed vectors that reach the bound. Ends with a barrier.
  __device__ __forceinline__ void take_up(int listed, bool kept) {
    const uint32_t* const vectors = scratch<Pair>(shape_.capacity);
    // A thread's vectors follow each other, so that what comes first is a fair sample of the list,
    // also of sorted data.
    const int share = (listed + kThreads - 1) / kThreads;
    int i = threadIdx.x * share;
    const int end = i + share < listed ? i + share : listed;
    uint32_t pending = ~0u;  // elements of vector i that have not been offered
    while (true) {
      bool lost = false;
#pragma unroll 1
      while (i < end && !lost) {
        const uint32_t at = part_.position(vectors[i]);
        uint4 raw;
        if (kept)
          raw = kept_vectors()[i];
        else
          raw = load_streaming(part_.data + at);
        const uint32_t hits = loose_.hits(raw) & pending;
        for_hits<Pair>(raw, hits, origin_ + at, codec_, [&](int j, Pair pair) {
          if (pair < bound_ || !part_.keeps(at + j)) return true;
          const int to = atomicAdd(&block<Pair>().count, 1);
          if (to < shape_.capacity) {
            buffer<Pair>()[to] = pair;
            return true;
          }
          pending = ~0u << j;
          lost = true;
          return false;
        });
        if (!lost) ++i, pending = ~0u;
      }
      if (!__syncthreads_or(lost)) return;
      use_bound(keep_best<Pair, kThreads>(shape_.capacity, k_, k_ + (shape_.capacity - k_) / 8,
                                          shape_.capacity));
    }
  }

  const Part<Key> part_;
  const int64_t row_;
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
