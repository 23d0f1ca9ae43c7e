// Many short rows: a thread a row, or 2, 4, 8 lanes a row, whose warp brings its rows to shared
// memory, as one run where they are long and whole vectors: then the warps of a multiprocessor get
// their rows one after the other, and some work while others wait. Instructions are what counts: a
// warp takes about 1,650 for 32 rows of 100, k = 5.
//
// 1. Element i belongs to group i % G: the groups' best elements are G running maxima. The k-th
//    best of them is a bound that k elements reach, and hardly more than k: G ln(G / (G - k)).
// 2. The groups that reach it are looked at again, and what reaches it is listed in shared memory.
//    Where many groups do (ties) or elements are masked, all elements are looked at, in order, and
//    once k are listed only for better ones than the bound: equal data cost little more.
// 3. The first K of the list are sorted by a network, the rest, if any, inserted one by one.
#include <bit>

#include "common/launch.h"
#include "topk/lane_keys.cuh"
#include "topk/plan_short.h"
#include "topk/shared_row.cuh"
#include "topk/tile.cuh"
#include "topk/winners.cuh"

namespace gpuprims {
namespace {

extern __shared__ __align__(16) unsigned char dynamic_memory[];

template <class S, int K, RowAlign kAlign>
__global__ void __launch_bounds__(128)
    topk_thread(const __grid_constant__ TopkArgs args,
                const __grid_constant__ KeyCodec<typename S::Key> codec,
                const __grid_constant__ ThreadShape shape) {
  using Key = typename S::Key;
  using Order = typename S::Order;
  constexpr int kVector = Vector<Key>::kSize, kGroups = K > 8 ? 2 * K : 16;
  const int lane = threadIdx.x % 32, rows = 32 >> shape.shift;
  const int n = static_cast<int>(args.n), k = static_cast<int>(args.k);
  unsigned char* const memory = dynamic_memory + threadIdx.x / 32 * shape.warp_bytes;
  Key* const tile = reinterpret_cast<Key*>(memory);
  uint8_t* const mask = memory + shape.mask_at;
  const S view(codec);
  const Key fill = args.mask ? fill_bits<Key>(args) : Key(0);

  uint8_t* const slots = memory + shape.list_at + lane;  // 32 apart
  __shared__ Arrival arrivals[4];
  Arrival* const arrival = arrivals + threadIdx.x / 32;
  uint32_t phase = 0;
  const bool runs = shape.runs && rows_are_dense(args.in, args);
  if (runs && lane == 0) prepare_arrival(arrival);

  const int vectors = (n + kVector - 1) / kVector;
  const int share = (vectors + shape.lanes - 1) >> shape.shift;
  const int full = n / kVector - (shape.lanes - 1) * share;  // whole vectors of the last lane
  const int mine = lane >> shape.shift, part = lane & (shape.lanes - 1);
  SharedRow<Key, kAlign> row;
  row.n = n;
  row.begin = part * share;
  row.end = row.begin + share < vectors ? row.begin + share : vectors;
  row.twist = 0;
  row.twisted = false;
  row.whole = n % kVector == 0;
  if (row.aligned() && full == share) {  // lane l starts at vector l * share
    constexpr int kReach = 32 / kVector < 8 ? 32 / kVector : 8;
    const int zeros = __ffs(share | kReach) - 1;
    row.twist = (lane >> (3 - zeros)) & ((1 << zeros) - 1);
    row.twisted = zeros > 0;
  }

  const int64_t step = int64_t{gridDim.x} * (blockDim.x / 32) * rows;
  for (int64_t first = (blockIdx.x * int64_t{blockDim.x / 32} + threadIdx.x / 32) * rows;
       first < args.rows; first += step) {
    const int count = static_cast<int>(args.rows - first < rows ? args.rows - first : rows);
    const uint32_t bytes = static_cast<uint32_t>(count) * n * sizeof(Key);
    const Key* const source = static_cast<const Key*>(args.input) + first * n;
    const bool by_run = runs && (bytes | reinterpret_cast<uintptr_t>(source)) % 16 == 0;
    if (by_run) start_run(memory, source, bytes, arrival, lane);
#pragma unroll 1
    for (int masks = by_run ? 1 : 0; masks <= (args.mask ? 1 : 0); ++masks)
      copy_rows(masks ? mask : memory,
                masks ? args.mask : static_cast<const unsigned char*>(args.input),
                masks ? 1 : static_cast<int>(sizeof(Key)), masks ? args.drop : args.in, args, first,
                count, lane);
    if (by_run) await_run(arrival, phase), phase ^= 1;
    copies_done();
    if (args.mask) {  // what is dropped bounds nothing
#pragma unroll 1
      for (int i = lane; i < count * n; i += 32)
        if (!mask[i]) tile[i] = worst_bits(codec);
      __syncwarp();
    }
    const int here = mine < count ? mine : count - 1;  // lanes without a row walk along
    row.bytes = reinterpret_cast<const unsigned char*>(tile + here * n);

    typename S::Value best[kGroups];
    group_maxima<kGroups>(view, row, share, full, best);
    Order maxima[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) maxima[g] = S::order(best[g]);
    best_of<0, kGroups, K>(maxima);
    best_of_lanes<K>(maxima, shape.lanes);
    Order bound = maxima[0];
#pragma unroll
    for (int i = 1; i < K; ++i)
      if (i < k) bound = maxima[i];  // not i == k - 1, which becomes a look-up in memory
    // Elements of the worst key are not listed: there may be many, and they come last.
    const Order below = S::kWorstIsReal && bound == S::kWorst ? bound : bound - 1;

    // Only groups that reach the bound can hold candidates: k of them, and more only where there
    // are ties. Group g has every kGroups-th element of this lane's share, of which the twist has
    // changed the first.
    uint32_t reached = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      if (S::passes(best[g], S::gate(below))) reached |= 1u << g;
    const bool by_groups = !args.mask && !__any_sync(~0u, __popc(reached) > K);
    const int elements = (row.end - row.begin) * kVector < n - row.begin * kVector
                             ? (row.end - row.begin) * kVector
                             : n - row.begin * kVector;

    Entry<Order> list[K];
#pragma unroll
    for (int i = 0; i < K; ++i) list[i] = {below, kNoIndex};
    int end = 0;  // of the list
    const auto append = [&](int at) {
      slots[end] = static_cast<uint8_t>(at);
      end += 32;
    };
    const auto entry = [&](int slot) {
      const int index = row.begin * kVector + slots[slot];
      return Entry<Order>{S::order(view.value(row.element(index))), index};
    };
    Order limit = below;
    if (by_groups) {
      const typename S::Value gate = S::gate(limit);
#pragma unroll 1
      for (; reached; reached &= reached - 1) {
        int at = (__ffs(static_cast<int>(reached)) - 1) ^
                 (row.twist & (kGroups / kVector - 1)) * kVector;
        const Key* const from = &row.as_elements()[row.begin * kVector];
#pragma unroll 1
        for (; at + 3 * kGroups < elements; at += 4 * kGroups) {
          Key four[4];  // all loads first: the list might overlap the row, for all the compiler
                        // knows
#pragma unroll
          for (int i = 0; i < 4; ++i) four[i] = from[at + i * kGroups];
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (S::passes(view.value(four[i]), gate)) append(at + i * kGroups);
        }
#pragma unroll 1
        for (; at < elements; at += kGroups)
          if (S::passes(view.value(from[at]), gate)) append(at);
      }
    }
    bool sorted = false;
#pragma unroll 1
    for (int u = by_groups ? share : 0;; u += 32 / kVector) {
      if (u >= share || __any_sync(~0u, end > (shape.slots - 32) * 32)) {
        int slot = 0;
        if (!sorted) {
#pragma unroll
          for (int i = 0; i < K; ++i, slot += 32) {
            if (slot >= end) continue;
            const Entry<Order> candidate = entry(slot);
            if (candidate.key > below) list[i] = candidate;
          }
          sort_network<0, K>(list);
          sorted = true;
        }
#pragma unroll 1
        for (; slot < end; slot += 32) {
          const Entry<Order> candidate = entry(slot);
          if (better(candidate, list[K - 1])) insert<K>(list, candidate);
        }
        __syncwarp();
        end = 0;
        if (limit < list[K - 1].key) limit = list[K - 1].key;
      }
      if (u >= share) break;
      // Of many hits, those behind the k-th must be better than the bound: a second look.
      uint32_t bits = 0, above = ~0u;
      Order least = limit;
#pragma unroll 1
      for (int look = 0; look < 2; ++look) {
        uint32_t found = passing(view, row, u, share, full, S::gate(least));
        if (least == kHighest<Order>) found = 0;  // NaNs pass every gate
        (look ? above : bits) = found;
        if (look || !__any_sync(~0u, least < bound && __popc(found) > k)) break;
        if (least < bound) least = bound;
      }
#pragma unroll 1
      while (bits) {
        const int at = u * kVector + __ffs(static_cast<int>(bits)) - 1;
        bits &= bits - 1;
        if (!args.mask || mask[here * n + row.begin * kVector + at]) append(at);
        if (end >= k * 32) bits &= above;
      }
      if (end >= k * 32 && limit < bound) limit = bound;
    }
    best_of_lanes<K>(list, shape.lanes);
    if constexpr (S::kWorstIsReal) {
      const auto missing = [&] {
        bool found = false;
#pragma unroll
        for (int i = 0; i < K; ++i) found |= i < k && list[i].index == kNoIndex;
        return found;
      };
#pragma unroll 1
      for (int index = 0; index < n && missing(); ++index) {
        if (S::order(view.value(row.element(index))) != S::kWorst) continue;
        if (args.mask && !mask[here * n + index]) continue;
        bool placed = false;
#pragma unroll
        for (int i = 0; i < K; ++i) {
          const bool place = !placed && list[i].index == kNoIndex;
          list[i].index = place ? index : list[i].index;
          placed |= place;
        }
      }
    }

    Key bits[K];
#pragma unroll
    for (int i = 0; i < K; ++i) {
      if (i >= k) break;
      bits[i] = list[i].index != kNoIndex ? row.element(list[i].index) : fill;
    }
    __syncwarp();
    write_winners(args, shape, memory, list, bits, first, count, lane);
    __syncwarp();
  }
}

template <class S, int K>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  using Key = typename S::Key;
  const LaunchShape launch_shape{dim3(static_cast<unsigned>(plan.grid)),
                                 dim3(static_cast<unsigned>(plan.threads)),
                                 static_cast<size_t>(plan.smem)};
  const auto k = static_cast<uint32_t>(args.k);
  const TopkThreadMemory memory = topk_thread_memory(
      {args.dtype, args.rows, args.n, args.k, 0, TopkAlgo::thread_row, args.mask != nullptr},
      plan.lanes);
  const ThreadShape shape{plan.lanes,
                          std::countr_zero(static_cast<unsigned>(plan.lanes)),
                          memory.slots,
                          static_cast<int>(memory.mask),
                          static_cast<int>(memory.list),
                          static_cast<int>(memory.bytes),
                          k == 1 ? 0 : UINT32_MAX / k + 1,
                          plan.lanes <= 2};
  const auto codec = make_codec<Key>(args.dtype, args.largest);
  // float32 has a kernel for rows of whole vectors and one for others; so have keys of 8 bytes with
  // 16 groups, where one for both would spill more.
  if constexpr (std::is_same_v<S, FloatView<Float::f32, false>> || (sizeof(Key) == 8 && K == 8))
    return args.n % Vector<Key>::kSize == 0 ? launch(topk_thread<S, K, RowAlign::vectors>,
                                                     launch_shape, stream, args, codec, shape)
                                            : launch(topk_thread<S, K, RowAlign::elements>,
                                                     launch_shape, stream, args, codec, shape);
  else
    return launch(topk_thread<S, K, RowAlign::either>, launch_shape, stream, args, codec, shape);
}

template <class S>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  // Keys of 8 bytes have at most 8 winners; those of 1 and 2 that are no floats take one kernel for
  // all.
  constexpr size_t kSize = sizeof(typename S::Key);
  constexpr bool kOne =
      std::is_same_v<S, IntegerView<uint8_t>> || std::is_same_v<S, CodecView<uint16_t>>;
  if constexpr (kSize == 8)
    return start<S, 8>(args, plan, stream);
  else if constexpr (kOne)
    return start<S, 16>(args, plan, stream);
  else
    return args.k <= 8 ? start<S, 8>(args, plan, stream) : start<S, 16>(args, plan, stream);
}

}  // namespace

cudaError_t launch_topk_thread(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  switch (args.dtype) {
    case Dtype::f32:
      return args.largest ? start<FloatView<Float::f32, false>>(args, plan, stream)
                          : start<FloatView<Float::f32, true>>(args, plan, stream);
    case Dtype::f16:
      if (args.largest) return start<FloatView<Float::f16, false>>(args, plan, stream);
      break;
    case Dtype::bf16:
      if (args.largest) return start<FloatView<Float::bf16, false>>(args, plan, stream);
      break;
    default:
      break;
  }
  switch (dtype_bytes(args.dtype)) {
    case 1:
      return start<IntegerView<uint8_t>>(args, plan, stream);
    case 2:
      return start<CodecView<uint16_t>>(args, plan, stream);
    case 4:
      return start<IntegerView<uint32_t>>(args, plan, stream);
    default:
      return start<CodecView<uint64_t>>(args, plan, stream);
  }
}

}  // namespace gpuprims
