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
#include "common/ticket.cuh"
#include "topk/part.cuh"
#include "topk/plan_part.h"
#include "topk/rank.cuh"
#include "topk/scan.cuh"

namespace gpuprims {
namespace {

namespace t = topk_tuning;
using Pair = Narrow;
constexpr int kThreads = t::kPartThreads, kCapacity = t::kPartPairs;

struct PartShape {
  uint32_t chunk;  // elements a block
  int groups;
  int merge_groups;   // of what all have handed over
  int hand;           // pairs a block hands over
  Pair* pairs;        // [rows, parts, hand]
  uint32_t* tickets;  // [rows] zeros, and zeros again afterwards
};

// Of what may be wanted again soon: it stays in L1.
__device__ __forceinline__ uint4 load_again(const void* p) { return *static_cast<const uint4*>(p); }

// Twice the groups that BlockMemory has room for lie behind the threads' pairs.
__device__ __noinline__ Pair part_bound(Pair mine, int groups, int rank) {
  return group_bound_here<Pair, kThreads>(mine, groups, rank, buffer<Pair>() + kThreads);
}

template <class S>
class PartRow {
 public:
  using Key = typename S::Key;
  using Top = typename S::Top;
  static constexpr int kVector = Vector<Key>::kSize;
  static constexpr int kLoads = t::kPartLoads;  // vectors in flight
  static constexpr int kHalf = kLoads / 2;
  static constexpr int kStep = kThreads * kVector;
  static constexpr int kList = 4 * kThreads;
  static constexpr uint32_t kTile = kThreads * kLoads;  // vectors

  __device__ __forceinline__ PartRow(const Part<Key>& part, const KeyCodec<Key>& codec,
                                     uint32_t begin, int k)
      : part_(part), codec_(codec), begin_(begin), k_(k) {}

  // Leaves the best k of the part in the buffer, and hardly more; returns how many there are.
  __device__ __forceinline__ int run(int groups) {
    auto& s = block<Pair>();
    if (threadIdx.x == 0) s.count = 0, s.hits = 0;
    use_bound(part_bound(read(), groups, k_));
    const uint32_t tiles = (part_.vectors + kTile - 1 - threadIdx.x) / kTile;
    uint32_t tile = 0;
    while (true) {
      bool stuck = false;
#pragma unroll 1
      for (; tile < tiles && !stuck; ++tile) {
        const uint32_t at = index_of(tile * kTile + threadIdx.x);
        S scan = loose_;
        if (at > pair_index(bound_)) {
          if (unbeaten_) continue;
          scan = strict_;
        }
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
    return reinterpret_cast<Top*>(ranked<Pair, kThreads>(kCapacity) + t::kPartK) + threadIdx.x;
  }

  // Of a vector's first element, in the row.
  __device__ __forceinline__ uint32_t index_of(uint32_t v) const { return begin_ + v * kVector; }

  // Those of a thread's last `left` vectors that half a tile takes. The very last stay in L1.
  static __device__ __forceinline__ void load(uint4 (&to)[kHalf], const Key* from, int left) {
    if (left > kLoads) {
#pragma unroll
      for (int u = 0; u < kHalf; ++u) to[u] = load_streaming(from + u * kStep);
    } else {
#pragma unroll
      for (int u = 0; u < kHalf; ++u)
        if (u < left) to[u] = load_again(from + u * kStep);
    }
  }
  static __device__ __forceinline__ Top top_of(const uint4 (&half)[kHalf], int left, Top top) {
#pragma unroll
    for (int u = 0; u < kHalf; ++u)
      if (u < left) top = S::better(top, S::template top<false>(half[u]));
    return top;
  }

  // Fills tops(). Returns a pair that some element of the thread's equals or beats, or 0: its best
  // key, with the index of its first vector or, if that has no such key, of the last one in its
  // first tile that has it. Half a tile's vectors are always on their way while the other half is
  // looked at, up to the end.
  __device__ __forceinline__ Pair read() const {
    if (threadIdx.x >= part_.vectors) return 0;
    int left = static_cast<int>((part_.vectors - 1 - threadIdx.x) / kThreads + 1);
    const Key* at = part_.data + threadIdx.x * kVector;
    uint4 one[kHalf], other[kHalf];
    Key best = 0;
    uint32_t from = 0;
    Top first{};
    load(one, at, left);
#pragma unroll 1
    for (uint32_t tile = 0; left > 0; ++tile) {
      load(other, at + kHalf * kStep, left - kHalf);
      Top top = S::template top<false>(one[0]);
      if (tile == 0) first = top;
      top = top_of(one, left, top);
      at += kLoads * kStep;
      left -= kLoads;
      load(one, at, left);
      top = top_of(other, left + kHalf, top);
      tops()[tile * kThreads] = top;
      const Key key = S::template top_key<false>(top, codec_);
      if (key > best) best = key, from = tile;
    }
    uint32_t v = from * kTile + threadIdx.x;
    if (from != 0 || S::template top_key<false>(first, codec_) != best) {
      v += (kLoads - 1) * kThreads;
      if (v >= part_.vectors) v -= ((v - part_.vectors) / kThreads + 1) * kThreads;
    }
    return make_pair<Pair>(best, index_of(v) + kVector - 1);
  }

  __device__ __forceinline__ void use_bound(Pair bound) {
    bound_ = bound;
    unbeaten_ = static_cast<Key>(pair_key(bound)) == static_cast<Key>(~Key(0));
    S::set_both(codec_, static_cast<Key>(pair_key(bound)), loose_, strict_);
  }

  // Stores the elements of the listed groups of vectors that reach the bound. Where there is no
  // room, the bound rises, and what is still above it is offered again. Ends with a barrier, if
  // anything is listed.
  __device__ __forceinline__ void take(int listed) {
#pragma unroll 1
    for (int first = 0; first < listed * kLoads; first += kThreads) {
      const int i = first + threadIdx.x;
      uint32_t v = UINT32_MAX;
      if (i < listed * kLoads) {
        const uint32_t group = list()[i / kLoads];
        v = group / kThreads * kTile + i % kLoads * kThreads + group % kThreads;
      }
      uint4 raw{};
      if (v < part_.vectors) raw = load_again(part_.data + v * kVector);
      offer(raw, v < part_.vectors ? loose_.hits(raw) : 0, index_of(v));
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
  bool unbeaten_ =
      false;  // the bound has the best key of all (NaN), for which strict_ is no stricter
  S loose_, strict_;
};

// The best k of `total` pairs and hardly more, in the buffer; returns how many there are. groups 0:
// all of them. Whoever comes here is last and runs code that it has not run before: little of it.
__device__ __forceinline__ int merge(const Pair* written, int total, int groups, int k) {
  auto& s = block<Pair>();
  constexpr int kLoads = kCapacity / kThreads;
  const auto* const at = reinterpret_cast<const unsigned long long*>(written) + threadIdx.x;
  const int left = total - static_cast<int>(threadIdx.x);
  Pair mine[kLoads], best = 0;
#pragma unroll
  for (int u = 0; u < kLoads; ++u) mine[u] = u * kThreads < left ? __ldcg(at + u * kThreads) : 0;
#pragma unroll
  for (int u = 0; u < kLoads; ++u) best = mine[u] > best ? mine[u] : best;
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  Pair bound = groups > 0 ? part_bound(best, groups, k) : 0;
  if (bound == 0) bound = 1;  // what has no pair is 0
  uint32_t hits = 0;
#pragma unroll
  for (int u = 0; u < kLoads; ++u) hits |= static_cast<uint32_t>(mine[u] >= bound) << u;
#pragma unroll 1
  for (; hits; hits &= hits - 1) {
    const int hit = __ffs(static_cast<int>(hits)) - 1;
    Pair pair = mine[0];  // by selects, and not eight times the code below
#pragma unroll
    for (int u = 1; u < kLoads; ++u)
      if (u == hit) pair = mine[u];
    buffer<Pair>()[shared_add(&s.count, 1)] = pair;
  }
  __syncthreads();
  return s.count;
}

// rank_by_counting of at most kThreads / 2 pairs, in little code.
template <class Put>
__device__ __forceinline__ void rank_few(int count, int k, const Put& put) {
  Pair* const pairs = buffer<Pair>();
  const int most = __clz(count - 1) - __clz(kThreads - 1);
  const int shift = most < 5 ? most : 5, lanes = 1 << shift;  // count * lanes <= kThreads
  const int i = static_cast<int>(threadIdx.x) >> shift, lane = threadIdx.x & (lanes - 1);
  if (static_cast<int>(threadIdx.x) < 4 * lanes) pairs[count + threadIdx.x] = 0;  // read below
  __syncthreads();
  const Pair mine = i < count ? pairs[i] : Pair(0);
  int better = 0;
#pragma unroll 1
  for (int other = 2 * lane; other < count; other += 4 * lanes) {  // 16-byte loads
    const int next = other + 2 * lanes;
    better = count_better(better, mine, pairs[other], pairs[other + 1]);
    better = count_better(better, mine, pairs[next], pairs[next + 1]);
  }
#pragma unroll 1
  for (int step = lanes / 2; step > 0; step /= 2) better += __shfl_xor_sync(~0u, better, step);
  if (lane == 0 && i < count && better < k) put(better, mine);
}

// A grid of parts by rows.
template <class Key>
__global__ void __launch_bounds__(kThreads, 1)
    topk_part(const __grid_constant__ TopkArgs args, const __grid_constant__ KeyCodec<Key> codec,
              const __grid_constant__ PartShape shape) {
  const uint32_t row = blockIdx.y, parts = gridDim.x;
  const uint32_t begin = blockIdx.x * shape.chunk;
  const auto n = static_cast<uint32_t>(args.n);
  const RowPlace place(row, 1);
  const Part<Key> part(args, place, begin, n - begin < shape.chunk ? n : begin + shape.chunk);
  const int k = static_cast<int>(args.k);
  int count = 0;
  with_float_scan<Key>(args.dtype, [&]<class S>(std::type_identity<S>) {
    count = PartRow<S>(part, codec, begin, k).run(shape.groups);
  });
  if (parts > 1) {
    if (count > shape.hand) {
      keep_best<Pair, kThreads>(count, k, shape.hand, kCapacity);
      count = block<Pair>().count;
    }
    Pair* const pairs = shape.pairs + static_cast<int64_t>(row) * parts * shape.hand;
    const int i = threadIdx.x;
    if (i < shape.hand) pairs[blockIdx.x * shape.hand + i] = i < count ? buffer<Pair>()[i] : 0;
    __syncthreads();
    if (!is_last_block(shape.tickets + row, parts)) return;
    count = merge(pairs, parts * shape.hand, shape.merge_groups, k);
  }
  const Output<Key> output(args, place);
  if (count <= kThreads / 2) {
    rank_few(count, k, [&](int rank, Pair pair) { output.put(rank, pair, codec); });
    return;
  }
  const uint16_t* const order = rank_best<Pair, kThreads>(count, k, kCapacity);
#pragma unroll 1
  for (int i = threadIdx.x; i < k; i += kThreads) output.put(i, buffer<Pair>()[order[i]], codec);
}

template <class Key>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, void* workspace, uint32_t* tickets,
                  cudaStream_t stream) {
  const PartShape shape{static_cast<uint32_t>(plan.chunk),      plan.groups,
                        part_merge_groups(plan.splits, args.k), plan.flush,
                        static_cast<Pair*>(workspace),          tickets};
  const LaunchShape grid{dim3(plan.splits, static_cast<unsigned>(args.rows)), dim3(kThreads),
                         kBufferAt<Pair> + static_cast<size_t>(plan.smem)};
  return launch(topk_part<Key>, grid, stream, args, make_codec<Key>(args.dtype, args.largest),
                shape);
}

}  // namespace

cudaError_t launch_topk_part(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                             uint32_t* tickets, cudaStream_t stream) {
  if (args.dtype == Dtype::f32) return start<uint32_t>(args, plan, workspace, tickets, stream);
  return start<uint16_t>(args, plan, workspace, tickets, stream);
}

}  // namespace gpuprims
