// A few rows of some thousand to some hundred thousand floats, largest first: a block a row, or a
// cluster of blocks that meet in each other's shared memory. One kernel, no workspace, no way
// through device memory, and little code, which all comes from there. Rows are whole, aligned
// vectors, without a mask and not strided; k up to 96.
//
// 1. The row is read once, all of its loads together. The k-th best of groups of threads, over all
//    blocks, is a bound that k elements reach, and hardly more than k.
// 2. What reaches it is taken from registers or, of longer rows, looked at again (it is in L2), and
//    goes to the first block's shared memory, which ranks it.
// 3. Should there be more than fit, the k-th best of what did fit is a better bound: once more.
#include "common/launch.h"
#include "topk/cluster.cuh"
#include "topk/plan_cluster.h"
#include "topk/stream.cuh"

namespace gpuprims {
namespace {

namespace t = topk_tuning;
constexpr int kThreads = t::kClusterThreads;

template <class S, int kVectors, bool kAlone>
__device__ __forceinline__ void cluster_row(const TopkArgs& args,
                                            const KeyCodec<typename S::Key>& codec, int blocks,
                                            int groups) {
  using Key = typename S::Key;
  using Pair = Narrow;
  constexpr int kCapacity = t::kClusterPairs;
  constexpr bool kKeeps = kVectors == t::kClusterFew;  // the vectors themselves
  auto& s = block<Pair>();
  const auto meet = [] {
    if (kAlone)
      __syncthreads();
    else
      cluster_sync();
  };
  if (kAlone) blocks = 1;
  const int k = static_cast<int>(args.k);
  const int rank = kAlone ? 0 : static_cast<int>(blockIdx.x) % blocks;
  const RowPlace place(kAlone ? blockIdx.x : blockIdx.x / blocks, 1);
  const Part<Key> part(args, place, 0, args.n);
  const auto number = [&](int u) {
    return static_cast<uint32_t>(u * blocks + rank) * kThreads + threadIdx.x;
  };
  uint4 seen[kVectors];
  typename S::Top tops[kVectors];
#pragma unroll
  for (int u = 0; u < kVectors; ++u) seen[u] = part.load(number(u));
#pragma unroll
  for (int u = 0; u < kVectors; ++u) tops[u] = S::template top<false>(seen[u], codec);
  // The thread's best key, with the index of its first vector or, where that has no such key, of
  // its last.
  Pair best = 0;
  uint32_t from = number(0);
  auto most = tops[0];
#pragma unroll
  for (int u = 1; u < kVectors; ++u)
    if (number(u) < part.vectors) most = S::better(most, tops[u]), from = number(u);
  const Key most_key = S::template top_key<false>(most, codec);
  if (S::template top_key<false>(tops[0], codec) == most_key) from = number(0);
  if (number(0) < part.vectors)
    best = make_pair<Pair>(most_key, part.position(from) + Part<Key>::kVector - 1);

  if (threadIdx.x == 0) s.count = 0;
  if (!kAlone) {  // of each group the best of all blocks
    __shared__ Pair own[t::kMaxGroups];
    buffer<Pair>()[threadIdx.x] = best;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < groups) {
#pragma unroll 4
      for (int i = threadIdx.x + groups; i < kThreads; i += groups)
        best = buffer<Pair>()[i] > best ? buffer<Pair>()[i] : best;
      own[threadIdx.x] = best;
    }
    meet();
    best = 0;
    for (int b = threadIdx.x / groups; b < blocks; b += kThreads / groups) {
      const Pair other = load_remote(remote(own + threadIdx.x % groups, b));
      best = other > best ? other : best;
    }
  }
  Pair bound = group_bound_here<Pair, kThreads>(best, groups, k);

  const auto count_at = remote(&s.count, 0), pairs_at = remote(buffer<Pair>(), 0);
  int count;
  while (true) {
    S loose, strict;
    S::set_both(codec, static_cast<Key>(pair_key(bound)), loose, strict);
    const uint64_t bound_at = pair_index(bound);
    uint32_t hits = 0;
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      const uint32_t v = number(u);
      S scan = loose;
      if (v * Part<Key>::kVector > bound_at) scan = strict;
      if (v < part.vectors && scan.reaches_top(tops[u])) hits |= 1u << u;
    }
#pragma unroll 1
    for (; hits; hits &= hits - 1) {
      const int u = __ffs(static_cast<int>(hits)) - 1;
      const uint32_t v = number(u);
      uint4 raw;
      if constexpr (kKeeps)
        raw = pick(seen, u);
      else
        raw = part.load(v);
      for_hits<Pair>(raw, loose.hits(raw), v * Part<Key>::kVector, codec, [&](int, Pair pair) {
        if (pair < bound) return true;
        const int to = kAlone ? shared_add(&s.count, 1) : add_remote(count_at, 1);
        if (to >= kCapacity) return true;
        if (kAlone)
          buffer<Pair>()[to] = pair;
        else
          store_remote(pairs_at + to * sizeof(Pair), pair);
        return true;
      });
    }
    meet();
    count = kAlone ? s.count : static_cast<int>(load_remote_word(count_at));
    if (count <= kCapacity) break;
    meet();  // all have read it
    if (rank == 0) {
      const Pair better = keep_best<Pair, kThreads>(kCapacity, k, k, kCapacity);
      if (threadIdx.x == 0) s.bound = better, s.count = 0;
    }
    meet();
    bound = kAlone ? s.bound : load_remote(remote(&s.bound, 0));
  }
  if (rank != 0) return;
  const Output<Key> output(args, place);
  if (count <= kByCounting<kThreads>) {
    rank_by_counting<Pair, kThreads>(
        count, k, [&](int place, int, Pair pair) { output.put(place, pair, codec); });
  } else {
    const uint16_t* const order = rank_best<Pair, kThreads>(count, k, kCapacity);
#pragma unroll 1
    for (int i = threadIdx.x; i < k; i += kThreads) output.put(i, buffer<Pair>()[order[i]], codec);
  }
  if (!kAlone) cluster_sync();  // the others may not have read the count yet
}

// kVectors: of a thread. kAlone: a block a row.
template <class Key, int kVectors, bool kAlone>
__global__ void __launch_bounds__(kThreads, 1)
    topk_cluster(const __grid_constant__ TopkArgs args, const __grid_constant__ KeyCodec<Key> codec,
                 int blocks, int groups) {
  with_float_scan<Key>(args.dtype, [&]<class S>(std::type_identity<S>) {
    cluster_row<S, kVectors, kAlone>(args, codec, blocks, groups);
  });
}

template <class Key, int kVectors, bool kAlone>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  const auto kernel = topk_cluster<Key, kVectors, kAlone>;
  const auto codec = make_codec<Key>(args.dtype, args.largest);
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads),
                          kBufferAt<Narrow> + static_cast<size_t>(plan.smem)};
  if (kAlone) return launch(kernel, shape, stream, args, codec, 1, plan.groups);
  return launch_clusters(kernel, shape, plan.splits, stream, args, codec, plan.splits, plan.groups);
}

template <class Key>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  const int64_t vectors = args.n / Vector<Key>::kSize;
  const bool few = vectors <= int64_t{plan.splits} * kThreads * t::kClusterFew;
  if constexpr (sizeof(Key) == 4)  // 16-bit rows of several blocks have one kernel
    if (few && plan.splits > 1) return start<Key, t::kClusterFew, false>(args, plan, stream);
  if (!few || plan.splits > 1) return start<Key, t::kClusterVectors, false>(args, plan, stream);
  return start<Key, t::kClusterFew, true>(args, plan, stream);
}

}  // namespace

cudaError_t launch_topk_cluster(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  if (args.dtype == Dtype::f32) return start<uint32_t>(args, plan, stream);
  return start<uint16_t>(args, plan, stream);
}

}  // namespace gpuprims
