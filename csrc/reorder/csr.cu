// The product of CSR rows. A warp has 32 consecutive rows: their products go through shared memory
// in tiles of 256 (values and columns arrive in whole lines, whatever the rows' lengths), then a
// lane a row adds its own up in order: the stream kernel of CSR-Adaptive (Greathouse and Daga, SC
// 2014), with a warp in place of a block and rows in place of a plan, so that no warp waits for
// another. Rows of more than a group are listed by the look at the offsets, and their groups summed
// by a warp each.
#include <algorithm>
#include <type_traits>

#include "common/launch.h"
#include "reorder/sum.cuh"

namespace gpuprims::reorder {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kEach = 8;
constexpr int kTile = 32 * kEach;  // products of a warp; a group fits too

__device__ __forceinline__ int64_t offset_at(const Packing& p, int64_t row) {
  return int_at(p.indptr, p.wide, row);
}

template <class T, class Acc>
__device__ __forceinline__ Acc product_at(bool good, T value, T read) {
  return good ? times(widen(value), widen(read)) : not_a_number<Acc>();
}

// Spreads rows of 4, 8, 16, 32 products over the banks.
__device__ __forceinline__ int place(int at) { return at + at / 32; }

template <class T, class Acc>
__device__ __forceinline__ void short_rows(const SpmvArgs& args, int64_t c, Acc* products) {
  const Packing& p = args.p;
  const auto* const values = static_cast<const T*>(args.values);
  const auto* const x = static_cast<const T*>(args.x) + c;
  const int lane = threadIdx.x % 32, m = static_cast<int>(args.m);
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) * kStrip;
  if (first >= p.rows) return;
  const int64_t row = first + lane;
  const int64_t begin = offset_at(p, row < p.rows ? row : p.rows);
  const int64_t all = offset_at(p, row < p.rows ? row + 1 : p.rows) - begin;
  const int length = all > kGroup ? kGroup + 1 : static_cast<int>(all);
  if (args.by_lane) {
    if (row >= p.rows || length > kGroup) return;
    const Acc sum = sum_slots<Acc, 1>(args, values + begin,
                                      static_cast<const int*>(args.indices) + begin, length);
    static_cast<T*>(args.out)[row] = narrow<T>(sum);
    return;
  }
  unsigned shorts = __ballot_sync(~0u, length <= kGroup);
  Acc sum = 0;
  // Runs of rows between long ones; nearly always one.
  while (shorts != 0) {
    const int low = __ffs(static_cast<int>(shorts)) - 1;
    const unsigned behind = ~shorts >> low;  // the first long row after `low`
    const int high = behind == 0 ? 32 : low + __ffs(static_cast<int>(behind)) - 1;
    shorts = high < 32 ? shorts >> high << high : 0;
    const int64_t base = __shfl_sync(~0u, begin, low);
    const int total = static_cast<int>(__shfl_sync(~0u, begin + length, high - 1) - base);
    const bool mine = lane >= low && lane < high;
    int at = mine ? static_cast<int>(begin - base) : 0, done = 0;
    const int stop = mine ? at + length : 0;
    Acc piece = 0;
    int64_t entry = base + lane;
    for (int from = 0; from < total; from += kTile, entry += kTile) {
      int column[kEach];
      T value[kEach], read[kEach];
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const bool there = from + k * 32 + lane < total;
        column[k] = there ? column_at(args, entry + k * 32) : -1;
      }
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        value[k] = from + k * 32 + lane < total ? load_once(values + entry + k * 32) : T{};
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        read[k] = inside(args, column[k]) ? __ldg(x + static_cast<int64_t>(column[k]) * m) : T{};
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        if (from + k * 32 < total)
          products[place(k * 32 + lane)] =
              product_at<T, Acc>(inside(args, column[k]), value[k], read[k]);
      __syncwarp();
      const int last = stop < from + kTile ? stop : from + kTile;
#pragma unroll 2
      for (; at < last; ++at) {
        piece = plus(piece, products[place(at - from)]);
        if (++done % kPiece == 0) sum = plus(sum, piece), piece = 0;
      }
      __syncwarp();
    }
    sum = plus(sum, piece);
  }
  if (row < p.rows && length <= kGroup)
    static_cast<T*>(args.out)[row * args.m + c] = narrow<T>(plus(Acc(0), sum));
}

// A warp sums a group: its products are turned in shared memory, a lane has a piece.
template <class T, class Acc>
__device__ void long_group(const SpmvArgs& args, const LongRows& rows, int64_t u, int64_t c,
                           Acc* products) {
  const auto* const values = static_cast<const T*>(args.values);
  const auto* const x = static_cast<const T*>(args.x) + c;
  const int lane = threadIdx.x % 32;
  const LongUnit unit = rows.list[u];
  const int64_t begin = offset_at(args.p, unit.row) + unit.group * kGroup;
  const int64_t left = offset_at(args.p, unit.row + 1) - begin;
  const int count = static_cast<int>(left < kGroup ? left : kGroup);
#pragma unroll 4
  for (int k = 0; k < kGroup / 32; ++k) {
    const int i = k * 32 + lane;
    Acc product = 0;
    if (i < count) {
      const int column = column_at(args, begin + i);
      const T value = load_once(values + begin + i);
      const bool good = inside(args, column);
      product = product_at<T, Acc>(good, value, good ? x[column * args.m] : T{});
    }
    products[k * 33 + lane] = product;
  }
  __syncwarp();
  Acc piece = 0;
  if (lane < kGroup / kPiece)
    for (int i = 0; i < kPiece; ++i) piece = plus(piece, products[lane * 33 + i]);
  Acc sum = 0;
#pragma unroll
  for (int k = 0; k < kGroup / kPiece; ++k) sum = plus(sum, __shfl_sync(~0u, piece, k));
  if (lane == 0) static_cast<Acc*>(args.partial)[u * args.m + c] = sum;
  __syncwarp();
}

template <class T, class Acc>
__device__ void long_row(const SpmvArgs& args, const LongRows& rows, int64_t u, int64_t c) {
  const LongUnit unit = rows.list[u];
  if (unit.group != 0) return;
  const int64_t length = offset_at(args.p, unit.row + 1) - offset_at(args.p, unit.row);
  const int64_t groups = (length + kGroup - 1) / kGroup;
  Acc total = 0;
#pragma unroll 4
  for (int64_t g = 0; g < groups; ++g)
    total = plus(total, static_cast<const Acc*>(args.partial)[(u + g) * args.m + c]);
  static_cast<T*>(args.out)[unit.row * args.m + c] = narrow<T>(total);
}

enum class Phase : int { rows, groups, long_rows };

template <class Acc>
__global__ void __launch_bounds__(kThreads, sizeof(Acc) == 4 ? 5 : 3)
    reorder_spmv_csr(const __grid_constant__ SpmvArgs args, const __grid_constant__ LongRows rows,
                     const Phase phase) {
  __shared__ Acc tiles[kWarps][kTile + kTile / 32];
  Acc* const products = tiles[threadIdx.x / 32];
  const int64_t c = blockIdx.y;
  with_element<Acc>(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.flag && *args.flag) {
      if (phase == Phase::rows && c == 0) fill_nan<T>(args, kThreads);
      return;
    }
    if (phase == Phase::rows) {
      short_rows<T, Acc>(args, c, products);
      return;
    }
    const int64_t units = *rows.count;
    if (phase == Phase::groups) {
      for (int64_t u = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; u < units;
           u += static_cast<int64_t>(gridDim.x) * kWarps)
        long_group<T, Acc>(args, rows, u, c, products);
      return;
    }
    for (int64_t u = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; u < units;
         u += static_cast<int64_t>(gridDim.x) * kThreads)
      long_row<T, Acc>(args, rows, u, c);
  });
}

template <class Acc>
cudaError_t start(const SpmvArgs& args, const LongRows& rows, int sms, cudaStream_t stream) {
  const auto m = static_cast<unsigned>(args.m);
  const int64_t blocks = std::max<int64_t>((args.p.rows + kThreads - 1) / kThreads, 1);
  auto code =
      launch(reorder_spmv_csr<Acc>, {dim3(static_cast<unsigned>(blocks), m), dim3(kThreads)},
             stream, args, rows, Phase::rows);
  if (!rows.list) return code;
  const auto most = [&](int64_t units_a_block, int64_t blocks_a_sm) {
    const int64_t all = (rows.capacity + units_a_block - 1) / units_a_block;
    return dim3(static_cast<unsigned>(std::clamp<int64_t>(all, 1, blocks_a_sm * sms)), m);
  };
  for (const Phase phase : {Phase::groups, Phase::long_rows}) {
    if (code != cudaSuccess) return code;
    const dim3 grid = phase == Phase::groups ? most(kThreads / 32, 4) : most(kThreads, 1);
    code = launch(reorder_spmv_csr<Acc>, {grid, dim3(kThreads)}, stream, args, rows, phase);
  }
  return code;
}

}  // namespace

cudaError_t launch_spmv_csr(const SpmvArgs& args, const LongRows& rows, int sms,
                            cudaStream_t stream) {
  return args.dtype == Dtype::f64 ? start<double>(args, rows, sms, stream)
                                  : start<float>(args, rows, sms, stream);
}

}  // namespace gpuprims::reorder
