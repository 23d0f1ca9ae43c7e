// What sum, extreme and extreme_grad share: lanes over columns, a batch of edges in flight, the
// results of a row.
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
#include "aggregate/lanes.cuh"

namespace gpuprims {

// An Index of 64 bits holds stored ones of either width.
template <class T, int kVec, Mode kMode, class Index, Shape kShape = Shape::usual>
struct RowGroup {
  using Acc = typename Math<T>::Acc;
  static constexpr int kOwned = kLaneBytes / sizeof(T);
  static constexpr int kLoads = kOwned / kVec;
  static constexpr int kRowWords = kLoads * Packed<T, kVec>::kWords;  // registers of an edge
  static constexpr bool kExtreme = kMode == Mode::extreme || kMode == Mode::weighted_extreme;
  static constexpr bool kGrad = kMode == Mode::extreme_grad;
  static constexpr bool kPlain = kMode == Mode::sum || kMode == Mode::mean;
  static constexpr bool kWeighted = !kPlain && kMode != Mode::extreme;
  // Without weights, a factor of 1 is exact: rows that are not whole vectors have one kernel for
  // both. That of sums has fewer edges in flight, as it would spill.
  static constexpr bool kMayLackWeights = kWeighted && (kGrad || kLoads > 1);
  // Edges in flight a group. A batch holds that many rows of x in registers.
  // Of gradients of extremes, ids of edges are loaded before rows, and 4 bytes a column.
  static constexpr int kWords =
      (kGrad ? kOwned : kRowWords) + (kExtreme && sizeof(T) == 2 ? 4 : 0) +
      (kExtreme && kWeighted ? 4 : 0) + (kMayLackWeights && kMode == Mode::weighted_sum ? 1 : 0);
  // The time of a graph of few warps is that of its longest row, whose batches are a latency each.
  static constexpr int kFlight = kShape == Shape::small             ? 16
                                 : kWords > 8 || kLoads == 8        ? 2
                                 : kWords > 4 || sizeof(Index) == 8 ? 4
                                                                    : 8;
  static constexpr unsigned kAll = ~0u >> (32 - kFlight);
  // The most threads of a block, and so the registers of one: 24 warps of 80 hold 96 KB of rows in
  // flight on a multiprocessor, which is twice what L2 needs; 20 of 96 hold 80 KB.
  static constexpr int kThreads =
      32 * (kPlain  ? kMostRowWarps
            : kGrad ? (sizeof(T) == 4 && kLoads == 1 ? kGradRowWarps : 16)
                    : kWeightedRowWarps);

  struct Batch {
    Packed<T, kVec> row[kFlight][kLoads];
    Acc weight[kWeighted ? kFlight : 1];
    unsigned taken[kGrad ? kFlight : 1];  // bit k: column k took this edge
  };

  const AggregateArgs& a;
  const Lanes lanes;
  const T* x;               // of the lane's first column
  const int64_t tile_at;    // the tile's first column
  const int column, width;  // the lane's first column, and how many there are, in the tile
  Acc value[kOwned];
  int position[kExtreme ? kOwned : 1];  // number of the edge; -1: none yet

  // Lanes beyond the last column read the first one: no load needs a guard where a lane has one.
  __device__ RowGroup(const AggregateArgs& args, int64_t tile, int widest)
      : a(args),
        lanes(Lanes::of<kOwned, kVec>(tile, args.features, widest)),
        tile_at(tile * widest * kOwned),
        column((threadIdx.x & (lanes.count - 1)) * kVec),
        width(static_cast<int>(std::min<int64_t>(args.features - tile_at, widest * kOwned))) {
    x = static_cast<const T*>(a.x) + tile_at + (column < width ? column : 0);
  }

  __device__ bool owns(int load) const { return column + load * lanes.count * kVec < width; }
  __device__ int64_t place(int64_t row, int load) const {
    return row * a.features + tile_at + column + load * lanes.count * kVec;
  }

  // min is the max of the negated.
  __device__ __forceinline__ Acc sign() const { return a.reduce == Reduce::min ? Acc(-1) : Acc(1); }

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int k = 0; k < kOwned; ++k) value[k] = kExtreme ? -INFINITY : Acc(0);
    if constexpr (kExtreme) {
#pragma unroll
      for (int k = 0; k < kOwned; ++k) position[k] = -1;
    }
  }

  __device__ __forceinline__ const T* row_of_x(Index source) const {
    if constexpr (sizeof(Index) == 4)  // one multiply-add of 32 bits: rows lie within kMostStride
      return reinterpret_cast<const T*>(
          reinterpret_cast<const char*>(x) +
          static_cast<uint64_t>(static_cast<uint32_t>(source)) *
              static_cast<uint32_t>(a.x_stride * static_cast<int64_t>(sizeof(T))));
    else
      return x + source * a.x_stride;
  }

  // Edges whose index is out of range.
  __device__ __forceinline__ unsigned bad_sources(const Index (&source)[kFlight]) const {
    using Unsigned = typename UnsignedOf<Index>::type;
    Unsigned largest = 0;
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
      const auto one = static_cast<Unsigned>(source[u]);
      largest = one > largest ? one : largest;
    }
    if (static_cast<uint64_t>(largest) < static_cast<uint64_t>(a.csr.columns)) return 0;
    unsigned bad = 0;
#pragma unroll
    for (int u = 0; u < kFlight; ++u)
      if (static_cast<uint64_t>(source[u]) >= static_cast<uint64_t>(a.csr.columns)) bad |= 1u << u;
    return bad;
  }

  // Starts the loads of a batch. edge_of(u) is the place of edge u in the graph; bits of `valid`
  // say which edges are there, and what the batch holds of others is not to be looked at. An edge
  // whose index or id is out of range counts as NaN.
  template <class EdgeOf>
  __device__ __forceinline__ void gather(Batch& batch, Index (&source)[kFlight], unsigned valid,
                                         const EdgeOf& edge_of) const {
    unsigned bad = bad_sources(source);
    const unsigned there = valid & ~bad;
    // What is not wanted is row 0: loads under conditions would keep their registers from other
    // uses before.
    if (there != kAll) {
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        if (!(there >> u & 1)) source[u] = 0;
    }
    if constexpr (!kGrad) load_rows(batch, source, [](int, int) { return true; });
    if constexpr (kWeighted) {
      // In turns, so that each kind's loads are in flight together. What is not there has id 0.
      int64_t id[kFlight];
      const bool by_id = kGrad || !kMayLackWeights || a.edge_weight;
#pragma unroll
      for (int u = 0; u < kFlight; ++u) id[u] = by_id && (there >> u & 1) ? edge_of(u) : 0;
      if (by_id && a.csr.edge_ids) load_ids(id);
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        if (static_cast<uint64_t>(id[u]) >= static_cast<uint64_t>(a.csr.edges))
          id[u] = 0, bad |= 1u << u;
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        batch.weight[u] = 1;
        if (!kMayLackWeights || a.edge_weight)
          batch.weight[u] = widen(__ldg(static_cast<const T*>(a.edge_weight) + id[u]));
      }
      if constexpr (kGrad) {
        find_taken(batch, source, id);
#pragma unroll
        for (int u = 0; u < kFlight; ++u)
          if (!((there & ~bad) >> u & 1)) batch.taken[u] = 0;
      }
      if constexpr (kExtreme) {
#pragma unroll
        for (int u = 0; u < kFlight; ++u) batch.weight[u] *= sign();
      }
    }
    // A column takes one edge of a row: few lanes have any of an edge's, and the others' sectors
    // are not read.
    if constexpr (kGrad)
      load_rows(batch, source, [&](int u, int i) {
        return (batch.taken[u] >> (i * kVec) & ((1u << kVec) - 1)) != 0;
      });
    if (bad & valid) [[unlikely]] {
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        if (!(bad >> u & 1)) continue;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) batch.row[u][i] = Packed<T, kVec>::not_numbers();
        if constexpr (kGrad) batch.taken[u] = ~0u;
      }
    }
  }

  template <class Wanted>
  __device__ __forceinline__ void load_rows(Batch& batch, const Index (&source)[kFlight],
                                            const Wanted& wanted) const {
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
      const T* const from = row_of_x(source[u]);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if constexpr (kLoads > 1) batch.row[u][i] = Packed<T, kVec>{};
        if ((kLoads == 1 || owns(i)) && wanted(u, i))
          batch.row[u][i] = Packed<T, kVec>::load(from + i * lanes.count * kVec);
      }
    }
  }

  // Ids of edges. One branch on their width, not one an edge, which would wait for each.
  __device__ __forceinline__ void load_ids(int64_t (&id)[kFlight]) const {
    if (a.csr.wide_offsets) {
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        id[u] = __ldg(static_cast<const long long*>(a.csr.edge_ids) + id[u]);
    } else {
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        id[u] = __ldg(static_cast<const int*>(a.csr.edge_ids) + id[u]);
    }
  }

  // Bits: the columns of each row that took the edge.
  __device__ __forceinline__ void find_taken(Batch& batch, const Index (&source)[kFlight],
                                             const int64_t (&id)[kFlight]) const {
    if (a.csr.wide_offsets) {
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        batch.taken[u] = took<long long>(static_cast<const long long*>(a.arg), source[u], id[u]);
    } else {
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        batch.taken[u] =
            took<int>(static_cast<const int*>(a.arg), source[u], static_cast<int>(id[u]));
    }
  }

  template <class Id>
  __device__ __forceinline__ unsigned took(const Id* arg, Index source, Id id) const {
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      // Lanes beyond the last column look at the first one, as in x; nothing is stored of theirs.
      const int64_t at = kLoads == 1 ? source * a.features + tile_at + (column < width ? column : 0)
                                     : place(source, i);
      if (kLoads == 1 || owns(i)) bits |= equal_mask<Id, kVec>(arg + at, id) << (i * kVec);
    }
    return bits;
  }

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

  // The first NaN is the edge that is taken, or the first of the greatest.
  __device__ __forceinline__ void prefer(int k, Acc candidate, int edge) {
    if (!(candidate <= value[k]) && value[k] == value[k]) position[k] = edge;
    value[k] = larger(value[k], candidate);
  }

  // Indices of the group's next edges; beyond the chunk, of its last one. The compiler may not know
  // `step`: it would keep its multiples for the loop, in the registers of a batch.
  __device__ __forceinline__ void fetch(Index (&source)[kFlight], int64_t begin, int number,
                                        int length, int step) const {
    asm volatile("" : "+r"(step));
    const Index* const indices = static_cast<const Index*>(a.csr.indices) + begin;
#pragma unroll
    for (int u = 0; u < kFlight; ++u, number += step) {
      const int at = number < length ? number : length - 1;
      if constexpr (sizeof(Index) == 8)
        source[u] = load_int(a.csr.indices, a.csr.wide_indices, begin + at);
      else
        source[u] = __ldg(indices + at);
    }
  }

  // The groups of the warp walk a chunk together (log_ways of them), or each group one of its own
  // (log_ways = 0).
  __device__ __forceinline__ void reduce_chunk(int64_t begin, int length, int log_ways) {
    const int way = log_ways > 0 ? lanes.group : 0;
    reduce_way(begin, length, way, log_ways);
    if (log_ways == 0) return;
    for (int distance = lanes.count; distance < 32; distance *= 2) {
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
    Index next[kFlight];
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
        pack.v[j] = narrow<T>(v);
      }
      store<T, kVec>(static_cast<T*>(a.out) + place(row, i), pack);
      if constexpr (kExtreme) {
        if (a.arg_out) {
          for (int j = 0; j < kVec; ++j) {
            const int at = position[i * kVec + j];
            store_arg(place(row, i) + j,
                      degree == 0 ? -1 : edge_id(a.csr, begin + (at < 0 ? 0 : at)));
          }
        }
      }
    }
  }

  __device__ void store_arg(int64_t at, int64_t id) const {
    if (a.csr.wide_offsets)
      static_cast<int64_t*>(a.arg_out)[at] = id;
    else
      static_cast<int32_t*>(a.arg_out)[at] = static_cast<int32_t>(id);
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
        if (kExtreme && a.arg_out) store_arg(at, -1);
      }
    }
  }
};

}  // namespace gpuprims
