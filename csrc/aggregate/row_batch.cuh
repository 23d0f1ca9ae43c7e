// The lanes of a row and a batch of its edges in flight: indices -> rows of x, weights, the columns
// that an edge gave.
#pragma once
#include "aggregate/lanes.cuh"

namespace gpuprims {

// An Index of 64 bits holds stored ones of either width.
template <class T, int kVec, Mode kMode, class Index, Shape kShape = Shape::usual>
struct RowBatch {
  using Acc = typename Math<T>::Acc;
  static constexpr int kOwned = kLaneBytes / sizeof(T);
  static constexpr int kLoads = kOwned / kVec;
  static constexpr int kIndexBytes = sizeof(Index);
  static constexpr int kRowWords = kLoads * Packed<T, kVec>::kWords;  // registers of an edge
  static constexpr bool kExtreme = kMode == Mode::extreme || kMode == Mode::weighted_extreme;
  static constexpr bool kGrad = kMode == Mode::extreme_grad;
  static constexpr bool kPlain = kMode == Mode::sum || kMode == Mode::mean || kMode == Mode::affine;
  static constexpr bool kBits = kShape == Shape::bits;
  static constexpr bool kWeighted = !kPlain && kMode != Mode::extreme && !kBits;
  // Without weights, a factor of 1 is exact: rows that are not whole vectors have one kernel for
  // both. That of sums has fewer edges in flight, as it would spill.
  static constexpr bool kMayLackWeights = kWeighted && (kGrad || kLoads > 1);
  // Edges in flight a group. A batch holds that many rows of x in registers.
  static constexpr int kWords = kRowWords + (kExtreme && sizeof(T) == 2 ? 4 : 0) +
                                (kExtreme && kWeighted ? 4 : 0) + (kGrad && kWeighted ? 4 : 0) +
                                (kMayLackWeights && kMode == Mode::weighted_sum ? 1 : 0);
  // The time of a graph of few warps is that of its longest row, whose batches are a latency each.
  static constexpr int kFlight = kShape == Shape::small || kShape == Shape::deep ? 16
                                 : kWords > 8 || kLoads == 8                     ? 2
                                 : kWords > 4 || sizeof(Index) == 8              ? 4
                                                                                 : 8;
  static constexpr unsigned kAll = ~0u >> (32 - kFlight);
  // The most threads of a block, and so the registers of one: 24 warps of 80 hold 96 KB of rows in
  // flight on a multiprocessor, which is twice what L2 needs; 20 of 96 hold 80 KB.
  static constexpr int kThreads = 32 * (kShape == Shape::deep             ? kDeepRowWarps
                                        : kPlain && kMode != Mode::affine ? kMostRowWarps
                                        : kBits                           ? kBitsRowWarps
                                        : kGrad                           ? kGradRowWarps
                                                                          : kWeightedRowWarps);

  struct Batch {
    Packed<T, kVec> row[kFlight][kLoads];
    Acc weight[kWeighted ? kFlight : 1];
    // Bit k: column k took this edge; kBits: of each edge kVec bits, next to each other, as
    // registers are short where edges are in flight.
    unsigned taken[kBits ? kVec * kFlight / 32 : kGrad ? kFlight : 1];
  };

  // What a batch's loads of rows wait for, read a batch before.
  struct Ahead {
    Index source[kFlight];
    unsigned taken[kGrad ? kFlight : 1];  // as above
  };

  const AggregateArgs& a;
  const Lanes lanes;
  const T* x;               // of the lane's first column
  const int64_t tile_at;    // the tile's first column
  const int column, width;  // the lane's first column, and how many there are, in the tile
  Acc value[kOwned];
  int position[kExtreme ? kOwned : 1];  // number of the edge; -1: none yet

  // Lanes beyond the last column read the first one: no load needs a guard where a lane has one.
  __device__ RowBatch(const AggregateArgs& args, int64_t tile, int widest)
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
  __device__ __forceinline__ void gather(Batch& batch, Ahead& ahead, unsigned valid,
                                         const EdgeOf& edge_of) const {
    Index(&source)[kFlight] = ahead.source;
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
    if constexpr (kBits) {
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        const unsigned own = there >> u & 1 ? ahead.taken[u] : bad >> u & 1 ? (1u << kVec) - 1 : 0;
        unsigned& word = batch.taken[u * kVec / 32];
        word = u * kVec % 32 == 0 ? own : word | own << u * kVec % 32;
        batch.row[u][0] = Packed<T, kVec>::load_if(own, row_of_x(source[u]));
      }
    }
    if constexpr (kWeighted) {
      // In turns, so that each kind's loads are in flight together. What is not there has id 0.
      int64_t id[kFlight];
      const bool by_id = !kMayLackWeights || a.edge_weight || (kGrad && a.flag);
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
#pragma unroll
        for (int u = 0; u < kFlight; ++u)
          batch.taken[u] = (there & ~bad) >> u & 1 ? ahead.taken[u] : 0;
      }
      if constexpr (kExtreme) {
#pragma unroll
        for (int u = 0; u < kFlight; ++u) batch.weight[u] *= sign();
      }
    }
    // A column takes one edge of a row: few lanes have any of an edge's, and the others' sectors
    // are not read.
    if constexpr (kGrad && kWeighted)
      load_rows(batch, source, [&](int u, int i) {
        return (batch.taken[u] >> (i * kVec) & ((1u << kVec) - 1)) != 0;
      });
    if (bad & valid) [[unlikely]] {
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        if (!(bad >> u & 1)) continue;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) batch.row[u][i] = Packed<T, kVec>::not_numbers();
        if constexpr (kGrad && !kBits) batch.taken[u] = ~0u;
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

  // The lane's columns that took the edge at a place in the graph.
  __device__ __forceinline__ unsigned taken_at(int64_t edge) const {
    const unsigned* const words = a.taken + edge * a.taken_words;
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      // Lanes beyond the last column look at the first one, as in x; nothing is stored of theirs.
      const int at = (column < width ? column : 0) + i * lanes.count * kVec;
      if (kLoads == 1 || owns(i))
        bits |= (__ldg(words + at / 32) >> at % 32 & ((1u << kVec) - 1)) << (i * kVec);
    }
    return bits;
  }
};

}  // namespace gpuprims
