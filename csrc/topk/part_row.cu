// Long rows of floats, largest first: every block has a row or a part of one, reads it once and
// hands over its best few; the row's last block takes the best k of all. One kernel, no sample, no
// bound from elsewhere: from the first load to the last, nothing waits. Rows are whole, aligned
// vectors, without a mask and not strided.
//
// 1. While a part is read, each thread keeps the best of every few vectors. That takes a maximum an
//    element, and nothing is compared with anything.
// 2. The k-th best of groups of threads is a bound that k elements of the part reach, as a proof,
//    and hardly more than k: all of the part has been seen.
// 3. Vectors whose best reaches it are listed and looked at again.
// 4. Whoever is last of a row's blocks does the same with what all have handed over.
#include "common/launch.h"
#include "topk/part.cuh"
#include "topk/plan_part.h"
#include "topk/rank.cuh"
#include "topk/scan.cuh"

namespace gpuprims {
namespace {

namespace t = topk_tuning;
using Pair = Narrow;

struct PartShape {
  int parts;       // blocks a row
  uint32_t chunk;  // elements a block
  int groups;
  int hand;           // pairs a block hands over
  Pair* pairs;        // [rows, parts, hand]
  uint32_t* tickets;  // [rows] zeros, and zeros again afterwards
};

// Of what may be wanted again soon: it stays in L1.
__device__ __forceinline__ uint4 load_again(const void* p) { return *static_cast<const uint4*>(p); }

// Twice the groups that BlockMemory has room for lie behind the threads' pairs.
template <int kThreads>
__device__ __noinline__ Pair part_bound(Pair mine, int groups, int rank) {
  return group_bound_here<Pair, kThreads>(mine, groups, rank, buffer<Pair>() + kThreads);
}

template <class S, int kThreads>
class PartRow {
 public:
  using Key = typename S::Key;
  using Top = typename S::Top;
  static constexpr bool kSmall = kThreads == t::kPartSmall;  // many to a multiprocessor
  static constexpr int kVector = Vector<Key>::kSize;
  static constexpr int kLoads = part_loads(kThreads);  // vectors of a thread and tile
  static constexpr int kRing = kSmall ? 4 : 8;         // and round,
  static constexpr int kHalf = kRing / 2, kTiles = kRing / kLoads;
  static constexpr int kStep = kThreads * kVector;
  static constexpr int kCapacity = part_pairs(kThreads, sizeof(Key));
  static constexpr int kList = 4 * kThreads;
  static constexpr uint32_t kTile = kThreads * kLoads;  // vectors

  __device__ __forceinline__ PartRow(const Part<Key>& part, const KeyCodec<Key>& codec,
                                     uint32_t begin, int k)
      : part_(part), codec_(codec), begin_(begin), k_(k) {}

  // Leaves the best k of the part in the buffer, and hardly more; returns how many there are.
  __device__ __forceinline__ int run(int groups) {
    auto& s = block<Pair>();
    if (threadIdx.x == 0) s.count = 0, s.hits = 0;
    const Pair best = read();
    if constexpr (kSmall)
      use_bound(warps_bound<kThreads>(best, k_));
    else
      use_bound(part_bound<kThreads>(best, groups, k_));
    const uint32_t tiles = (part_.vectors + kTile - 1 - threadIdx.x) / kTile;
    uint32_t tile = 0;
    while (true) {
      bool stuck = false;
#pragma unroll 1
      for (; tile < tiles && !stuck; ++tile) {
        const uint32_t at = index_of(tile * kTile + threadIdx.x);
        S scan = loose_;
        if (at > pair_index(bound_)) scan = strict_;
        if (!scan.reaches_top(tops()[tile * kThreads])) continue;
        const int to = shared_add(&s.hits, 1);
        if (to < kList)
          list()[to] = tile * kThreads + threadIdx.x;
        else
          stuck = true, --tile;
      }
      const bool more = __syncthreads_or(stuck);
      take(s.hits < kList ? s.hits : kList);
      if (!more) return s.count;
      if (threadIdx.x == 0) s.hits = 0;
      __syncthreads();
    }
  }

 private:
  static __device__ __forceinline__ uint32_t* list() { return scratch<Pair>(kCapacity); }
  static __device__ __forceinline__ Top* tops() {
    return reinterpret_cast<Top*>(ranked<Pair, kThreads>(kCapacity) + part_winners(kThreads)) +
           threadIdx.x;
  }

  // Of a vector's first element, in the row.
  __device__ __forceinline__ uint32_t index_of(uint32_t v) const { return begin_ + v * kVector; }

  static __device__ __forceinline__ void load(uint4 (&to)[kHalf], const Key* from) {
#pragma unroll
    for (int u = 0; u < kHalf; ++u) to[u] = load_streaming(from + u * kStep);
  }
  static __device__ __forceinline__ Top top_of(const uint4 (&half)[kHalf], Top top) {
#pragma unroll
    for (int u = 0; u < kHalf; ++u) top = S::better(top, S::template top<false>(half[u]));
    return top;
  }

  // Fills tops(). Returns a pair that some element of the thread's equals or beats, or 0: its best
  // key, with the index of its first vector or, if that has no such key, of the last one in its
  // first tile that has it. A half of a round's vectors is on its way while the other is looked at.
  __device__ __forceinline__ Pair read() const {
    const uint32_t rounds = part_.vectors / (kRing * kThreads);
    const Key* at = part_.data + threadIdx.x * kVector;
    uint4 one[kHalf], other[kHalf];
    Key best = 0;
    uint32_t from = 0;
    Top first{};
    const auto keep = [&](uint32_t tile, Top top) {
      tops()[tile * kThreads] = top;
      const Key key = S::template top_key<false>(top, codec_);
      if (key > best) best = key, from = tile;
    };
    if (rounds > 0) load(one, at);
#pragma unroll 1
    for (uint32_t round = 0; round < rounds; ++round) {
      load(other, at + kHalf * kStep);
      Top top = S::template top<false>(one[0]);
      if (round == 0) first = top;
      top = top_of(one, top);
      at += kRing * kStep;
      if (round + 1 < rounds) load(one, at);
      if (kTiles == 2) keep(2 * round, top), top = S::template top<false>(other[0]);
      keep((round + 1) * kTiles - 1, top_of(other, top));
    }
    const uint32_t done = rounds * kRing * kThreads + threadIdx.x;
    if (rounds * kRing * kThreads < part_.vectors) {  // the last round is not whole
      uint4 seen[kRing];
      const int left = done < part_.vectors ? (part_.vectors - 1 - done) / kThreads + 1 : 0;
#pragma unroll
      for (int u = 0; u < kRing; ++u) seen[u] = u < left ? load_again(at + u * kStep) : uint4{};
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        Top top = S::template top<false>(seen[j * kLoads]);
        if (j == 0 && rounds == 0) first = top;
#pragma unroll
        for (int u = j * kLoads + 1; u < (j + 1) * kLoads; ++u)
          if (u < left) top = S::better(top, S::template top<false>(seen[u]));
        if (j * kLoads < left) keep(rounds * kTiles + j, top);
      }
    }
    if (best == 0) return 0;
    uint32_t v = from * kTile + threadIdx.x;
    if (from != 0 || S::template top_key<false>(first, codec_) != best) {
      v += (kLoads - 1) * kThreads;
      if (v >= part_.vectors) v -= ((v - part_.vectors) / kThreads + 1) * kThreads;
    }
    return make_pair<Pair>(best, index_of(v) + kVector - 1);
  }

  __device__ __forceinline__ void use_bound(Pair bound) {
    bound_ = bound;
    S::set_both(codec_, static_cast<Key>(pair_key(bound)), loose_, strict_);
  }

  // Stores the elements of the listed groups of vectors that reach the bound. Where there is no
  // room, the bound rises, and what is still above it is offered again. Ends with a barrier, if
  // anything is listed.
  __device__ __forceinline__ void take(int listed) {
    constexpr int kEach = kSmall ? kLoads : 1;  // vectors of a thread at once
#pragma unroll 1
    for (int first = 0; first < listed * kLoads; first += kThreads * kEach) {
      uint4 raw[kEach];
      uint32_t v[kEach];
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const int i = first + e * kThreads + threadIdx.x;
        v[e] = UINT32_MAX;
        if (i < listed * kLoads) {
          const uint32_t group = list()[i / kLoads];
          v[e] = group / kThreads * kTile + i % kLoads * kThreads + group % kThreads;
        }
        if (v[e] < part_.vectors) raw[e] = load_again(part_.data + v[e] * kVector);
      }
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        offer(raw[e], v[e] < part_.vectors ? loose_.hits(raw[e]) : 0, index_of(v[e]));
    }
  }

  __device__ __forceinline__ void offer(const uint4& raw, uint32_t hits, uint32_t index) {
    auto& s = block<Pair>();
    while (true) {
      uint32_t lost = 0;
      for_hits<Pair>(raw, hits, index, codec_, [&](int j, Pair pair) {
        if (pair < bound_) return true;
        const int to = shared_add(&s.count, 1);
        if (to < kCapacity) {
          buffer<Pair>()[to] = pair;
          return true;
        }
        lost = ~0u << j;
        return false;
      });
      hits &= lost;
      if (!__syncthreads_or(lost != 0)) return;
      use_bound(keep_best<Pair, kThreads>(kCapacity, k_, k_ + (kCapacity - k_) / 8, kCapacity));
    }
  }

  const Part<Key>& part_;
  const KeyCodec<Key>& codec_;
  const uint32_t begin_;
  const int k_;
  Pair bound_ = 0;
  S loose_, strict_;
};

// Whether this is the row's last block, with what the others have written before it.
__device__ __forceinline__ bool is_last(uint32_t* ticket, uint32_t parts) {
  auto& s = block<Pair>();
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    s.last = atomicInc(ticket, parts - 1) == parts - 1;
    __threadfence();
  }
  __syncthreads();
  return s.last;
}

// The best k of `total` pairs and hardly more, in the buffer; returns how many there are.
template <int kThreads>
__device__ __forceinline__ int merge(const Pair* written, int total, int groups, int k) {
  auto& s = block<Pair>();
  constexpr int kLoads = t::kPartPairs / kThreads;
  Pair mine[kLoads], best = 0;
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const int i = u * kThreads + threadIdx.x;
    mine[u] = i < total ? __ldcg(reinterpret_cast<const unsigned long long*>(written) + i) : 0;
  }
#pragma unroll
  for (int u = 0; u < kLoads; ++u) best = mine[u] > best ? mine[u] : best;
  if (threadIdx.x == 0) s.count = 0;
  const Pair bound = part_bound<kThreads>(best, groups, k);
#pragma unroll
  for (int u = 0; u < kLoads; ++u)
    if (mine[u] != 0 && mine[u] >= bound) buffer<Pair>()[shared_add(&s.count, 1)] = mine[u];
  __syncthreads();
  return s.count;
}

template <class Key, int kThreads>
__global__ void __launch_bounds__(kThreads, kThreads == t::kPartSmall ? t::kPartResident : 1)
    topk_part(const __grid_constant__ TopkArgs args, const __grid_constant__ KeyCodec<Key> codec,
              const __grid_constant__ PartShape shape) {
  constexpr bool kSmall = kThreads == t::kPartSmall;  // a block a row
  constexpr int kCapacity = part_pairs(kThreads, sizeof(Key));
  const uint32_t row = kSmall ? blockIdx.x : blockIdx.x / shape.parts;
  const uint32_t begin = kSmall ? 0 : blockIdx.x % shape.parts * shape.chunk;
  const auto n = static_cast<uint32_t>(args.n);
  const RowPlace place(row, 1);
  const Part<Key> part(args, place, begin, n - begin < shape.chunk ? n : begin + shape.chunk);
  const int k = static_cast<int>(args.k);
  int count = 0;
  with_float_scan<Key>(args.dtype, [&]<class S>(std::type_identity<S>) {
    count = PartRow<S, kThreads>(part, codec, begin, k).run(shape.groups);
  });
  if (!kSmall && shape.parts > 1) {
    if (count > shape.hand) {
      keep_best<Pair, kThreads>(count, k, shape.hand, kCapacity);
      count = block<Pair>().count;
    }
    Pair* const pairs = shape.pairs + static_cast<int64_t>(row) * shape.parts * shape.hand;
    const int i = threadIdx.x;
    if (i < shape.hand)
      pairs[blockIdx.x % shape.parts * shape.hand + i] = i < count ? buffer<Pair>()[i] : 0;
    if (!is_last(shape.tickets + row, shape.parts)) return;
    count = merge<kThreads>(pairs, shape.parts * shape.hand, shape.groups, k);
  }
  const Output<Key> output(args, place);
  if (count <= kByCounting<kThreads>) {
    rank_by_counting<Pair, kThreads>(
        count, k, [&](int rank, int, Pair pair) { output.put(rank, pair, codec); });
    return;
  }
  const uint16_t* const order = rank_best<Pair, kThreads>(count, k, kCapacity);
#pragma unroll 1
  for (int i = threadIdx.x; i < k; i += kThreads) output.put(i, buffer<Pair>()[order[i]], codec);
}

template <class Key, int kThreads>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, void* workspace, uint32_t* tickets,
                  cudaStream_t stream) {
  const PartShape shape{plan.splits, static_cast<uint32_t>(plan.chunk), plan.groups,
                        plan.flush,  static_cast<Pair*>(workspace),     tickets};
  const LaunchShape grid{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads),
                         kBufferAt<Pair> + static_cast<size_t>(plan.smem)};
  return launch(topk_part<Key, kThreads>, grid, stream, args,
                make_codec<Key>(args.dtype, args.largest), shape);
}

template <class Key>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, void* workspace, uint32_t* tickets,
                  cudaStream_t stream) {
  if (plan.threads == t::kPartSmall)
    return start<Key, t::kPartSmall>(args, plan, workspace, tickets, stream);
  return start<Key, t::kPartThreads>(args, plan, workspace, tickets, stream);
}

}  // namespace

cudaError_t launch_topk_part(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                             uint32_t* tickets, cudaStream_t stream) {
  if (args.dtype == Dtype::f32) return start<uint32_t>(args, plan, workspace, tickets, stream);
  return start<uint16_t>(args, plan, workspace, tickets, stream);
}

}  // namespace gpuprims
