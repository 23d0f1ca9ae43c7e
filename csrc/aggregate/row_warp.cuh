// What sum, extreme and extreme_grad share: how batches of edges become the results of a row.
//
// The tree of a sum (a function of the row's degree, F and the element size alone). Features of w
// bytes take L = the power of two >= w / 16 lanes, 32 at most, so that a warp holds W = 32 / L
// groups. A row of less than kLongDegree edges, or any row where W is 1, is added in order,
// starting from +0. A longer one has W partial sums: edge number e goes to sum e mod W, and a
// butterfly (distances 1, 2, .. W / 2 in sums) adds them. A row of at least kHubDegree edges is cut
// every kChunk, each chunk is added as a long row is, and the chunks are added in order. Which lane
// holds which column, how wide its loads and tiles are and how many edges are in flight changes no
// bit.
#pragma once
#include "aggregate/row_batch.cuh"

namespace gpuprims {

template <class T, int kVec, Mode kMode, class Index, Shape kShape = Shape::usual>
struct RowGroup : RowBatch<T, kVec, kMode, Index, kShape> {
  using Base = RowBatch<T, kVec, kMode, Index, kShape>;
  using Base::a, Base::lanes, Base::value, Base::position, Base::owns, Base::place, Base::sign;
  using Base::Base, Base::reset, Base::gather, Base::taken_at, Base::tile_at, Base::column;
  using Base::kExtreme, Base::kGrad, Base::kPlain, Base::kWeighted;
  using Base::kOwned, Base::kLoads, Base::kRowWords, Base::kFlight, Base::kAll;
  using typename Base::Acc;
  using typename Base::Ahead;
  using typename Base::Batch;

  // Takes the edges of a batch whose bits are in `take`, in order; `first` is the number of edge 0,
  // `step` lies between two.
  __device__ __forceinline__ void add(Batch& batch, unsigned take, int first, int step) {
    if constexpr (sizeof(T) == 2) {  // unpacked here and now: ahead of a loop it would spill
#pragma unroll
      for (int u = 0; u < kFlight * kRowWords; ++u)
        asm volatile(""
                     : "+r"(batch.row[u / kRowWords][u % kRowWords / Packed<T, kVec>::kWords]
                                .word[u % Packed<T, kVec>::kWords]));
    }
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
      if (!(take >> u & 1)) continue;
#pragma unroll
      for (int k = 0; k < kOwned; ++k) {
        const Acc element = batch.row[u][k / kVec][k % kVec];
        if constexpr (kPlain) {
          value[k] += element;
        } else if constexpr (kMode == Mode::weighted_sum) {
          value[k] = fused(batch.weight[u], element, value[k]);
        } else if constexpr (kGrad && !kWeighted) {
          if (batch.taken[u * kVec / 32] >> (u * kVec % 32 + k) & 1) value[k] += element;
        } else if constexpr (kGrad) {
          if (batch.taken[u] >> k & 1) value[k] = fused(batch.weight[u], element, value[k]);
        } else {
          prefer(k, (kWeighted ? batch.weight[u] : sign()) * element, first + u * step);
        }
      }
    }
  }

  // One edge of a row without weights; `edge` names it, where positions are wanted.
  template <bool kPositions>
  __device__ __forceinline__ void add_row(Packed<T, kVec>& row, int edge) {
    if constexpr (sizeof(T) == 2) {  // unpacked here and now
#pragma unroll
      for (int i = 0; i < Packed<T, kVec>::kWords; ++i) asm volatile("" : "+r"(row.word[i]));
    }
#pragma unroll
    for (int k = 0; k < kOwned; ++k) {
      if constexpr (!kExtreme)
        value[k] += row[k];
      else if constexpr (kPositions)
        prefer(k, sign() * row[k], edge);
      else
        value[k] = larger(value[k], sign() * row[k]);
    }
  }

  // One edge of a gradient of max and min without weights: the columns whose bits are set.
  __device__ __forceinline__ void add_taken(Packed<T, kVec>& row, unsigned bits) {
    if constexpr (sizeof(T) == 2) {  // as above
#pragma unroll
      for (int i = 0; i < Packed<T, kVec>::kWords; ++i) asm volatile("" : "+r"(row.word[i]));
    }
#pragma unroll
    for (int k = 0; k < kOwned; ++k)
      if (bits >> k & 1) value[k] += row[k];
  }

  // The first NaN is the edge that is taken, or the first of the greatest.
  __device__ __forceinline__ void prefer(int k, Acc candidate, int edge) {
    if (!(candidate <= value[k]) && value[k] == value[k]) position[k] = edge;
    value[k] = larger(value[k], candidate);
  }

  // Indices of the group's next edges; beyond the chunk, of its last one. The compiler may not know
  // `step`: it would keep its multiples for the loop, in the registers of a batch.
  __device__ __forceinline__ void fetch(Ahead& ahead, int64_t begin, int number, int length,
                                        int step) const {
    asm volatile("" : "+r"(step));
    const Index* const indices = static_cast<const Index*>(a.csr.indices) + begin;
#pragma unroll
    for (int u = 0; u < kFlight; ++u, number += step) {
      const int at = number < length ? number : length - 1;
      if constexpr (sizeof(Index) == 8)
        ahead.source[u] = load_int(a.csr.indices, a.csr.wide_indices, begin + at);
      else
        ahead.source[u] = __ldg(indices + at);
      if constexpr (kGrad) ahead.taken[u] = taken_at(begin + at);
    }
  }

  // 2^log_ways groups of the warp walk a chunk together; where a narrow tile leaves it more groups,
  // those do the same again.
  __device__ __forceinline__ void reduce_chunk(int64_t begin, int length, int log_ways) {
    const int way = lanes.group & ((1 << log_ways) - 1);
    reduce_way(begin, length, way, log_ways);
    if (log_ways == 0) return;
    for (int distance = lanes.count; distance < lanes.count << log_ways; distance *= 2) {
#pragma unroll
      for (int k = 0; k < kOwned; ++k) {
        const Acc other = __shfl_xor_sync(~0u, value[k], distance);
        merge(k, other, kExtreme ? __shfl_xor_sync(~0u, position[kExtreme ? k : 0], distance) : 0);
      }
    }
  }

  // Two partial results of a long row.
  __device__ __forceinline__ void merge(int k, Acc other, int other_position) {
    if constexpr (kExtreme) {
      if (beats(other, other_position, value[k], position[k])) position[k] = other_position;
      value[k] = larger(value[k], other);
    } else {
      value[k] += other;
    }
  }

  // Every 2^log_ways-th edge of a chunk, from number `way` on.
  __device__ __forceinline__ void reduce_way(int64_t begin, int length, int way, int log_ways) {
    reset();
    const int ways = 1 << log_ways;
    Ahead next;
    fetch(next, begin, way, length, ways);
#pragma unroll 1
    for (int from = way; from < length; from += kFlight << log_ways) {
      const int left = (length - from + ways - 1) >> log_ways;
      const unsigned valid = left >= kFlight ? kAll : ~(~0u << left);
      Batch batch;
      gather(batch, next, valid, [&](int u) { return begin + from + (u << log_ways); });
      // Indices of the next round arrive while this round's rows are on their way.
      fetch(next, begin, from + (kFlight << log_ways), length, ways);
      if (valid == kAll)
        add(batch, kAll, from, ways);
      else
        add(batch, valid, from, ways);
    }
    if constexpr (kExtreme) {  // every edge of the group is -inf: its first one stands for it
#pragma unroll
      for (int k = 0; k < kOwned; ++k)
        if (position[k] < 0 && way < length) position[k] = way;
    }
  }

  // The row's results; `begin` is the edge that positions count from.
  __device__ __forceinline__ void store_row(int64_t row, int64_t begin, int64_t degree) const {
    if (a.csr.order) row = __ldg(reinterpret_cast<const long long*>(a.csr.order) + row);
    if (static_cast<uint64_t>(row) >= static_cast<uint64_t>(a.csr.rows)) return;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (!owns(i)) continue;
      Pack<T, kVec> pack;
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        Acc v = value[i * kVec + j];
        if constexpr (kExtreme) v = degree == 0 ? Acc(0) : a.reduce == Reduce::min ? -v : v;
        if (kMode == Mode::mean || ((kMode == Mode::weighted_sum || kShape == Shape::small) &&
                                    a.reduce == Reduce::mean && degree > 0))
          v = quotient(v, static_cast<Acc>(degree));
        if (kMode == Mode::affine || kShape == Shape::small)
          if (a.scale) v = affine<T>(a, row, tile_at + column + i * lanes.count * kVec + j, v);
        pack.v[j] = narrow<T>(v);
      }
      store<T, kVec>(static_cast<T*>(a.out) + place(row, i), pack);
      if constexpr (kExtreme)
        if (a.arg_out) store_args<kVec>(place(row, i), begin, position + i * kVec, degree == 0);
    }
  }

  // Edges begin + position, or -1 for a row without edges; name_edges puts their ids there. Like
  // results they leave L2 to rows of x.
  template <int kCount>
  __device__ __forceinline__ void store_args(int64_t at, int64_t begin, const int* from,
                                             bool none) const {
    if (a.csr.wide_offsets)
      store_edges<long long, kCount>(at, begin, from, none);
    else
      store_edges<int, kCount>(at, begin, from, none);
  }
  template <class Edge, int kCount>
  __device__ __forceinline__ void store_edges(int64_t at, int64_t begin, const int* from,
                                              bool none) const {
    constexpr int kMost = 16 / sizeof(Edge), kStep = kCount < kMost ? kCount : kMost;
#pragma unroll
    for (int k = 0; k < kCount; k += kStep) {
      Pack<Edge, kStep> pack;
#pragma unroll
      for (int j = 0; j < kStep; ++j)
        pack.v[j] = static_cast<Edge>(none ? -1 : begin + (from[k + j] < 0 ? 0 : from[k + j]));
      store<Edge, kStep>(static_cast<Edge*>(a.arg_out) + at + k, pack);
    }
  }

  __device__ void store_partial(int64_t slot) const {
    for (int i = 0; i < kLoads; ++i) {
      if (!owns(i)) continue;
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        const int64_t at = place(slot, i) + j;
        static_cast<Acc*>(a.partial)[at] = value[i * kVec + j];
        if constexpr (kExtreme) a.partial_position[at] = position[i * kVec + j];
      }
    }
  }

  __device__ void fill_row(int64_t row) const {  // bad offsets: NaN and -1
    for (int i = 0; i < kLoads; ++i) {
      if (!owns(i)) continue;
      for (int j = 0; j < kVec; ++j) {
        const int64_t at = place(row, i) + j;
        static_cast<T*>(a.out)[at] = not_a_number<T>();
        if (!kExtreme || !a.arg_out) continue;
        if (a.csr.wide_offsets)
          static_cast<int64_t*>(a.arg_out)[at] = -1;
        else
          static_cast<int32_t*>(a.arg_out)[at] = -1;
      }
    }
  }
};

}  // namespace gpuprims
