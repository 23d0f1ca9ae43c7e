// A block reads a part of a segment once and keeps, in shared memory, the pairs that can still be
// among the part's best. As Stream of stream.cuh, for parts that start anywhere, with a bound that
// the parts of a segment share, and a ceiling for further passes. The bound never decides the
// result, only the time.
#pragma once
#include "topk/rank.cuh"
#include "topk/scan.cuh"
#include "topk/segment_device.cuh"

namespace gpuprims {

// The bound that the chunks of a segment share: a pair (of wide pairs, the key alone) that at least
// as many of the segment's elements reach as are wanted. Any value seen, old or new, is right.
template <class Pair>
__device__ __forceinline__ Pair shared_bound(unsigned long long* shared) {
  const unsigned long long seen = *static_cast<volatile unsigned long long*>(shared);
  return sizeof(Pair) == 8 ? static_cast<Pair>(seen) : static_cast<Pair>(seen) << 32 << 32;
}

template <class Pair>
__device__ __forceinline__ void raise_shared_bound(unsigned long long* shared, Pair bound) {
  if (threadIdx.x != 0) return;
  atomicMax(shared, static_cast<unsigned long long>(sizeof(Pair) == 8 ? bound : bound >> 32 >> 32));
}

template <class S, class Pair, int kThreads>
class SegmentScan {
 public:
  using Key = typename S::Key;
  using Index = std::conditional_t<sizeof(Pair) == 8, uint32_t, uint64_t>;
  static constexpr int kUnroll = 4;
  static constexpr int kVector = Vector<Key>::kSize;
  static constexpr uint32_t kTile = kThreads * kUnroll;  // vectors
  static constexpr int kSlots = kUnroll * kVector;       // elements a thread takes of a tile

  // Elements [from, to) of the segment at `segment`; shared: null, or the segment's bound.
  __device__ __forceinline__ SegmentScan(const Key* segment, int64_t from, int64_t to,
                                         const KeyCodec<Key>& codec, int wanted, int capacity,
                                         Pair ceiling, unsigned long long* shared)
      : data_(segment + from),
        origin_(static_cast<Index>(from)),
        length_(static_cast<uint32_t>(to - from)),
        codec_(codec),
        wanted_(wanted),
        capacity_(capacity),
        ceiling_(ceiling),
        shared_(shared) {
    const uint32_t past =
        static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data_) & 15) / sizeof(Key);
    head_ = past ? kVector - past : 0;
    if (head_ > length_) head_ = length_;
    vectors_ = (length_ - head_) / kVector;
  }

  // Fills the buffer with at least the best min(wanted, what the ceiling leaves); returns how many
  // pairs there are. Ends with a barrier.
  __device__ __forceinline__ int run() {
    auto& s = block<Pair>();
    uint4 tile[kUnroll];
    Pair bound = 0;
    if (shared_) {  // one thread looks, so that all see the same
      if (threadIdx.x == 0) s.bound = shared_bound<Pair>(shared_);
      __syncthreads();
      bound = s.bound;
      __syncthreads();
    }
    const bool first = bound == 0 && ceiling_ == static_cast<Pair>(~Pair(0));
    const bool spread = first && vectors_ > 2 * kTile;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) tile[u] = load(spread ? sampled(u) : number(0, u));
    if (first) {
      bound = first_bound(tile, spread);
      if (shared_ && bound != 0) raise_shared_bound(shared_, bound);
      if (spread) load(tile, 0);
    }
    use_bound(bound);
    __syncthreads();
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    // At most 2 * kVector - 2 elements are in no vector: there is room.
    if (threadIdx.x < length_ - vectors_ * kVector)
      offer_edge(threadIdx.x < head_ ? threadIdx.x : threadIdx.x + vectors_ * kVector);
    uint32_t v = 0;
    do {
      int from = offer_tile(tile, v, 0);
      if (from == kSlots) load(tile, v + kTile);  // on its way while others are waited for
      while (__syncthreads_or(from < kSlots)) {
        bound = keep_best<Pair, kThreads>(capacity_, wanted_, (capacity_ + wanted_) / 2, capacity_);
        if (shared_) raise_shared_bound(shared_, bound);
        use_bound(bound);
        if (from == kSlots) continue;
        from = offer_tile(tile, v, from);
        if (from == kSlots) load(tile, v + kTile);
      }
      v += kTile;
    } while (v < vectors_);
    const int count = s.count;
    __syncthreads();  // what comes next counts anew
    return count;
  }

 private:
  static __device__ __forceinline__ uint32_t number(uint32_t v, int u) {
    return v + u * kThreads + threadIdx.x;
  }
  __device__ __forceinline__ uint32_t position(uint32_t vector) const {
    return head_ + vector * kVector;
  }
  __device__ __forceinline__ uint4 load(uint32_t vector) const {
    return vector < vectors_ ? load_streaming(data_ + position(vector)) : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void load(uint4 (&tile)[kUnroll], uint32_t v) const {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) tile[u] = load(number(v, u));
  }
  // A tile's worth of vectors in runs of 32, a warp's, spread evenly over the part: sorted data
  // would have nothing to say at the front.
  __device__ __forceinline__ uint32_t sampled(int u) const {
    constexpr uint32_t kRuns = kTile / 32;
    const uint64_t run =
        static_cast<uint64_t>(u * (kThreads / 32) + threadIdx.x / 32) * (vectors_ / 32) / kRuns;
    return static_cast<uint32_t>(run) * 32 + threadIdx.x % 32;
  }

  // A pair that some element of the vector equals or beats; 0 behind the last vector.
  __device__ __forceinline__ Pair best_of(const uint4& raw, uint32_t vector) const {
    if (vector >= vectors_) return 0;
    const Key key = with_flip<S>(codec_, [&](auto flip) {
      return S::template top_key<flip>(S::template top<flip>(raw, codec_), codec_);
    });
    return make_pair<Pair>(key, origin_ + position(vector) + kVector - 1);
  }

  // What `wanted` elements of the first tile, or of a spread one, are proven to reach: about the
  // wanted-th largest of group maxima; 0 where groups are too few to say.
  __device__ __forceinline__ Pair first_bound(const uint4 (&tile)[kUnroll], bool spread) const {
    const auto vector = [&](int u) { return spread ? sampled(u) : number(0, u); };
    if (const int groups = topk_tuning::groups_for(wanted_)) {
      Pair top = 0;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const Pair pair = best_of(tile[u], vector(u));
        if (pair > top) top = pair;
      }
      return group_bound<Pair, kThreads>(top, groups, wanted_);
    }
    if (wanted_ * 4 > static_cast<int>(kTile) * 3 || static_cast<int>(kTile) > capacity_) return 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      buffer<Pair>()[u * kThreads + threadIdx.x] = best_of(tile[u], vector(u));
    __syncthreads();
    return select_bound<Pair, kThreads>(static_cast<int>(kTile), wanted_, wanted_);
  }

  // Elements at or before the bound's index may equal its key; later ones must beat it.
  __device__ __forceinline__ void use_bound(Pair bound) {
    const Key key = static_cast<Key>(pair_key(bound)), best = static_cast<Key>(~Key(0));
    const uint64_t index = pair_index(bound);
    bound_ = bound;
    bound_at_ = index < origin_                ? 0
                : index - origin_ < UINT32_MAX ? static_cast<uint32_t>(index - origin_)
                                               : UINT32_MAX;
    last_at_ = key == best ? bound_at_ : UINT32_MAX;
    S::set_both(codec_, key, loose_, strict_);
  }

  __device__ __forceinline__ bool fits(Pair pair) const {
    return pair >= bound_ && pair <= ceiling_;
  }

  __device__ __forceinline__ void offer_edge(uint32_t at) {
    const Pair pair = make_pair<Pair>(codec_.encode(data_[at]), origin_ + at);
    if (fits(pair)) buffer<Pair>()[atomicAdd(&block<Pair>().count, 1)] = pair;
  }

  // Stores the elements of the thread's part of the tile, from slot `from` on, that fit; returns
  // the first that found no room, or kSlots.
  __device__ __forceinline__ int offer_tile(const uint4 (&tile)[kUnroll], uint32_t v, int from) {
    uint32_t vectors = 0;
    with_flip<S>(codec_, [&](auto flip) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const uint32_t vector = number(v, u), at = position(vector);
        const S scan = at > bound_at_ ? strict_ : loose_;
        const bool can = vector < vectors_ && at <= last_at_;
        vectors |= static_cast<uint32_t>(can && scan.template reaches<flip>(tile[u])) << u;
      }
    });
    vectors &= ~0u << (from / kVector);
#pragma unroll 1
    while (vectors) {
      const int u = __ffs(static_cast<int>(vectors)) - 1;
      vectors &= vectors - 1;
      const uint4 raw = pick(tile, u);
      const uint32_t at = position(number(v, u));
      int lost = kSlots;
      for_hits<Pair>(raw, loose_.hits(raw), origin_ + at, codec_, [&](int j, Pair pair) {
        if (u * kVector + j < from || !fits(pair)) return true;
        const int to = atomicAdd(&block<Pair>().count, 1);
        if (to < capacity_)
          buffer<Pair>()[to] = pair;
        else
          lost = u * kVector + j;
        return to < capacity_;
      });
      if (lost < kSlots) return lost;
    }
    return kSlots;
  }

  const Key* const data_;
  const Index origin_;
  const uint32_t length_;
  const KeyCodec<Key>& codec_;
  const int wanted_;
  const int capacity_;
  const Pair ceiling_;
  unsigned long long* const shared_;
  uint32_t head_, vectors_;
  Pair bound_ = 0;
  uint32_t bound_at_ = 0;  // position from which on keys must be better than the bound's
  uint32_t last_at_ = 0;   // position from which on nothing can be better
  S loose_, strict_;
};

// Writes the pass's slots of a segment from the `count` pairs in the buffer, `wanted` of them, and
// where the next pass begins.
template <class Pair, int kThreads>
__device__ __forceinline__ void emit_segment(const SegmentArgs& args, const SegmentPlan& plan,
                                             const SegmentSpace& space, int64_t segment,
                                             int64_t begin, int count, int wanted, int capacity) {
  const int64_t at = segment * args.k + args.first;
  if (wanted > 0) {
    const uint16_t* const order = rank_best<Pair, kThreads>(count, wanted, capacity);
    for (int rank = threadIdx.x; rank < wanted; rank += kThreads) {
      const Pair pair = buffer<Pair>()[order[rank]];
      put_element(args, at + rank, begin + static_cast<int64_t>(pair_index(pair)));
      if (space.ceilings && rank == wanted - 1)
        static_cast<Pair*>(space.ceilings)[segment] = pair - 1;
    }
  }
  // There are as many passes as the elements take: the last one fills what k asks for beyond them.
  const int64_t left = args.k - args.first;
  const bool last = args.first / plan.width + 1 == plan.passes;
  const int64_t slots = left < plan.width || last ? left : plan.width;
  for (int64_t slot = wanted + static_cast<int64_t>(threadIdx.x); slot < slots; slot += kThreads)
    put_missing(args, at + slot);
}

// How many of this pass's slots hold an element.
__device__ __forceinline__ int wanted_now(const SegmentArgs& args, const SegmentPlan& plan,
                                          const Segment& segment) {
  const int64_t left = segment.wanted - args.first;
  return left <= 0 ? 0 : left < plan.width ? static_cast<int>(left) : plan.width;
}

template <class Pair>
__device__ __forceinline__ Pair ceiling_of(const SegmentArgs& args, const SegmentSpace& space,
                                           int64_t segment) {
  return args.first > 0 ? static_cast<const Pair*>(space.ceilings)[segment] : ~Pair(0);
}

}  // namespace gpuprims
