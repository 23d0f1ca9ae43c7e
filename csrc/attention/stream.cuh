// A group of lanes (those of one feature row) walks a run of rows, or a chunk of a hub, as one
// stream of edges: batches of kFlight edges start at multiples of kFlight whatever row they belong
// to, so a row's end leaves no lane waiting, and indices are read a batch ahead. As in
// csrc/aggregate/row_stream.cuh, but the groups of a warp go from batch to batch together, for the
// shuffles of the gradient.
#pragma once
#include "attention/lanes.cuh"

namespace gpuprims::attention {

template <class Body>
struct Stream {
  static constexpr int kFlight = Body::kFlight;
  static constexpr unsigned kAll = (1u << kFlight) - 1;
  static constexpr int kFar = 1 << 30;  // beyond every edge of a run: a hub ends its run

  Body& body;
  const Csr& csr;
  int64_t first = 0;   // row that `row` and `rows` count from
  int64_t origin = 0;  // edge that the offsets below count from, a multiple of kFlight
  int rows = 0, row = -1;
  int longest;             // rows from this degree on are cut: others walk them
  int begin = 0, end = 0;  // edges of the row at hand
  int next = 0;            // end of the row behind it, read early
  int limit = 0;           // end of the graph's edges
  const bool aligned;      // indices may be read 16 bytes at a time

  __device__ Stream(Body& b, const Csr& c)
      : body(b),
        csr(c),
        longest(kFar),
        aligned(!c.wide_indices && reinterpret_cast<uint64_t>(c.indices) % 16 == 0) {}

  __device__ void take_rows(int64_t row0, int64_t row1, bool cut) {
    first = row0;
    rows = static_cast<int>(row1 - row0);
    if (cut) longest = static_cast<int>(kHubDegree);
    if (rows <= 0) return;
    start_at(load_int(csr.indptr, csr.wide_offsets, first));
    next = end_of(0);
  }

  __device__ void take_chunk(const Chunk& chunk) {
    first = chunk.row;
    rows = 1;
    const int64_t from = load_int(csr.indptr, csr.wide_offsets, first);
    const int64_t degree = load_int(csr.indptr, csr.wide_offsets, first + 1) - from;
    const bool last = chunk.number == degree / kChunk - 1;
    start_at(from + chunk.number * kChunk);
    next = begin + static_cast<int>(last ? degree - chunk.number * kChunk : kChunk);
  }

  __device__ void start_at(int64_t edge) {
    origin = edge & ~static_cast<int64_t>(kFlight - 1);
    begin = end = static_cast<int>(edge - origin);
    limit = csr.edges - origin < kFar ? static_cast<int>(csr.edges - origin) : kFar;
    body.fetch_row(first);
  }

  __device__ __forceinline__ int end_of(int which) const {
    if (which >= rows) return end;
    const int64_t at = load_int(csr.indptr, csr.wide_offsets, first + which + 1) - origin;
    return at < kFar ? static_cast<int>(at) : kFar;
  }

  // Goes to the next row that has edges to walk; rows without edges are written on the way.
  __device__ __forceinline__ bool advance() {
    while (++row < rows) {
      begin = end;
      end = next;
      if (row + 1 < rows) next = end_of(row + 1);
      body.begin_row(first + row);
      if (row + 1 < rows) body.fetch_row(first + row + 1);
      const int degree = end - begin;
      if (degree >= longest) continue;
      if (degree > 0) return true;
      body.end_row(first + row, 0);
    }
    return false;
  }

  // Indices of the batch at `at`, 0 beyond the graph's edges.
  __device__ __forceinline__ void load_indices(unsigned (&source)[kFlight], int at) const {
    const int64_t from = origin + at;
    if (aligned && at + kFlight <= limit) {
      constexpr int kStep = kFlight < 4 ? kFlight : 4;
      const int* const indices = static_cast<const int*>(csr.indices) + from;
#pragma unroll
      for (int u = 0; u < kFlight; u += kStep)
        load_vector<int, kStep>(reinterpret_cast<int*>(source) + u, indices + u);
      return;
    }
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
      source[u] = 0;
      if (at + u >= limit) continue;
      const int64_t node = load_int(csr.indices, csr.wide_indices, from + u);
      source[u] = static_cast<uint64_t>(node) < kNone ? static_cast<unsigned>(node) : kNone;
    }
  }

  __device__ __forceinline__ void walk() {
    bool busy = advance();
    int at = begin;  // next edge to take
    int batch_at = at & ~(kFlight - 1);
    unsigned source[kFlight];
    load_indices(source, batch_at);
#pragma unroll 1
    while (__any_sync(~0u, busy)) {
      // Edges behind the row at hand are loaded too: they mostly belong to the next ones.
      unsigned wanted = busy ? kAll & (~0u << (at - batch_at)) : 0;
      if (batch_at + kFlight > limit) wanted &= ~(~0u << (limit > batch_at ? limit - batch_at : 0));
      typename Body::Batch batch;
      body.gather(batch, source, wanted, origin + batch_at);
      load_indices(source, batch_at + kFlight);
      bool inside = busy;
#pragma unroll 1
      while (__any_sync(~0u, inside)) {
        const int stop = end - batch_at < kFlight ? end - batch_at : kFlight;
        const unsigned take = inside ? (~0u << (at - batch_at)) & ~(~0u << stop) : 0;
        body.add(batch, take);
        if (!inside) continue;
        at = batch_at + stop;
        inside = false;
        if (at < end) continue;
        body.end_row(first + row, end - begin);
        busy = advance();
        at = begin;
        inside = busy && at < batch_at + kFlight;
      }
      const int following = at & ~(kFlight - 1);
      if (busy && following != batch_at + kFlight) load_indices(source, following);  // a hub
      batch_at = busy ? following : batch_at;
    }
  }
};

// A run of rows, or a chunk of a hub, a group.
template <class Body>
__device__ __forceinline__ void walk_all(Body& body, const Csr& csr, const Hubs& hubs,
                                         const Lanes& lanes, int chunk_blocks) {
  const bool hub = static_cast<int>(blockIdx.x) < chunk_blocks;
  const int64_t block = hub ? blockIdx.x : blockIdx.x - chunk_blocks;
  const int64_t item = (block * kWarps + threadIdx.x / 32) * lanes.groups() + lanes.group();
  Stream<Body> stream(body, csr);
  body.slot = hub ? static_cast<int>(item) : -1;
  if (hub) {
    if (item < static_cast<int64_t>(*hubs.count)) stream.take_chunk(hubs.chunks[item]);
  } else if (item < hubs.runs) {
    stream.take_rows(hubs.starts[item], hubs.starts[item + 1], chunk_blocks > 0);
  }
  stream.walk();
}

// Bad offsets: every row is filled.
template <class Body>
__device__ __forceinline__ void fill_all(Body& body, const Csr& csr, const Lanes& lanes) {
  int64_t row = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) * lanes.groups() +
                lanes.group();
  for (; row < csr.rows; row += static_cast<int64_t>(gridDim.x) * kWarps * lanes.groups())
    body.fill_row(row);
}

}  // namespace gpuprims::attention
