// Rows as 32-bit words whose order is, but for ties, that of their keys; and the order of the ties.
#pragma once
#include "sort/warp_tile.cuh"

namespace gpuprims {
namespace {

// Keys of elements. falling: the order is the reverse of the keys'.
template <class Element>
struct AnyKeys {
  using Word = std::conditional_t<sizeof(Element) == 8, uint64_t, uint32_t>;
  static constexpr bool falling = false;
  const Elements<Element> elements;
  const int low;
  const Word mask;

  __device__ __forceinline__ explicit AnyKeys(const SortArgs& args)
      : elements{args},
        low(args.begin_bit),
        mask(args.end_bit - low == sizeof(Word) * 8 ? ~Word(0)
                                                    : (Word(1) << (args.end_bit - low)) - 1) {}
  __device__ __forceinline__ Word operator()(Element bits) const {
    return elements.key(bits) >> low & mask;
  }
};

template <class Element>
struct IntegerKeys {
  using Word = typename AnyKeys<Element>::Word;
  static constexpr bool falling = false;
  const Word flip;

  __device__ __forceinline__ explicit IntegerKeys(const SortArgs& args)
      : flip(Elements<Element>{args}.order().sign ^ Elements<Element>{args}.order().invert) {}
  __device__ __forceinline__ Word operator()(Element bits) const { return bits ^ flip; }
};

struct Float32Keys {
  const bool falling;

  __device__ __forceinline__ explicit Float32Keys(const SortArgs& args)
      : falling(args.order32.invert != 0) {}
  __device__ __forceinline__ uint32_t operator()(uint32_t bits) const {
    // The sum turns -0.0 into +0.0, and any NaN into 0x7fffffff.
    const int32_t number = __float_as_int(__fadd_rn(__uint_as_float(bits), 0.0f));
    return static_cast<uint32_t>(number ^ (number >> 31 | INT32_MIN));
  }
};

// The cheapest of the above that gives the order.
template <class Element, class Body>
__device__ __forceinline__ void with_keys(const SortArgs& args, const Body& body) {
  const auto& order = Elements<Element>{args}.order();
  const bool whole = args.begin_bit == 0 && args.end_bit == static_cast<int>(sizeof(Element)) * 8;
  if (whole && !order.float_mask) return body(IntegerKeys<Element>(args));
  if constexpr (sizeof(Element) == 4)
    if (whole && !order.lossless) return body(Float32Keys(args));
  body(AnyKeys<Element>(args));
}

template <class Element, int kItems, bool kMixed = false>
struct WarpWords {
  using Tile = WarpTile<Element, kItems, kMixed>;
  using Word = typename Tile::Word;
  // A lane sorts runs of up to this many ties by insertion.
  static constexpr int kLongestRun = 12;
  static constexpr int kTop = sizeof(Word) * 8;

  const Tile& tile;
  Word base = 0;  // the row's least key
  int bits = 0;   // of key - base that can differ from 0, if they are more than a word has room for

  __device__ __forceinline__ explicit WarpWords(const Tile& tile) : tile(tile) {}

  __device__ __forceinline__ int room() const { return 32 - tile.place_bits(); }
  // Where not all is written, there is no room to keep the order so far (make_window), and words
  // hold both rank and place: smaller windows, up to six.
  __device__ __forceinline__ int window_room() const {
    return tile.args.keep ? room() - tile.place_bits() : room();
  }

  // Keys alone of at most 32 bits need no place.
  __device__ __forceinline__ bool keys_alone() const {
    return sizeof(Element) <= 4 && !tile.args.indices;
  }
  template <class Keys>
  __device__ __forceinline__ void take_keys(uint32_t (&v)[kItems], const Keys& keys) const {
    const uint32_t turn = keys.falling ? ~0u : 0u;
    tile.visit([&](int i, Element raw) { v[i] = static_cast<uint32_t>(keys(raw)) ^ turn; });
    tile.close(v);
  }

  // The top bits of key - base, from the first in which the row's keys differ, above the place.
  template <class Keys>
  __device__ __forceinline__ void make(uint32_t (&v)[kItems], const Keys& keys) {
    Word least = ~Word(0), most = 0;
    tile.visit([&](int i, Element raw) {
      const Word key = keys(raw);
      if constexpr (kTop == 32) v[i] = key;
      least = key < least ? key : least;
      most = key > most ? key : most;
    });
#pragma unroll 1
    for (int mask = 1; mask < tile.lanes(); mask *= 2) {
      const Word l = from_lane(least, mask), m = from_lane(most, mask);
      least = l < least ? l : least;
      most = m > most ? m : most;
    }
    const Word range = most - least;
    base = keys.falling ? ~most : least;
    const uint32_t tops = ~0u << tile.place_bits();
    int shift;
    if constexpr (kTop == 32) {
      shift = __clz(static_cast<int>(range | 1));
      // (key - base) << shift in one instruction, and none of the unit that is the bottleneck.
      const uint32_t scale = keys.falling ? 0u - (1u << shift) : 1u << shift;
      const uint32_t offset = 0u - (keys.falling ? most : least) * scale;
      tile.places([&](int i, int place) { v[i] = ((v[i] * scale + offset) & tops) | place; });
    } else {
      shift = __clzll(static_cast<long long>(range | 1));
      tile.visit([&](int i, Element raw) {
        v[i] = static_cast<uint32_t>((keys(raw) - base) << shift >> 32) & tops;
      });
      tile.places([&](int i, int place) { v[i] |= place; });
    }
    bits = kTop - shift > room() ? kTop - shift : 0;
    tile.close(v);
  }

  // The words, which lie in shared memory in order, are made to be in the keys' order where that
  // takes little; false: it would take more.
  __device__ __forceinline__ bool settle(const uint32_t (&v)[kItems]) const {
    if (!__any_sync(~0u, bits > 0)) return true;
    const bool settled = sort_runs(near_ties(v));
    __syncwarp();
    return __all_sync(~0u, settled) || in_order();
  }

  // Otherwise rows are sorted window by window, the key's last bits first: words of the window from
  // bit `low` on and of the rank so far. At most three windows hold a key. Is there one at `low`?
  __device__ __forceinline__ bool has_window(int low) const {
    return low < __reduce_max_sync(~0u, static_cast<unsigned>(bits));
  }

  __device__ __forceinline__ void make_window(uint32_t (&v)[kItems], int low) const {
    __syncwarp();
    const int last = tile.lanes() * kItems;
#pragma unroll 1
    for (int k = 0; k < kItems; ++k) {
      const int i = k * 32 + tile.lane, row = i >> tile.place_bits(), rank = i & (last - 1);
      const RowSpan at = tile.span(row);
      const Word least = __shfl_sync(~0u, static_cast<WordForShuffle>(base), row << tile.lane_bits);
      uint32_t& word = tile.words.words[tile.words.place(i)];
      const uint32_t place = low == 0 ? rank : word & tile.place_mask();
      word = ~0u;
      if (rank >= at.n) continue;
      const uint32_t key = static_cast<uint32_t>((key_at(row, place) - least) >> low);
      if (tile.args.keep) {
        word =
            ((key << tile.place_bits()) | static_cast<uint32_t>(rank)) << tile.place_bits() | place;
      } else {
        keep(at.start + rank, place);
        word = key << tile.place_bits() | static_cast<uint32_t>(rank);
      }
    }
    __syncwarp();
    tile.words.load(v);
  }

  // Ranks of the order before become places.
  __device__ __forceinline__ void name_places() const {
    tile.template each<1>([&](int i, int, int, const RowSpan& at) {
      uint32_t& word = tile.words.words[tile.words.place(i)];
      word = kept(at.start + (word & tile.place_mask()));
    });
    __syncwarp();
  }

 private:
  using WordForShuffle = std::conditional_t<kTop == 64, unsigned long long, unsigned>;

  static __device__ __forceinline__ Word from_lane(Word word, int mask) {
    return __shfl_xor_sync(~0u, static_cast<WordForShuffle>(word), mask);
  }

  __device__ __forceinline__ Element element_at(int row, uint32_t word) const {
    return tile.raw[row * tile.stride() + static_cast<int>(word & tile.place_mask())];
  }
  __device__ __forceinline__ Word key_at(int row, uint32_t word) const {
    return AnyKeys<Element>(tile.args)(element_at(row, word));
  }

  // Bit i: words i and i + 1 of this lane may have the same top.
  __device__ __forceinline__ uint32_t near_ties(const uint32_t (&v)[kItems]) const {
    const uint32_t next = __shfl_down_sync(~0u, v[0], 1), gap = 1u << tile.place_bits();
    uint32_t near = 0;
#pragma unroll
    for (int i = kItems - 1; i >= 0; --i)  // the sign of the distance less the gap
      near = __funnelshift_l((i + 1 < kItems ? v[i + 1] : next) - v[i] - gap, near, 1);
    const int pairs = bits ? static_cast<int>(tile.mine.n) - 1 - tile.part() * kItems : 0;
    return pairs >= kItems ? near : pairs <= 0 ? 0 : near & ((1u << pairs) - 1);
  }

  // Sorts runs of near ties by whole keys; false: some are too long for that. The last word of a
  // row has no tie behind it, so runs end in their row.
  __device__ __forceinline__ bool sort_runs(uint32_t near) const {
    const uint32_t before = __shfl_up_sync(~0u, near, 1), after = __shfl_down_sync(~0u, near, 1);
    uint32_t starts = near & ~(near << 1 | (tile.part() ? before >> (kItems - 1) : 0));
    bool settled = true;
    while (starts) {
      const int at = __ffs(static_cast<int>(starts)) - 1;
      starts &= starts - 1;
      const int end = __ffs(static_cast<int>(~(near >> at)));  // 0: all 32
      int ties = end ? end - 1 : kItems;
      if (at + ties == kItems) {
        const int more = __ffs(static_cast<int>(~after | 1u << kLongestRun)) - 1;
        ties += more < kItems ? more : kLongestRun;  // all of a lane: the run may go on
      }
      if (ties < kLongestRun)
        insert_sorted(tile.lane * kItems + at, ties);
      else
        settled = false;
    }
    return settled;
  }

  // Puts words `from` to `from + ties` in order; equal keys stay as they are.
  __device__ __forceinline__ void insert_sorted(int from, int ties) const {
    uint32_t* const words = tile.words.words;
    const int row = tile.row_here();
#pragma unroll 1
    for (int i = from + 1; i <= from + ties; ++i) {
      const uint32_t word = words[tile.words.place(i)];
      const Word key = key_at(row, word);
      int j = i;
#pragma unroll 1
      for (; j > from; --j) {
        const uint32_t before = words[tile.words.place(j - 1)];
        if (key_at(row, before) <= key) break;
        words[tile.words.place(j)] = before;
      }
      words[tile.words.place(j)] = word;
    }
  }

  __device__ __forceinline__ bool in_order() const {
    bool wrong = false;
    const uint32_t* const words = tile.words.words;
    const AnyKeys<Element> key(tile.args);
    tile.template each<2>([&](int i, int row, int rank, const RowSpan& at) {
      if (rank + 1 == at.n) return;
      const Element a = element_at(row, words[tile.words.place(i)]);
      const Element b = element_at(row, words[tile.words.place(i + 1)]);
      if (a != b) wrong |= key(b) < key(a);  // long runs are mostly equal elements
    });
    return !__any_sync(~0u, wrong);
  }

  // The order so far is kept where the results will be.
  __device__ __forceinline__ void keep(int64_t at, uint32_t place) const {
    if (tile.args.indices)
      store_index(tile.args, at, place);
    else
      static_cast<Element*>(tile.args.values)[at] = static_cast<Element>(place);
  }
  __device__ __forceinline__ uint32_t kept(int64_t at) const {
    if (!tile.args.indices)
      return static_cast<uint32_t>(static_cast<Element*>(tile.args.values)[at]);
    if (tile.args.wide_index)
      return static_cast<uint32_t>(static_cast<int64_t*>(tile.args.indices)[at]);
    return static_cast<uint32_t>(static_cast<int32_t*>(tile.args.indices)[at]);
  }
};

}  // namespace
}  // namespace gpuprims
