// A group of lanes (those of one feature row) walks a run of rows, or a chunk of a hub, as one
// stream of edges: batches of kFlight edges start at multiples of kFlight whatever row they belong
// to, so a row's end leaves no lane waiting, and indices are read a batch ahead. The groups of a
// warp go from batch to batch together. Where no group's row ends within the batch its edges are
// added together; otherwise edge by edge, each looking whether it ends its row, so that an end
// costs what it does and nothing of the batch again.
#pragma once
#include "attention/lanes.cuh"

namespace gpuprims::attention {

template <class Body>
struct Stream {
  static constexpr int kFlight = Body::kFlight;
  static constexpr int kFar = 1 << 30;  // beyond every edge of a run: a hub ends its run, outside

  Body& body;
  const Csr& csr;
  int64_t first = 0;   // row that `row` and `rows` count from
  int64_t origin = 0;  // edge that the offsets below count from, a multiple of kFlight
  int rows = 0, row = -1;
  int degree = 0;      // of the row at hand
  int end = 0;         // of the row at hand; before the first, where that begins
  int next = 0;        // end of the row behind it, read early
  int last = 0;        // end of the run
  const bool aligned;  // indices may be read 16 bytes at a time

  __device__ Stream(Body& b, const Csr& c)
      : body(b),
        csr(c),
        aligned(!c.wide_indices && reinterpret_cast<uint64_t>(c.indices) % 16 == 0) {}

  __device__ __forceinline__ int64_t offset(int64_t at) const {
    return load_int(csr.indptr, csr.wide_offsets, at);
  }

  // Of a run that ends in a hub (`cut`) the hub is left out: others walk it.
  __device__ void take_rows(int64_t row0, int64_t row1, bool cut) {
    if (row0 >= row1) return;
    int64_t past = offset(row1);
    if (cut) {
      const int64_t before = offset(row1 - 1);
      if (past - before >= kHubDegree) past = before, --row1;
    }
    start(row0, row1, offset(row0), past);
  }

  __device__ void take_chunk(const Chunk& chunk) {
    const int64_t from = offset(chunk.row), edges = offset(chunk.row + 1) - from;
    const int64_t at = from + chunk.number * kChunk;
    const bool ends = chunk.number == edges / kChunk - 1;
    start(chunk.row, chunk.row + 1, at, ends ? from + edges : at + kChunk);
  }

  __device__ void start(int64_t row0, int64_t row1, int64_t from, int64_t past) {
    first = row0;
    rows = static_cast<int>(row1 - row0);
    if (rows <= 0) return;
    origin = from & ~static_cast<int64_t>(kFlight - 1);
    end = static_cast<int>(from - origin);
    last = static_cast<int>(past - origin);
    next = end_of(0);
    body.fetch_row(first);
  }

  __device__ __forceinline__ int end_of(int which) const {
    if (which >= rows - 1) return last;
    return static_cast<int>(offset(first + which + 1) - origin);
  }

  // Goes to the next row that has edges; rows without edges are written on the way.
  __device__ __forceinline__ bool advance(int at) {
    while (++row < rows) {
      degree = next - end;
      end = next;
      next = end_of(row + 1);
      body.begin_row(first + row);
      if (row + 1 < rows) body.fetch_row(first + row + 1);
      if (degree > 0) return true;
      body.end_row(first + row, 0);
    }
    body.live = false;
    end = at + kFar;  // what the group reads from here on is nobody's
    return false;
  }

  // Indices of the batch at `at`, 0 beyond the run.
  __device__ __forceinline__ void load_indices(unsigned (&source)[kFlight], int at) const {
    const int64_t from = origin + at;
    if (aligned && last - at >= kFlight) {
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
      if (u >= last - at) continue;
      const int64_t node = load_int(csr.indices, csr.wide_indices, from + u);
      source[u] = static_cast<uint64_t>(node) < kNone ? static_cast<unsigned>(node) : kNone;
    }
  }

  __device__ __forceinline__ void walk() {
    int at = 0;
    bool busy = rows > 0;
    body.live = false;  // until the first row begins
    body.begin_none();
    if (!busy || end == 0) busy = advance(at);
    unsigned source[kFlight];
    load_indices(source, at);
#pragma unroll 1
    while (__any_sync(~0u, busy)) {
      typename Body::Batch batch;
      body.gather(batch, source, last - at, origin + at);
      load_indices(source, at + kFlight);
      int left = end - at;
      if (__all_sync(~0u, left > kFlight)) {
        body.add_all(batch);
      } else {
#pragma unroll
        for (int u = 0; u < kFlight; ++u) {
          body.add_one(batch, u);
          if (left != u + 1) continue;
          if (row >= 0) body.end_row(first + row, degree);
          busy = advance(at);
          left = end - at;
        }
      }
      at += kFlight;
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
  body.slot = hub ? static_cast<int>(item) : -1;
  Stream<Body> stream(body, csr);
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
