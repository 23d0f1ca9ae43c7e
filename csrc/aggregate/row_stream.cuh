// A group of lanes walks a run of short rows as one stream of edges: batches of kFlight edges start
// at multiples of kFlight whatever row they belong to, so a row's end leaves no lane waiting, and
// indices are read 16 bytes at a time, a batch ahead. Long rows and hubs in the run are skipped:
// the whole warp has walked them.
#pragma once
#include "aggregate/row_warp.cuh"

namespace gpuprims {

template <class Group>
struct RowStream;

template <class T, int kVec, Mode kMode, class Index, Shape kShape>
struct RowStream<RowGroup<T, kVec, kMode, Index, kShape>> {
  using Group = RowGroup<T, kVec, kMode, Index, kShape>;
  static constexpr int kFlight = Group::kFlight;
  static constexpr unsigned kAll = Group::kAll;
  static constexpr int kFar = 1 << 30;  // beyond every edge of a run

  Group& group;
  const AggregateArgs& a;
  const int long_degree;
  const int64_t first;  // row that `row` and `rows` count from
  const int rows;
  int row = -1;    // the one at hand
  int64_t origin;  // edge that the offsets below count from, a multiple of kFlight
  int begin, end;  // edges of the row at hand
  int next;        // end of the row behind it, read early

  __device__ RowStream(Group& g, int64_t row0, int64_t row1, int longest)
      : group(g), a(g.a), long_degree(longest), first(row0), rows(static_cast<int>(row1 - row0)) {
    const int64_t from = load_int(a.csr.indptr, a.csr.wide_offsets, first);
    origin = from & ~static_cast<int64_t>(kFlight - 1);
    begin = end = static_cast<int>(from - origin);
    next = end_of(0);
  }

  __device__ __forceinline__ int end_of(int which) const {
    if (which >= rows) return end;
    const int64_t at = load_int(a.csr.indptr, a.csr.wide_offsets, first + which + 1) - origin;
    return at < kFar ? static_cast<int>(at) : kFar;
  }

  // Goes to the next row that has edges to walk; rows without edges are written on the way.
  __device__ __forceinline__ bool advance() {
    while (++row < rows) {
      begin = end;
      end = next;
      next = end_of(row + 1);
      const int degree = end - begin;
      if (degree >= long_degree) continue;
      if (degree > 0) return true;
      group.store_row(first + row, 0, 0);  // the group was reset
    }
    return false;
  }

  // Of the batch at `at`; indices are 0 beyond the graph's edges.
  __device__ __forceinline__ void load_ahead(typename Group::Ahead& ahead, int at) const {
    if (sizeof(Index) == 8 && !a.csr.wide_indices)
      load_stored<int32_t>(ahead.source, at);
    else
      load_stored<Index>(ahead.source, at);
    if constexpr (Group::kGrad) {
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        ahead.taken[u] = origin + at + u < a.csr.edges ? group.taken_at(origin + at + u) : 0;
    }
  }

  // As they are stored.
  template <class Stored>
  __device__ __forceinline__ void load_stored(Index (&source)[kFlight], int at) const {
    constexpr int kBytes = kFlight * sizeof(Stored) < 16 ? kFlight * sizeof(Stored) : 16;
    constexpr int kStep = kBytes / sizeof(Stored);
    const Stored* const from = static_cast<const Stored*>(a.csr.indices) + origin + at;
    if (origin + at + kFlight <= a.csr.edges) {
      Stored loaded[kFlight];
#pragma unroll
      for (int u = 0; u < kFlight; u += kStep) load_vector<Stored, kStep>(loaded + u, from + u);
#pragma unroll
      for (int u = 0; u < kFlight; ++u) source[u] = loaded[u];
    } else {
#pragma unroll
      for (int u = 0; u < kFlight; ++u) source[u] = origin + at + u < a.csr.edges ? from[u] : 0;
    }
  }

  __device__ __forceinline__ void walk() {
    group.reset();
    if (!advance()) return;
    int at = begin;  // next edge to take
    int batch_at = at & ~(kFlight - 1);
    typename Group::Ahead ahead;
    load_ahead(ahead, batch_at);
#pragma unroll 1
    while (true) {
      // Edges behind the row at hand are loaded too: they mostly belong to the next ones.
      const unsigned valid = kAll & (~0u << (at - batch_at));
      typename Group::Batch batch;
      group.gather(batch, ahead, in_graph(valid, batch_at),
                   [&](int u) { return origin + batch_at + u; });
      load_ahead(ahead, batch_at + kFlight);
      if (valid == kAll && end > batch_at + kFlight) {
        group.add(batch, kAll, batch_at - begin, 1);
        batch_at = at = batch_at + kFlight;
        continue;
      }
      bool more = true;
      while (true) {
        const int stop_at = end - batch_at < kFlight ? end - batch_at : kFlight;
        group.add(batch, (~0u << (at - batch_at)) & ~(~0u << stop_at), batch_at - begin, 1);
        at = batch_at + stop_at;
        if (at < end) break;
        group.store_row(first + row, origin + begin, end - begin);
        group.reset();
        more = advance();
        at = begin;
        if (!more || at >= batch_at + kFlight) break;
      }
      if (!more) return;
      const int wanted = at & ~(kFlight - 1);
      if (wanted != batch_at + kFlight) load_ahead(ahead, wanted);  // long rows were skipped
      batch_at = wanted;
    }
  }

  __device__ __forceinline__ unsigned in_graph(unsigned valid, int batch_at) const {
    const int64_t left = a.csr.edges - origin - batch_at;
    return left >= kFlight ? valid : valid & ~(~0u << static_cast<int>(left));
  }
};

}  // namespace gpuprims
