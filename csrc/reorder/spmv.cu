// The product of packed rows. A warp has a strip, a lane a row: values and columns arrive in whole
// lines, eight of a row at a time; x is gathered. What most matrices are takes a loop over strips
// that loads ahead. Strips wider than a group are cut there where units say so; the groups' sums
// are added up in order by a second launch.
#include <algorithm>
#include <type_traits>

#include "common/launch.h"
#include "reorder/sum.cuh"

namespace gpuprims::reorder {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Keeps the compiler from holding eight multiples of a stride in registers.
template <class P>
__device__ __forceinline__ P opaque(P at) {
#if defined(__CUDA_ARCH__)
  asm("" : "+l"(at));
#endif
  return at;
}

// The sum of columns [first, last) of the strip, for M columns of x from `c` on; a whole row's
// where that is all of them. kSliced: slots of a row are 32 apart, and every lane has some; indices
// are int32. Loads of a batch are all under way before the first product.
template <class T, int M, bool kSliced, class Acc>
__device__ __forceinline__ void sum_columns(const SpmvArgs& args, const Strip& strip, int64_t first,
                                            int64_t last, bool active, int64_t c, Acc (&total)[M]) {
  constexpr int kBatch = M == 1 ? 8 : 4;  // divides kPiece
  const auto* const x = static_cast<const T*>(args.x) + c;
  const int64_t step = kSliced ? kStrip : strip.stride;
  Acc piece[M], group[M];
#pragma unroll
  for (int k = 0; k < M; ++k) piece[k] = group[k] = total[k] = 0;
  const int64_t begin = strip.base + first * step + threadIdx.x % 32;
  const T* value_at = static_cast<const T*>(args.values) + begin;
  const int* column_near = static_cast<const int*>(args.indices) + begin;
  int64_t slot = begin;
  for (int64_t i = first; i < last; i += kBatch) {
    int column[kBatch];
    T value[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const bool there = i + b < last && (kSliced || active);
      if constexpr (kSliced) {
        column[b] = there ? load_once(column_near + b * kStrip) : -1;
      } else {
        column[b] = there ? column_at(args, slot) : -1;
        slot = opaque(slot + step);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const bool there = i + b < last && (kSliced || active);
      if constexpr (kSliced) {
        value[b] = there ? load_once(value_at + b * kStrip) : T{};
      } else {
        value[b] = there ? load_once(value_at) : T{};
        value_at = opaque(value_at + step);
      }
    }
    T read[kBatch][M];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const bool good = inside(args, column[b]);
#pragma unroll
      for (int k = 0; k < M; ++k) {
        const int64_t at = M == 1 ? column[b] : column[b] * args.m + k;  // M = 1 where m is
        read[b][k] = good && c + k < args.m ? __ldg(x + at) : T{};
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const bool good = inside(args, column[b]);
#pragma unroll
      for (int k = 0; k < M; ++k) {
        Acc product = good ? times(widen(value[b]), widen(read[b][k])) : Acc(0);
        if (!good && column[b] != -1) product = not_a_number<Acc>();
        piece[k] = plus(piece[k], product);
      }
    }
    if constexpr (kSliced) {
      value_at += kBatch * kStrip;
      column_near += kBatch * kStrip;
    }
    const int64_t done = i + kBatch;
    if (done % kPiece == 0) {
#pragma unroll
      for (int k = 0; k < M; ++k) {
        group[k] = plus(group[k], piece[k]), piece[k] = 0;
        if (done % kGroup == 0) total[k] = plus(total[k], group[k]), group[k] = 0;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < M; ++k) total[k] = plus(total[k], plus(group[k], piece[k]));
}

template <class T, class Acc>
__device__ __forceinline__ void write(const SpmvArgs& args, int64_t position, int64_t c, Acc sum) {
  const int64_t at = row_at(args.p, position) * args.m + c;
  if (args.start) sum = plus(widen(static_cast<const T*>(args.start)[at]), sum);
  static_cast<T*>(args.out)[at] = narrow<T>(sum);
}

template <class T, int M, class Acc>
__device__ __forceinline__ void run_unit(const SpmvArgs& args, int64_t u, bool combine, int64_t c) {
  const Packing& p = args.p;
  int64_t s = u, first = 0;
  bool cut = false, cut_first = false;
  if (p.units) {
    s = p.units[u];
    const int group = p.units[p.unit_count + u];
    const bool more = u + 1 < p.unit_count && p.units[u + 1] == s;
    first = static_cast<int64_t>(group) * kGroup;
    cut = group > 0 || more;
    cut_first = group == 0 && more;
  }
  if (combine && !cut_first) return;
  const Strip strip = strip_at(p, s);
  const int lane = threadIdx.x % 32;
  const int64_t position = s * kStrip + lane;
  const bool active = position < p.rows;
  auto* const partial = static_cast<Acc*>(args.partial);
  Acc total[M];
  if (combine) {
#pragma unroll
    for (int k = 0; k < M; ++k) total[k] = 0;
    const int64_t groups = (strip.width + kGroup - 1) / kGroup;
#pragma unroll 4
    for (int64_t g = 0; g < groups; ++g) {
#pragma unroll
      for (int k = 0; k < M; ++k)
        if (c + k < args.m)
          total[k] = plus(total[k], partial[((u + g) * kStrip + lane) * args.m + c + k]);
    }
  } else {
    const int64_t end = cut && first + kGroup < strip.width ? first + kGroup : strip.width;
    if (p.slices && !args.wide_indices)
      sum_columns<T, M, true>(args, strip, first, end, active, c, total);
    else
      sum_columns<T, M, false>(args, strip, first, end, active, c, total);
  }
#pragma unroll
  for (int k = 0; k < M; ++k) {
    if (c + k >= args.m) continue;
    if (cut && !combine)
      partial[(u * kStrip + lane) * args.m + c + k] = total[k];
    else if (active)
      write<T>(args, position, c + k, total[k]);
  }
}

// Where loads_ahead (args.h) holds. A warp's strips are
// a grid apart, and the next eight slots of a row are under way while x is waited for: their
// columns go to registers that were just used as addresses, their values to those just multiplied.
template <class T, class Acc>
__device__ __forceinline__ void run_strips(const SpmvArgs& args) {
  constexpr int kBatch = 8;  // divides kPiece
  const int strips = static_cast<int>(strips_of(args.p.rows)), stride = gridDim.x * kWarps;
  const int64_t* const slices = args.p.slices;
  const int lane = threadIdx.x % 32;
  const auto* const x = static_cast<const T*>(args.x);
  const int* const columns = static_cast<const int*>(args.indices) + lane;
  const T* const values = static_cast<const T*>(args.values) + lane;
  int s = blockIdx.x * kWarps + threadIdx.x / 32, coming = s + stride;
  if (s >= strips) return;
  int64_t at = slices[s], coming_at = 0;
  int left = static_cast<int>((slices[s + 1] - at) / kStrip), coming_left = 0;  // columns
  const auto look_ahead = [&] {
    if (coming >= strips) return;
    coming_at = slices[coming];
    coming_left = static_cast<int>((slices[coming + 1] - coming_at) / kStrip);
  };
  look_ahead();
  int column[kBatch];
  T value[kBatch];
  const auto load_columns = [&] {
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      column[b] = b < left ? load_once(columns + at + b * kStrip) : -1;
  };
  const auto load_values = [&] {
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      value[b] = b < left ? load_once(values + at + b * kStrip) : T{};
  };
  load_columns();
  load_values();
  Acc piece = 0, group = 0, total = 0;
  for (int done = kBatch;; done += kBatch) {
    T read[kBatch];
    unsigned good = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      read[b] = T{};
      if (inside(args, column[b])) {
        good |= 1u << b;
        read[b] = __ldg(x + column[b]);
      } else if (column[b] != -1) {
        piece = not_a_number<Acc>();
      }
    }
    const bool last = left <= kBatch, more = !last || coming < strips;
    at = last ? coming_at : at + kBatch * kStrip;
    left = last ? coming_left : left - kBatch;
    if (more) load_columns();
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (good >> b & 1) piece = plus(piece, times(widen(value[b]), widen(read[b])));
    if (more) load_values();
    if (done % kPiece == 0) {
      group = plus(group, piece), piece = 0;
      if (done % kGroup == 0) total = plus(total, group), group = 0;
    }
    if (!last) continue;
    const int64_t position = static_cast<int64_t>(s) * kStrip + lane;
    if (position < args.p.rows) write<T>(args, position, 0, plus(total, plus(group, piece)));
    if (!more) return;
    piece = group = total = 0;
    done = 0;
    s = coming, coming += stride;
    look_ahead();
  }
}

template <class Acc>
constexpr int kBlocks = sizeof(Acc) == 4 ? 5 : 3;  // a multiprocessor

template <class Acc>
__global__ void __launch_bounds__(kThreads, kBlocks<Acc>)
    reorder_spmv(const __grid_constant__ SpmvArgs args, const int64_t units, const bool combine) {
  with_element<Acc>(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.flag && *args.flag) {
      fill_nan<T>(args, kThreads);
      return;
    }
    if (args.ahead) return run_strips<T, Acc>(args);
    const int64_t u = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (u >= units) return;
    if (args.m == 1)
      run_unit<T, 1, Acc>(args, u, combine, 0);
    else
      run_unit<T, 2, Acc>(args, u, combine, static_cast<int64_t>(blockIdx.y) * 2);
  });
}

template <class Acc>
cudaError_t start(const SpmvArgs& args, int sms, cudaStream_t stream) {
  const int64_t strips = strips_of(args.p.rows);
  const int64_t units = args.p.units ? args.p.unit_count : strips;
  const int64_t blocks = std::max<int64_t>((units + kWarps - 1) / kWarps, 1);
  if (args.ahead) {
    const dim3 grid(static_cast<unsigned>(std::min<int64_t>(blocks, sms * kBlocks<Acc>)));
    return launch(reorder_spmv<Acc>, {grid, dim3(kThreads)}, stream, args, int64_t{0}, false);
  }
  const auto columns = static_cast<unsigned>(args.m == 1 ? 1 : (args.m + 1) / 2);
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks), columns), dim3(kThreads)};
  const auto code = launch(reorder_spmv<Acc>, shape, stream, args, units, false);
  if (code != cudaSuccess || !args.p.units) return code;
  return launch(reorder_spmv<Acc>, shape, stream, args, units, true);
}

}  // namespace

cudaError_t launch_spmv(const SpmvArgs& args, int sms, cudaStream_t stream) {
  return args.dtype == Dtype::f64 ? start<double>(args, sms, stream)
                                  : start<float>(args, sms, stream);
}

}  // namespace gpuprims::reorder
