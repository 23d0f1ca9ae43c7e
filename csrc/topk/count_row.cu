// Few short rows, any k: an element's rank is the number of better ones, and they are counted. n^2
// comparisons a row, but spread over all multiprocessors, and little code: a row of 1,024 takes
// less time than the instruction cache of a sorting network takes to fill. Every block of a row
// reads the whole row, and ranks its own part of it.
#include <bit>

#include "common/launch.h"
#include "sort/order.h"
#include "topk/any_width.cuh"
#include "topk/rows.cuh"

namespace gpuprims {
namespace {

extern __shared__ __align__(16) unsigned char dynamic_memory[];

constexpr int kThreads = topk_tuning::kCountThreads;

struct CountShape {
  int bytes;      // of an element
  int items;      // elements that a block ranks, a power of 2; kThreads / items threads count each
  int shift;      // log2 of a row's share of them: of n rounded up, or of all where it has more
  int row_shift;  // log2 of n rounded up
  int parts;      // blocks a row
};

template <class Word>
__device__ __forceinline__ Word load_word(const void* p, int bytes, int64_t at) {
  if constexpr (sizeof(Word) == 8) return static_cast<const uint64_t*>(p)[at];
  if (bytes == 4) return static_cast<const uint32_t*>(p)[at];
  if (bytes == 2) return static_cast<const uint16_t*>(p)[at];
  return static_cast<const uint8_t*>(p)[at];
}

template <class Word>
__global__ void __launch_bounds__(kThreads)
    topk_count(const __grid_constant__ TopkArgs args,
               const __grid_constant__ OrderParams<Word> order,
               const __grid_constant__ CountShape shape) {
  constexpr int kVector = 16 / sizeof(Word), kBatch = 4;
  __shared__ int ranks[kThreads];
  Word* const keys = reinterpret_cast<Word*>(dynamic_memory);
  const int n = static_cast<int>(args.n), t = threadIdx.x;
  const int vectors = (n + kVector - 1) / kVector, stride = vectors * kVector;
  const int in_block = shape.items >> shape.shift;  // rows
  const int64_t group = blockIdx.x / shape.parts, first = group * in_block;
  const int base = static_cast<int>(blockIdx.x - group * shape.parts) * shape.items;
  const int rows = static_cast<int>(args.rows - first < in_block ? args.rows - first : in_block);
  const auto start = [&](int row) { return RowPlace(first + row, args.inner).start(args.in); };

  // This thread's element, and which of the others it is compared with.
  const int slot = t & (shape.items - 1), share = t / shape.items, shares = kThreads / shape.items;
  const int inside = (1 << shape.shift) - 1, row = slot >> shape.shift, i = base + (slot & inside);
  const bool active = row < rows && i < n;
  Word own = 0;
  if (active && share == 0) own = load_word<Word>(args.input, shape.bytes, start(row) + i);

  ranks[t] = 0;
  if (t < rows)
    for (int c = n; c < stride; ++c) keys[t * stride + c] = 0;  // better than none
  const int limit = in_block == 1 ? n : rows << shape.row_shift;
#pragma unroll 1
  for (int at = t; at < limit; at += kBatch * kThreads) {
    Word raw[kBatch];
    const auto place = [&](int b, const auto& put) {
      const int f = at + b * kThreads, r = f >> shape.row_shift;
      const int column = f & ((1 << shape.row_shift) - 1);
      if (f < limit && column < n) put(r, column);
    };
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      place(b, [&](int r, int column) {
        raw[b] = load_word<Word>(args.input, shape.bytes, start(r) + column);
      });
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      place(b, [&](int r, int column) { keys[r * stride + column] = order.encode(raw[b]); });
  }
  __syncthreads();

  const Word* const from = keys + (row < rows ? row * stride : 0);
  const Word mine = from[i < n ? i : 0];
  int better = 0;
  const auto count = [&](int begin, int end, const auto& test) {
#pragma unroll 2
    for (int v = begin; v < end; ++v) {
      Vector<Word> some;
      some.raw = *reinterpret_cast<const uint4*>(from + v * kVector);
#pragma unroll
      for (int e = 0; e < kVector; ++e) better += test(some.element[e], v * kVector + e);
    }
  };
  const auto within = [&](int v, int least) { return v < least ? least : v; };
  // Equal elements count where they stand before this one: all that are before the warp's, none
  // behind them.
  const int begin = vectors * share / shares, end = vectors * (share + 1) / shares;
  const int low = (base + (slot & ~31 & inside)) / kVector, high = low + 32 / kVector;
  count(begin, low < end ? low : end, [&](Word other, int) { return other >= mine; });
  count(within(low, begin), high < end ? high : end,
        [&](Word other, int j) { return other > mine || (other == mine && j < i); });
  count(within(high, begin), end, [&](Word other, int) { return other > mine; });
  if (shares > 1) {
    if (active) atomicAdd(&ranks[slot], better);
    __syncthreads();
    better = ranks[slot];
  }
  if (!active || share > 0 || better >= args.k) return;
  const RowPlace place(first + row, args.inner);
  const int64_t to = place.outer * args.k * args.inner + place.inner + better * args.inner;
  store_bits(args.values, shape.bytes, to, own);
  if (args.wide_index)
    static_cast<int64_t*>(args.indices)[to] = i;
  else
    static_cast<int32_t*>(args.indices)[to] = i;
}

template <class Key, class Word>
OrderParams<Word> order_of(const TopkArgs& args) {
  OrderParams<Word> order;
  set_order<Key>(order, args.dtype, !args.largest, false);
  return order;
}

template <class Word>
cudaError_t start(const TopkArgs& args, const OrderParams<Word>& order, const TopkPlan& plan,
                  cudaStream_t stream) {
  const auto log2_up = [](int64_t n) {
    return std::countr_zero(std::bit_ceil(static_cast<uint64_t>(n)));
  };
  const CountShape shape{dtype_bytes(args.dtype), plan.tile,
                         log2_up(std::min<int64_t>(args.n, plan.tile)), log2_up(args.n),
                         plan.splits};
  const LaunchShape launch_shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads),
                                 static_cast<size_t>(plan.smem)};
  return launch(topk_count<Word>, launch_shape, stream, args, order, shape);
}

}  // namespace

cudaError_t launch_topk_count(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  switch (dtype_bytes(args.dtype)) {
    case 1:
      return start(args, order_of<uint8_t, uint32_t>(args), plan, stream);
    case 2:
      return start(args, order_of<uint16_t, uint32_t>(args), plan, stream);
    case 4:
      return start(args, order_of<uint32_t, uint32_t>(args), plan, stream);
    default:
      return start(args, order_of<uint64_t, uint64_t>(args), plan, stream);
  }
}

}  // namespace gpuprims
