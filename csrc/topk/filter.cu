// Large k: the k best elements of each row, in the order of their indices, ready to be sorted.
//
// Radix select from the top, 11 bits a pass: every block counts the digits of its part's keys that
// share the prefix found so far, the row's last block to finish adds up and picks the digit. A pass
// that finds exactly what it wants is the last. Then elements are counted block by block, and
// written where the counts say: nothing depends on which block comes first. Ties at the cut go to
// the lowest indices. The digits' histogram is AIR Top-K's (Zhang et al., SC'23).
#include "common/block_scan.cuh"
#include "common/launch.h"
#include "common/ticket.cuh"
#include "topk/filter.h"
#include "topk/part.cuh"

namespace gpuprims {
namespace {

namespace t = radix_tuning;
constexpr int kThreads = t::kThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kInFlight = 4;  // 16-byte loads a thread

__global__ void __launch_bounds__(kThreads)
    topk_filter_clear(FilterRow* rows, int64_t count, uint32_t* bins, int64_t words) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  for (int64_t i = first; i < count; i += step) rows[i] = FilterRow{};
  for (int64_t i = first; i < words; i += step) bins[i] = 0;
}

// A block's row and part of it.
struct FilterPlace {
  int64_t row, chunk, begin, end;

  __device__ __forceinline__ FilterPlace(const TopkArgs& args, const FilterSpace& space)
      : row(blockIdx.x / space.chunks), chunk(blockIdx.x - row * space.chunks) {
    begin = chunk * space.chunk;
    end = begin + space.chunk < args.n ? begin + space.chunk : args.n;
  }
};

// True in the row's last block to come here, which sees what the others have written.
__device__ __forceinline__ bool last_of_row(FilterRow& state, int64_t chunks) {
  __syncthreads();
  return is_last_block(&state.arrived, static_cast<uint32_t>(chunks));
}

// Calls take(bits) for every element of a part, in no order.
template <class Key, class Take>
__device__ __forceinline__ void for_part(const Part<Key>& part, const Take& take) {
  const uint32_t vectors = part.vectors;
#pragma unroll 1
  for (uint32_t v = threadIdx.x; v < vectors; v += kThreads * kInFlight) {
    Vector<Key> seen[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) seen[u].raw = part.load(v + u * kThreads);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (v + u * kThreads >= vectors) break;
#pragma unroll
      for (int j = 0; j < Vector<Key>::kSize; ++j) take(seen[u].element[j]);
    }
  }
  if (threadIdx.x < part.edges()) take(part.data[part.edge(threadIdx.x)]);
}

// The digit, from the top, at which `want` elements are reached: one block, size bins.
__device__ __forceinline__ void pick_digit(FilterRow& state, uint32_t* bins, int size,
                                           uint32_t want, int shift, int width) {
  __shared__ uint32_t words[32];
  const int each = size > kThreads ? size / kThreads : 1;
  const int top = size - 1 - static_cast<int>(threadIdx.x) * each;  // this thread's highest bin
  uint32_t sum = 0;
  for (int i = 0; i < each && top - i >= 0; ++i) sum += __ldcg(bins + top - i);
  uint32_t before = sum_before<kThreads>(sum, words);
  if (before < want && want <= before + sum) {
    for (int i = 0; i < each; ++i) {
      const uint32_t here = __ldcg(bins + top - i);
      if (want <= before + here) {
        state.prefix = state.prefix << width | static_cast<uint32_t>(top - i);
        state.rest = want - before;
        state.shift = shift;
        state.found = shift == 0 || want - before == here;
        break;
      }
      before += here;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < size; i += kThreads) bins[i] = 0;  // for the next pass
}

template <class Key>
__global__ void __launch_bounds__(kThreads)
    topk_filter_digit(const __grid_constant__ TopkArgs args,
                      const __grid_constant__ KeyCodec<Key> codec,
                      const __grid_constant__ FilterSpace space, int shift, int width, bool first) {
  constexpr int kBins = 1 << (sizeof(Key) == 1 ? 8 : t::kDigitBits);
  __shared__ uint32_t bins[kBins];
  const FilterPlace place(args, space);
  FilterRow& state = space.rows[place.row];
  if (!first && state.found) return;
  const int size = 1 << width;
  for (int i = threadIdx.x; i < size; i += kThreads) bins[i] = 0;
  __syncthreads();
  const auto prefix = static_cast<Key>(state.prefix);
  const uint32_t want = first ? static_cast<uint32_t>(args.k) : state.rest;
  const Part<Key> part(args, RowPlace(place.row, args.inner), place.begin, place.end);
  int run = 0;  // neighbours of one digit are counted at once: equal data would queue at one bin
  uint32_t length = 0;
  for_part(part, [&](Key bits) {
    const Key high = static_cast<Key>(codec.encode(bits) >> shift);
    if (!first && static_cast<Key>(high >> width) != prefix) return;
    const int digit = static_cast<int>(high & static_cast<Key>(size - 1));
    if (digit != run) {
      if (length) atomicAdd(&bins[run], length);
      run = digit, length = 0;
    }
    ++length;
  });
  if (length) atomicAdd(&bins[run], length);
  __syncthreads();
  uint32_t* const all = space.bins + place.row * space.bins_per_row;
  for (int i = threadIdx.x; i < size; i += kThreads)
    if (bins[i]) atomicAdd(all + i, bins[i]);
  if (last_of_row(state, space.chunks)) pick_digit(state, all, size, want, shift, width);
}

// How many elements of each part are better than the prefix, and how many share it; then, in the
// row's last block, how many are in the parts before.
template <class Key>
__global__ void __launch_bounds__(kThreads)
    topk_filter_count(const __grid_constant__ TopkArgs args,
                      const __grid_constant__ KeyCodec<Key> codec,
                      const __grid_constant__ FilterSpace space) {
  __shared__ uint32_t sums[2][32];
  const FilterPlace place(args, space);
  FilterRow& state = space.rows[place.row];
  const auto prefix = static_cast<Key>(state.prefix);
  const int shift = state.shift;
  const Part<Key> part(args, RowPlace(place.row, args.inner), place.begin, place.end);
  uint32_t better = 0, equal = 0;
  for_part(part, [&](Key bits) {
    const Key high = static_cast<Key>(codec.encode(bits) >> shift);
    better += high > prefix;
    equal += high == prefix;
  });
  better = __reduce_add_sync(~0u, better);
  equal = __reduce_add_sync(~0u, equal);
  if (threadIdx.x % 32 == 0) sums[0][threadIdx.x / 32] = better, sums[1][threadIdx.x / 32] = equal;
  __syncthreads();
  uint2* const counts = space.counts + place.row * space.chunks;
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) better += sums[0][w], equal += sums[1][w];
    counts[place.chunk] = make_uint2(better, equal);
  }
  if (!last_of_row(state, space.chunks)) return;
  uint2 total = make_uint2(0, 0);
#pragma unroll 1
  for (int64_t from = 0; from < space.chunks; from += kThreads) {
    const int64_t i = from + threadIdx.x;
    const uint2 mine = i < space.chunks ? __ldcg(counts + i) : make_uint2(0, 0);
    __syncthreads();
    const uint32_t x = sum_before<kThreads>(mine.x, sums[0]) + total.x;
    const uint32_t y = sum_before<kThreads>(mine.y, sums[1]) + total.y;
    if (i < space.chunks) counts[i] = make_uint2(x, y);
    __shared__ uint2 end;
    if (threadIdx.x == kThreads - 1) end = make_uint2(x + mine.x, y + mine.y);
    __syncthreads();
    total = end;
  }
}

// Writes what is kept, at its rank by index. A warp has 512 elements that follow each other.
template <class Key>
__global__ void __launch_bounds__(kThreads)
    topk_filter_write(const __grid_constant__ TopkArgs args,
                      const __grid_constant__ KeyCodec<Key> codec,
                      const __grid_constant__ FilterSpace space) {
  __shared__ uint32_t sums[2][kWarps];
  const FilterPlace place(args, space);
  const FilterRow& state = space.rows[place.row];
  const auto prefix = static_cast<Key>(state.prefix);
  const int shift = state.shift;
  const uint32_t rest = state.rest;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned below = (1u << lane) - 1;
  const Key* const source =
      static_cast<const Key*>(args.input) + RowPlace(place.row, args.inner).start(args.in);
  Key* const values = static_cast<Key*>(space.values) + place.row * args.k;
  uint32_t* const columns = space.columns + place.row * args.k;
  uint2 before =
      space.chunks > 1 ? space.counts[place.row * space.chunks + place.chunk] : make_uint2(0, 0);
#pragma unroll 1
  for (int64_t tile = place.begin; tile < place.end; tile += t::kTile) {
    const int64_t mine = tile + warp * (t::kItems * 32) + lane;
    Key bits[t::kItems];
    uint32_t better = 0, equal = 0;  // bit u: of element u
#pragma unroll
    for (int u = 0; u < t::kItems; ++u) {
      const int64_t at = mine + u * 32;
      bits[u] = at < place.end ? source[at] : Key(0);
    }
    uint32_t better_count = 0, equal_count = 0;  // of the warp
#pragma unroll
    for (int u = 0; u < t::kItems; ++u) {
      const Key high = static_cast<Key>(codec.encode(bits[u]) >> shift);
      const bool here = mine + u * 32 < place.end;
      better |= static_cast<uint32_t>(here && high > prefix) << u;
      equal |= static_cast<uint32_t>(here && high == prefix) << u;
    }
    better_count = __reduce_add_sync(~0u, static_cast<uint32_t>(__popc(better)));
    equal_count = __reduce_add_sync(~0u, static_cast<uint32_t>(__popc(equal)));
    if (lane == 0) sums[0][warp] = better_count, sums[1][warp] = equal_count;
    __syncthreads();
    uint2 next = before;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before.x += sums[0][w], before.y += sums[1][w];
      next.x += sums[0][w], next.y += sums[1][w];
    }
    const bool any = better_count > 0 || (equal_count > 0 && before.y < rest);
#pragma unroll
    for (int u = 0; any && u < t::kItems; ++u) {
      const unsigned betters = __ballot_sync(~0u, better >> u & 1);
      const unsigned equals = __ballot_sync(~0u, equal >> u & 1);
      const uint32_t tied = before.y + __popc(equals & below);
      if ((better >> u & 1) || ((equal >> u & 1) && tied < rest)) {
        const uint32_t to = before.x + __popc(betters & below) + (tied < rest ? tied : rest);
        values[to] = bits[u];
        columns[to] = static_cast<uint32_t>(mine + u * 32);
      }
      before.x += __popc(betters), before.y += __popc(equals);
    }
    before = next;
    __syncthreads();  // sums are read until here
  }
}

template <class Key>
cudaError_t start(const TopkArgs& args, const FilterSpace& space, cudaStream_t stream) {
  const auto codec = make_codec<Key>(args.dtype, args.largest);
  const LaunchShape clear{dim3(264), dim3(kThreads)};
  const LaunchShape shape{dim3(static_cast<unsigned>(args.rows * space.chunks)), dim3(kThreads)};
  auto code = launch(topk_filter_clear, clear, stream, space.rows, args.rows, space.bins,
                     args.rows * space.bins_per_row);
  constexpr int kBits = sizeof(Key) * 8;
  for (int left = kBits; left > 0 && code == cudaSuccess;) {
    const int width = left < t::kDigitBits ? left : t::kDigitBits;
    const bool first = left == kBits;
    left -= width;
    code = launch(topk_filter_digit<Key>, shape, stream, args, codec, space, left, width, first);
  }
  if (space.chunks > 1 && code == cudaSuccess)
    code = launch(topk_filter_count<Key>, shape, stream, args, codec, space);
  if (code != cudaSuccess) return code;
  return launch(topk_filter_write<Key>, shape, stream, args, codec, space);
}

// Result slot i of a row: the i-th of its sorted positions, which may lie where it is written.
__global__ void __launch_bounds__(kThreads)
    topk_filter_emit(const __grid_constant__ FilterEmit emit, int bytes, bool wide_index) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= emit.rows * emit.k) return;
  const int64_t row = at / emit.k, rank = at - row * emit.k, from = row * emit.pitch + rank;
  int64_t index = wide_index ? static_cast<const int64_t*>(emit.positions)[from]
                             : static_cast<const int32_t*>(emit.positions)[from];
  if (emit.columns) index = emit.columns[row * emit.k + index];
  const int64_t outer = row / emit.inner;
  const int64_t to = (outer * emit.k + rank) * emit.inner + (row - outer * emit.inner);
  if (wide_index)
    static_cast<int64_t*>(emit.indices)[to] = index;
  else
    static_cast<int32_t*>(emit.indices)[to] = static_cast<int32_t>(index);
  if (!emit.sorted) return;
  if (bytes == 1)
    static_cast<uint8_t*>(emit.values)[to] = static_cast<const uint8_t*>(emit.sorted)[from];
  else if (bytes == 2)
    static_cast<uint16_t*>(emit.values)[to] = static_cast<const uint16_t*>(emit.sorted)[from];
  else if (bytes == 4)
    static_cast<uint32_t*>(emit.values)[to] = static_cast<const uint32_t*>(emit.sorted)[from];
  else
    static_cast<uint64_t*>(emit.values)[to] = static_cast<const uint64_t*>(emit.sorted)[from];
}

}  // namespace

cudaError_t launch_topk_filter(const TopkArgs& args, const FilterSpace& space,
                               cudaStream_t stream) {
  switch (dtype_bytes(args.dtype)) {
    case 1:
      return start<uint8_t>(args, space, stream);
    case 2:
      return start<uint16_t>(args, space, stream);
    case 4:
      return start<uint32_t>(args, space, stream);
    default:
      return start<uint64_t>(args, space, stream);
  }
}

cudaError_t launch_topk_emit(const FilterEmit& emit, int bytes, bool wide_index,
                             cudaStream_t stream) {
  const int64_t blocks = (emit.rows * emit.k + kThreads - 1) / kThreads;
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads)};
  return launch(topk_filter_emit, shape, stream, emit, bytes, wide_index);
}

}  // namespace gpuprims
