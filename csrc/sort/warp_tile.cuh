// The rows that a warp sorts at a time, in its part of shared memory: `lanes` lanes a row, kItems
// places a lane. Rows lie so that their lanes' vectors fall into different banks.
#pragma once
#include "sort/lane_sort.cuh"
#include "sort/records.cuh"

namespace gpuprims {
namespace {

template <int kBytes>
struct RawOf;
template <>
struct RawOf<4> {
  using Type = uint32_t;
};
template <>
struct RawOf<8> {
  using Type = uint2;
};
template <>
struct RawOf<16> {
  using Type = uint4;
};

template <class Element, int kItems_, bool kMixed = false>
struct WarpTile {
  static constexpr int kItems = kItems_, kItemBits = kItems == 32 ? 5 : 3;
  static_assert(kItems == 8 || kItems == 32);
  static constexpr int kVec = sizeof(Element) == 8 ? 2 : 4;  // elements of a vector
  static constexpr int kVecs = kItems / kVec;
  static constexpr int kRawBytes = 32 * (kItems + kVec) * static_cast<int>(sizeof(Element));
  static constexpr int kBytes = kRawBytes + LaneSort<kItems, kMixed>::kBytes;
  using Raw = typename RawOf<kVec * sizeof(Element)>::Type;
  using Word = std::conditional_t<sizeof(Element) == 8, uint64_t, uint32_t>;

  const SortArgs& args;
  Element* const raw;
  const LaneSort<kItems, kMixed> words;
  const int lane, lane_bits;  // lanes a row: 2^lane_bits
  int64_t start = 0;          // of the first row
  int64_t row = 0;            // the first row
  int rows = 0;
  RowSpan mine{0, 0};  // this lane's row; n = 0: not to be sorted here

  __device__ __forceinline__ WarpTile(const SortArgs& args, unsigned char* memory, int lane_bits,
                                      uint32_t one)
      : args(args),
        raw(reinterpret_cast<Element*>(memory)),
        words{reinterpret_cast<uint32_t*>(memory + kRawBytes), static_cast<int>(threadIdx.x % 32),
              Exchange<kMixed>(one)},
        lane(threadIdx.x % 32),
        lane_bits(lane_bits) {}

  __device__ __forceinline__ int lanes() const { return 1 << lane_bits; }
  __device__ __forceinline__ int part() const { return lane & (lanes() - 1); }
  __device__ __forceinline__ int row_here() const { return lane >> lane_bits; }
  __device__ __forceinline__ int place_bits() const { return lane_bits + kItemBits; }
  __device__ __forceinline__ int place_mask() const { return (1 << place_bits()) - 1; }
  __device__ __forceinline__ int stride() const { return (kItems + kVec) << lane_bits; }
  __device__ __forceinline__ bool scattered() const { return args.indptr || args.list; }

  // Rows first, first + 1 ... of all; false: none of them is to be sorted here.
  __device__ __forceinline__ bool take(int64_t first, int64_t all) {
    rows = 32 >> lane_bits;
    if (all - first < rows) rows = static_cast<int>(all - first);
    start = scattered() ? 0 : first * args.n;
    row = first;
    mine = row_here() < rows ? row_span(args, first + row_here()) : RowSpan{0, 0};
    if (args.longest && (mine.n < args.shortest || mine.n > args.longest)) mine.n = 0;
    return __any_sync(~0u, mine.n > 0);
  }

  // Any row's span; all lanes.
  __device__ __forceinline__ RowSpan span(int row) const {
    if (!scattered()) return {start + row * args.n, row < rows ? args.n : 0};
    const long long from = __shfl_sync(~0u, static_cast<long long>(mine.start), row << lane_bits);
    return {from, __shfl_sync(~0u, static_cast<int>(mine.n), row << lane_bits)};
  }

  // Calls body(number of the word, its row, its rank there, the row's span) for this lane's share
  // of all rows' words: neighbouring lanes get neighbouring words.
  template <int kUnroll, class Body>
  __device__ __forceinline__ void each(const Body& body) const {
    if constexpr (kItems == 32) {
#pragma unroll 1
      for (int row = 0; row < 32 >> lane_bits; ++row) {
        const RowSpan at = span(row);
        const int first = row << place_bits(), n = static_cast<int>(at.n);
#pragma unroll kUnroll
        for (int rank = lane; rank < n; rank += 32) body(first + rank, row, rank, at);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        const int i = k * 32 + lane, row = i >> place_bits(), rank = i & place_mask();
        const RowSpan at = span(row);
        if (rank < at.n) body(i, row, rank, at);
      }
    }
  }

  // Copies the rows to shared memory, the loads of a lane together. What is behind a row's end is
  // a copy of some of its elements, so that what is computed from a row's keys need not look out.
  __device__ __forceinline__ void stage() const {
    const int n = static_cast<int>(args.n);
    const auto input = reinterpret_cast<uintptr_t>(args.input);
    if (!scattered() && n % kVec == 0 && input % sizeof(Raw) == 0)
      stage_vectors(n / kVec);
    else
      stage_elements();
    __syncwarp();
  }

  // Calls put(number, place in the row) for this lane's elements. Places are computed where they
  // are needed, anew each time: kept, they would take as many registers as the elements.
  template <class Put>
  __device__ __forceinline__ void places(const Put& put) const {
    int place = opaque(part() * kVec);
#pragma unroll
    for (int j = 0; j < kVecs; ++j, place = opaque(place + (kVec << lane_bits)))
#pragma unroll
      for (int e = 0; e < kVec; ++e) put(j * kVec + e, place + e);
  }

  // Calls put(number, element) for this lane's elements.
  template <class Put>
  __device__ __forceinline__ void visit(const Put& put) const {
    const Raw* const from = reinterpret_cast<const Raw*>(raw + row_here() * stride()) + part();
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
      Element some[kVec];
      unpack(some, from[j << lane_bits]);
#pragma unroll
      for (int e = 0; e < kVec; ++e) put(j * kVec + e, some[e]);
    }
  }

  // Words behind the row's end come last.
  __device__ __forceinline__ void close(uint32_t (&v)[kItems]) const {
    const int n = static_cast<int>(mine.n);
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
      if ((j + 1) * kVec << lane_bits <= n) continue;
      const int place = (j << lane_bits | part()) * kVec;
#pragma unroll
      for (int e = 0; e < kVec; ++e)
        if (place + e >= n) v[j * kVec + e] = ~0u;
    }
  }

 private:
  __device__ __forceinline__ void stage_vectors(int vectors) const {
    const Raw* const from =
        reinterpret_cast<const Raw*>(static_cast<const Element*>(args.input) + start);
    Raw* const to = reinterpret_cast<Raw*>(raw);
    const int bits = place_bits() - (kVec == 2 ? 1 : 2), mask = (1 << bits) - 1;
    const int last = vectors - 1, last_row = rows - 1;
    Raw held[kVecs];
    const int first = opaque(lane);
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
      const int f = j * 32 + first, row = f >> bits, i = f & mask;
      held[j] = from[(row < last_row ? row : last_row) * vectors + (i < last ? i : last)];
    }
    const int again = opaque(lane);
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
      const int f = j * 32 + again;
      to[(f >> bits) * (stride() / kVec) + (f & mask)] = held[j];
    }
  }

  __device__ __forceinline__ void stage_elements() const {
    constexpr int kBatch = 8;
#pragma unroll 1
    for (int k = 0; k < kItems; k += kBatch) {
      Element held[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int f = (k + b) * 32 + lane, i = f & place_mask();
        const RowSpan at = span(f >> place_bits());
        held[b] = 0;
        if (at.n > 0)
          held[b] = static_cast<const Element*>(args.input)[at.start + (i < at.n ? i : at.n - 1)];
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int f = (k + b) * 32 + lane;
        raw[(f >> place_bits()) * stride() + (f & place_mask())] = held[b];
      }
    }
  }

  static __device__ __forceinline__ void unpack(Element (&to)[kVec], const Raw& from) {
    if constexpr (sizeof(Element) == 8) {
      to[0] = static_cast<uint64_t>(from.y) << 32 | from.x;
      to[1] = static_cast<uint64_t>(from.w) << 32 | from.z;
    } else if constexpr (sizeof(Element) == 4) {
      to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
    } else if constexpr (sizeof(Element) == 2) {
      to[0] = from.x & 0xffff, to[1] = from.x >> 16, to[2] = from.y & 0xffff, to[3] = from.y >> 16;
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) to[e] = from >> 8 * e & 0xff;
    }
  }
};

}  // namespace
}  // namespace gpuprims
