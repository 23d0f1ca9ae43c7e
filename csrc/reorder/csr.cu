// The product of CSR rows. A block has 256 consecutive rows: their products go through shared
// memory in tiles of 2,048 (values and columns arrive in whole lines, whatever the rows' lengths),
// then a thread a row adds its own up in order (the stream kernel of CSR-Adaptive, Greathouse and
// Daga, SC 2014, with rows in place of a plan). Rows of more than a group are listed by the look at
// the offsets, and their groups summed by a warp each.
#include <algorithm>
#include <type_traits>

#include "common/block_scan.cuh"
#include "common/launch.h"
#include "reorder/sum.cuh"

namespace gpuprims::reorder {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;
constexpr int kTile = kThreads * kEach;

__device__ __forceinline__ int64_t offset_at(const Packing& p, int64_t row) {
  return int_at(p.indptr, p.wide, row);
}

__global__ void __launch_bounds__(kThreads)
    reorder_csr_check(const __grid_constant__ Packing p, const __grid_constant__ LongRows rows) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  bool bad = false;
  if (first == 0) bad = offset_at(p, 0) != 0 || offset_at(p, p.rows) != p.entries;
  for (int64_t row = first; row < p.rows; row += threads) {
    const int64_t length = offset_at(p, row + 1) - offset_at(p, row);
    bad |= length < 0 || length > p.entries;
    if (bad || length <= kGroup) continue;
    const int64_t groups = (length + kGroup - 1) / kGroup;
    const int64_t at = atomicAdd(rows.count, static_cast<int>(groups));
    bad |= at + groups > rows.capacity;  // offsets that fall again
    for (int64_t g = 0; g < groups && !bad; ++g) rows.list[at + g] = {row, g};
  }
  if (bad) atomicOr(rows.flag, 1);
}

template <class T, class Acc>
__device__ __forceinline__ Acc product_at(int column, T value, T read) {
  return column >= 0 ? times(widen(value), widen(read)) : not_a_number<Acc>();
}

// Spreads rows of 4, 8, 16, 32 products over the banks.
__device__ __forceinline__ int place(int at) { return at + at / 32; }

template <class T, class Acc>
__device__ void short_rows(const SpmvArgs& args, int64_t c, Acc* products, int* ends,
                           uint32_t* words) {
  const Packing& p = args.p;
  const auto* const values = static_cast<const T*>(args.values);
  const auto* const x = static_cast<const T*>(args.x) + c;
  const int t = threadIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads, row = first + t;
  const int64_t begin = row < p.rows ? offset_at(p, row) : 0;
  int64_t length = row < p.rows ? offset_at(p, row + 1) - begin : 0;
  const bool is_long = length > kGroup;
  if (is_long) length = 0;
  // ends[r]: where the rows up to r end, without the long ones.
  const int before = static_cast<int>(sum_before<kThreads>(static_cast<uint32_t>(length), words));
  ends[t] = before + static_cast<int>(length);
  const bool direct = !__syncthreads_or(is_long);
  const int total = ends[kThreads - 1];
  const int64_t base = offset_at(p, first);
  int at = before, done = 0;  // of this thread's row
  Acc piece = 0, sum = 0;
  for (int from = 0; from < total; from += kTile) {
    int64_t entry[kEach];
    int column[kEach];
    T value[kEach], read[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int i = from + k * kThreads + t;
      entry[k] = i < total ? base + i : -1;
      if (!direct && i < total) {  // behind long rows: found by search
        int low = 0, high = kThreads - 1;
        while (low < high) {
          const int middle = (low + high) / 2;
          if (ends[middle] > i)
            high = middle;
          else
            low = middle + 1;
        }
        const int row_begin = low > 0 ? ends[low - 1] : 0;
        entry[k] = offset_at(p, first + low) + (i - row_begin);
      }
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) column[k] = entry[k] >= 0 ? column_at(args, entry[k]) : -1;
#pragma unroll
    for (int k = 0; k < kEach; ++k) value[k] = entry[k] >= 0 ? load_once(values + entry[k]) : T{};
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      read[k] = column[k] >= 0 ? x[static_cast<int64_t>(column[k]) * args.m] : T{};
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (entry[k] >= 0)
        products[place(k * kThreads + t)] = product_at<T, Acc>(column[k], value[k], read[k]);
    __syncthreads();
    const int end = before + static_cast<int>(length), next = from + kTile;
    const int last = end < next ? end : next;
#pragma unroll 4
    for (; at < last; ++at) {
      piece = plus(piece, products[place(at - from)]);
      if (++done % kPiece == 0) sum = plus(sum, piece), piece = 0;
    }
    __syncthreads();
  }
  if (row < p.rows && !is_long)
    static_cast<T*>(args.out)[row * args.m + c] = narrow<T>(plus(Acc(0), plus(sum, piece)));
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
#pragma unroll
  for (int k = 0; k < kGroup / 32; ++k) {
    const int i = k * 32 + lane;
    Acc product = 0;
    if (i < count) {
      const int column = column_at(args, begin + i);
      const T value = load_once(values + begin + i);
      const T read = column >= 0 ? x[static_cast<int64_t>(column) * args.m] : T{};
      product = product_at<T, Acc>(column, value, read);
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
#pragma unroll 8
  for (int64_t g = 0; g < groups; ++g)
    total = plus(total, static_cast<const Acc*>(args.partial)[(u + g) * args.m + c]);
  static_cast<T*>(args.out)[unit.row * args.m + c] = narrow<T>(total);
}

enum class Phase : int { rows, groups, long_rows };

template <class Acc>
__global__ void __launch_bounds__(kThreads)
    reorder_spmv_csr(const __grid_constant__ SpmvArgs args, const __grid_constant__ LongRows rows,
                     const Phase phase) {
  __shared__ Acc products[kTile + kTile / 32];
  __shared__ int ends[kThreads];
  __shared__ uint32_t words[32];
  const int64_t c = blockIdx.y;
  with_element<Acc>(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.flag && *args.flag) {
      if (phase == Phase::rows && c == 0) fill_nan<T>(args, kThreads);
      return;
    }
    if (phase == Phase::rows) {
      short_rows<T, Acc>(args, c, products, ends, words);
      return;
    }
    const int64_t units = *rows.count;
    if (phase == Phase::groups) {
      constexpr int kWarps = kThreads / 32;
      const int warp = threadIdx.x / 32;
      for (int64_t u = static_cast<int64_t>(blockIdx.x) * kWarps + warp; u < units;
           u += static_cast<int64_t>(gridDim.x) * kWarps)
        long_group<T, Acc>(args, rows, u, c, products + warp * (kGroup + kGroup / 32));
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

cudaError_t launch_csr_check(const Packing& p, const LongRows& rows, cudaStream_t stream) {
  const auto code = cudaMemsetAsync(rows.flag, 0, 2 * sizeof(int), stream);
  if (code != cudaSuccess) return code;
  const int64_t blocks = std::clamp<int64_t>((p.rows + kThreads - 1) / kThreads, 1, 2048);
  return launch(reorder_csr_check, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, stream, p,
                rows);
}

cudaError_t launch_spmv_csr(const SpmvArgs& args, const LongRows& rows, int sms,
                            cudaStream_t stream) {
  return args.dtype == Dtype::f64 ? start<double>(args, rows, sms, stream)
                                  : start<float>(args, rows, sms, stream);
}

}  // namespace gpuprims::reorder
