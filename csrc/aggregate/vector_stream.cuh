// Short rows without weights, in whole vectors: a group of lanes walks a run of
// rows as one stream of edges, in batches of kFlight that start at multiples of kFlight. As
// RowStream, but each edge looks whether it ends its row (2 instructions), so that a batch with
// ends costs a row's end each and nothing else: 11 instructions an edge and group and 30 a row,
// where masks over the batch took 15 and 160 (and 250 with 16-bit elements).
#pragma once
#include "aggregate/row_warp.cuh"

namespace gpuprims {

// A row for edges whose index is out of range.
template <int Bytes>
alignas(16) __device__ const unsigned kNotNumbers[4] = {
    Bytes == 2 ? 0x7fff7fffu : 0x7fffffffu, Bytes == 2 ? 0x7fff7fffu : 0x7fffffffu,
    Bytes == 2 ? 0x7fff7fffu : 0x7fffffffu, Bytes == 2 ? 0x7fff7fffu : 0x7fffffffu};

template <class Group>
struct VectorStream;

template <class T, int kVec, Mode kMode, Shape kShape>
struct VectorStream<RowGroup<T, kVec, kMode, int32_t, kShape>> {
  using Group = RowGroup<T, kVec, kMode, int32_t, kShape>;
  using Row = Packed<T, kVec>;
  static constexpr bool kGrad = Group::kGrad;
  static constexpr int kFlight = Group::kFlight;
  static constexpr int kMine = kGrad ? kVec * kFlight / 32 : 1;
  static constexpr int kFar = 1 << 30;  // beyond every edge of a run
  static constexpr int kJump = 2 * kFlight;
  static constexpr int kPart = 4;

  Group& group;
  const AggregateArgs& a;
  int64_t from;            // the run's first edge
  const int* offsets;      // low words of the run's
  T* out;                  // of the lane's columns: what `place` counts from
  const int* order;        // low words of the run's places, or null
  const T* scale;          // what `place` counts from
  unsigned place, places;  // of the row at hand; those below `places` are written
  unsigned next_place;     // of the row behind it, read early, where rows have an order
  T factor = T();          // affine: of the row at hand
  int degree;              // of the row at hand
  int rows, row = -1;
  // Offsets are the low 32 bits of the graph's: those of a run lie closer together than 2^31, as
  // long rows are not walked here, and one at the run's end is left out.
  int end;                // of the row at hand
  int next;               // end of the row behind it, read early
  int last;               // end of the run
  int at;                 // the batch's first edge
  const int32_t* ahead;   // indices of the batch to come
  const unsigned* taken;  // gradients of max and min: bits of the lane's columns in that batch
  int taken_from;         // which bits of a word those are

  __device__ VectorStream(Group& g, int64_t row0, int64_t row1, int long_degree)
      : group(g),
        a(g.a),
        from(load_int(g.a.csr.indptr, g.a.csr.wide_offsets, row0)),
        rows(static_cast<int>(row1 - row0)) {
    const int64_t before = load_int(a.csr.indptr, a.csr.wide_offsets, row1 - 1);
    const int64_t past = load_int(a.csr.indptr, a.csr.wide_offsets, row1);
    const bool drop = past - before >= long_degree;
    rows -= drop;
    last = static_cast<int>(drop ? before : past);
    offsets = static_cast<const int*>(a.csr.indptr) + (a.csr.wide_offsets ? 2 * row0 : row0);
    order = a.csr.order ? reinterpret_cast<const int*>(a.csr.order + row0) : nullptr;
    out = static_cast<T*>(a.out) + g.place(order ? 0 : row0, 0);
    if constexpr (kMode == Mode::affine)
      scale = static_cast<const T*>(a.scale) + (order ? 0 : row0);
    places = !g.owns(0) ? 0 : order ? static_cast<unsigned>(a.csr.rows) : ~0u;
    end = static_cast<int>(from);
    next = end_of(0);
    next_place = order ? __ldg(order) : 0;
    // `at` and `ahead` move together from here on.
    at = end & -kFlight;
    ahead = static_cast<const int32_t*>(a.csr.indices) + (from & -static_cast<int64_t>(kFlight));
    if constexpr (kGrad) {
      // Lanes beyond the last column look at the first one's; nothing is stored of theirs.
      const int column = g.column < g.width ? g.column : 0;
      taken = a.taken + (from & -static_cast<int64_t>(kFlight)) * a.taken_words + column / 32;
      taken_from = column % 32;
    }
  }

  __device__ __forceinline__ int end_of(int which) const {
    if (which >= rows) return end;
    return __ldg(at_offset(offsets, which + 1, a.csr.wide_offsets ? 8 : 4));
  }

  template <bool kEmpty, bool kPositions>
  __device__ __forceinline__ void store_row() const {
    if (place >= places) return;
    Pack<T, kVec> pack;
    Row bias;
    if constexpr (kMode == Mode::affine) {
      int column = static_cast<int>(group.x - static_cast<const T*>(a.x));
      asm volatile("" : "+r"(column));  // loaded here and now: kept, it would spill
      if (a.bias) bias = Row::load(static_cast<const T*>(a.bias) + column);
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      auto v = group.value[k];
      if constexpr (kEmpty) v = 0;
      if constexpr (kMode == Mode::mean && !kEmpty)
        v = quotient(v, static_cast<typename Group::Acc>(degree));
      if constexpr (kMode == Mode::affine) v = fused(v, widen(factor), a.bias ? bias[k] : 0.0f);
      if constexpr (kMode == Mode::extreme && !kEmpty)
        if (a.reduce == Reduce::min) v = -v;
      pack.v[k] = narrow<T>(v);
    }
    const auto row_bytes = static_cast<uint32_t>(a.features) * static_cast<uint32_t>(sizeof(T));
    store<T, kVec>(at_offset(out, place, row_bytes), pack);
    if constexpr (kMode == Mode::extreme && kPositions) {
      const int64_t to = out - static_cast<T*>(a.out) + static_cast<int64_t>(place) * a.features;
      int ahead_of[kVec];  // positions are the low words of the edges' numbers
#pragma unroll
      for (int k = 0; k < kVec; ++k) ahead_of[k] = group.position[k] - static_cast<int>(from);
      group.template store_args<kVec>(to, from, ahead_of, kEmpty);
    }
  }

  // For the row that begins at `end`; of values that are all -inf the first one stands for them.
  __device__ __forceinline__ void reset() {
    group.reset();
    if constexpr (kMode == Mode::extreme) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) group.position[k] = end;
    }
  }

  // Goes to the next row that has edges; rows without are written on the way. A long row is passed
  // through, but not written.
  template <bool kPositions>
  __device__ __forceinline__ bool advance(int long_degree) {
    while (++row < rows) {
      const int begin = end;
      end = next;
      next = end_of(row + 1);
      place = order ? next_place : row;
      if (order && row + 1 < rows) next_place = __ldg(at_offset(order, row + 1, 8));
      if constexpr (kMode == Mode::affine)  // early: a row's end would wait for it
        if (place < a.csr.rows) factor = __ldg(scale + place);
      degree = end - begin;
      if (static_cast<unsigned>(degree - 1) < static_cast<unsigned>(long_degree - 1)) return true;
      if (degree != 0) {
        place = ~0u;
        return true;
      }
      store_row<true, kPositions>();
    }
    end = at + kFar;  // what remains of the batch is nobody's
    return false;
  }

  // Indices of the batch `ahead`, which starts at edge `from`; 0 beyond the run.
  __device__ __forceinline__ void load_indices(int32_t (&source)[kFlight], int from) const {
    if (last - from >= kFlight) {
      constexpr int kStep = 4;
#pragma unroll
      for (int u = 0; u < kFlight; u += kStep) load_vector<int32_t, kStep>(source + u, ahead + u);
    } else {
#pragma unroll
      for (int u = 0; u < kFlight; ++u) source[u] = u < last - from ? __ldg(ahead + u) : 0;
    }
  }

  // Bits of the lane's columns that took the edges of the batch `ahead`; 0 beyond the run.
  __device__ __forceinline__ void load_taken(unsigned (&bits)[kGrad ? kFlight : 1],
                                             int from) const {
    if constexpr (kGrad) {
      const auto word = [&](int u) { return __ldg(at_offset(taken, u, a.taken_words * 4u)); };
      if (last - from >= kFlight) {
#pragma unroll
        for (int u = 0; u < kFlight; ++u) bits[u] = word(u);
      } else {
#pragma unroll
        for (int u = 0; u < kFlight; ++u) bits[u] = u < last - from ? word(u) : 0;
      }
    }
  }

  __device__ __forceinline__ const T* row_of_x(int32_t source, uint32_t stride) const {
    return at_offset(group.x, static_cast<uint32_t>(source), stride);
  }

  template <bool kPositions>
  __device__ __forceinline__ void add_edge(Row& row, int edge, unsigned bits) {
    if constexpr (kGrad)
      group.add_taken(row, bits);
    else
      group.template add_row<kPositions>(row, edge);
  }

  __device__ __forceinline__ void walk(int long_degree) {
    if (kMode == Mode::extreme && !a.arg_out)
      walk_as<false>(long_degree);
    else
      walk_as<true>(long_degree);
  }

  template <bool kPositions>
  __device__ __forceinline__ void walk_as(int long_degree) {
    const auto stride = static_cast<uint32_t>(a.x_stride) * static_cast<uint32_t>(sizeof(T));
    const auto columns = static_cast<uint32_t>(
        a.csr.columns < (int64_t(1) << 31) ? a.csr.columns : int64_t(1) << 31);
    reset();
    place = ~0u;  // the rest of a row that is another group's
    bool more = true;
    const int head = end - at;
    if (head == 0 && !advance<kPositions>(long_degree)) return;
    int32_t source[kFlight];
    load_indices(source, at);
    unsigned bits[kGrad ? kFlight : 1];
    load_taken(bits, at);
#pragma unroll
    for (int u = 0; u < kFlight; ++u)
      if (u < head) source[u] = bits[kGrad ? u : 0] = 0;
#pragma unroll 1
    while (more) {
      unsigned largest = 0;
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        largest = static_cast<unsigned>(source[u]) > largest ? source[u] : largest;
      Row batch[kFlight];
      // Of each edge kVec bits, next to each other: where edges are in flight registers are short.
      unsigned mine[kMine];
      if constexpr (kGrad) {
        unsigned bad = 0;
        if (largest >= columns) [[unlikely]] {
#pragma unroll
          for (int u = 0; u < kFlight; ++u)
            if (static_cast<unsigned>(source[u]) >= columns)
              bad |= 1u << u, source[u] = 0, bits[u] = ~0u;
        }
        // A column takes one edge of a row: few lanes have any of an edge's, and the others'
        // sectors are not read.
#pragma unroll
        for (int u = 0; u < kFlight; ++u) {
          const unsigned own = bits[u] >> taken_from & ((1u << kVec) - 1);
          mine[u * kVec / 32] =
              u * kVec % 32 == 0 ? own : mine[u * kVec / 32] | own << u * kVec % 32;
          batch[u] = Row::load_if(own, row_of_x(source[u], stride));
        }
        if (bad != 0) [[unlikely]] {
#pragma unroll
          for (int u = 0; u < kFlight; ++u)
            if (bad >> u & 1) batch[u] = Row::not_numbers();
        }
      } else if (largest < columns) {
#pragma unroll
        for (int u = 0; u < kFlight; ++u) batch[u] = Row::load(row_of_x(source[u], stride));
      } else {
#pragma unroll
        for (int u = 0; u < kFlight; ++u)
          batch[u] = Row::load(static_cast<unsigned>(source[u]) < columns
                                   ? row_of_x(source[u], stride)
                                   : reinterpret_cast<const T*>(kNotNumbers<sizeof(T)>));
      }
      ahead += kFlight;
      load_indices(source, at + kFlight);
      if constexpr (kGrad) {
        taken += kFlight * a.taken_words;
        load_taken(bits, at + kFlight);
      }
      // Edges from the batch's start to the row's end; whether some of a part's edges ends it is
      // asked once a part.
      int left = end - at;
#pragma unroll
      for (int part = 0; part < kFlight; part += kPart) {
        const auto bits_of = [&](int u) {
          return kGrad ? mine[u * kVec / 32 % kMine] >> u * kVec % 32 : 0;
        };
        if (kMode != Mode::extreme && left > part + kPart) [[likely]] {
#pragma unroll
          for (int u = part; u < part + kPart; ++u)
            add_edge<kPositions>(batch[u], at + u, bits_of(u));
        } else if constexpr (kMode == Mode::extreme || kShape != Shape::usual) {
          // An edge is more code than in a sum, and so is a row's end: a part has it once, as eight
          // of them (deep: sixteen) would not fit the instruction caches.
#pragma unroll 1
          for (int done = part;;) {
#pragma unroll
            for (int u = part; u < part + kPart; ++u)
              if (u >= done && u < left) add_edge<kPositions>(batch[u], at + u, bits_of(u));
            if (left > part + kPart) break;
            done = left;
            store_row<false, kPositions>();
            reset();
            more = advance<kPositions>(long_degree);
            left = end - at;
          }
        } else {
#pragma unroll
          for (int u = part; u < part + kPart; ++u) {
            add_edge<kPositions>(batch[u], at + u, bits_of(u));
            if (left == u + 1) {
              store_row<false, kPositions>();
              reset();
              more = advance<kPositions>(long_degree);
              left = end - at;
            }
          }
        }
      }
      at += kFlight;
      if (end - at > kJump && place == ~0u && more) [[unlikely]] {
        const int by = (end - 1 - at) & -kFlight;  // a long row: on to its last batch
        at += by;
        ahead += by;
        load_indices(source, at);
        if constexpr (kGrad) {
          taken += static_cast<int64_t>(by) * a.taken_words;
          load_taken(bits, at);
        }
      }
    }
  }
};

}  // namespace gpuprims
