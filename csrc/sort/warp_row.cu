// A warp for up to 1,024 elements: one row, or several short ones, each sorted by 1 to 32 of its
// lanes as 32-bit words in registers (lane_sort.cuh). A word is the top of the key, as many of the
// bits in which the row's keys differ as it has room for, and below it the place in the row. So the
// order is the stable one, and a word says which element's bits go where; those wait in shared
// memory. Where a word left out bits of the key, ties are looked at again (warp_words.cuh).
#include "common/launch.h"
#include "sort/outputs.cuh"
#include "sort/warp_words.cuh"

namespace gpuprims {
namespace {

constexpr int kThreads = 128;

// Writes elements and indices in the words' order.
template <class Element, int kItems, bool kMixed>
__device__ __forceinline__ void write(const WarpTile<Element, kItems, kMixed>& tile,
                                      bool keys_alone) {
  const SortArgs& args = tile.args;
  Element* const values = static_cast<Element*>(args.values);
  const uint32_t mask = tile.place_mask();
  if constexpr (sizeof(Element) <= 4)
    if (keys_alone)
      return tile.template each<4>([&](int i, int, int rank, const RowSpan& row) {
        const uint32_t key = tile.words.words[tile.words.place(i)];
        values[row.start + rank] = static_cast<Element>(args.order32.decode(key));
      });
  if constexpr (kItems == 8) {
    tile.template each<1>([&](int i, int r, int rank, const RowSpan& row) {
      const uint32_t place = tile.words.words[tile.words.place(i)] & mask;
      const RowSpan kept = kept_span(args, tile.row + r, row);
      if (rank < kept.n)
        Outputs<Element>(args, kept).put(rank, tile.raw[r * tile.stride() + place], place);
    });
  } else {
#pragma unroll 1
    for (int r = 0; r < 32 >> tile.lane_bits; ++r) {
      const RowSpan row = kept_span(args, tile.row + r, tile.span(r));
      const Element* const raw = tile.raw + r * tile.stride();
      const uint32_t* const words =
          tile.words.words + (r << tile.lane_bits) * LaneSort<kItems>::kStride + tile.lane;
      const Outputs<Element> to(args, row);
      const int n = static_cast<int>(row.n);
      const auto put = [&](int rank, const uint32_t* word) {
        const uint32_t place = *word & mask;
        to.put(rank, raw[place], place);
      };
      constexpr int kSteps = 8, kStride = LaneSort<kItems>::kStride;
      int k = 0;  // words before these
#pragma unroll 1
      for (; k + kSteps * 32 <= n; k += kSteps * 32)
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
          put(k + s * 32 + tile.lane, words + (k / 32 + s) * kStride);
#pragma unroll 1
      for (; k < n; k += 32)
        if (k + tile.lane < n) put(k + tile.lane, words + k / 32 * kStride);
    }
  }
}

template <class Element>
constexpr int kBlocks = sizeof(Element) == 8   ? 4
                        : sizeof(Element) == 4 ? 6
                                               : 5;  // resident

template <class Element, int kItems, bool kMixed>
__global__ void __launch_bounds__(kThreads, (kBlocks<Element>))
    sort_warp(const __grid_constant__ SortArgs args, int lane_bits, uint32_t one) {
  using Tile = WarpTile<Element, kItems, kMixed>;
  constexpr int kWarps = kThreads / 32;
  const int64_t rows = row_count(args);
  for (int turn = 0;; ++turn) {
    // Anew for each row: nothing that is computed from the shape is kept meanwhile.
    const int warp = opaque(threadIdx.x) / 32;
    Tile tile(args, dynamic_memory + warp * Tile::kBytes, opaque(lane_bits), one);
    const int64_t block = int64_t{turn} * gridDim.x + blockIdx.x;
    const int64_t first = (block * kWarps + warp) << (5 - tile.lane_bits);
    if (first >= rows) return;
    if (!tile.take(first, rows)) continue;
    tile.stage();
    WarpWords<Element, kItems, kMixed> words(tile);
    uint32_t v[kItems];
    with_keys<Element>(args, [&](const auto& keys) {
      if (words.keys_alone())
        words.take_keys(v, keys);
      else
        words.make(v, keys);
    });
    int low = -1;  // not -1: the window's first bit, where words of the top bits did not do
    while (true) {
      tile.words.sort(v, tile.lanes());
      tile.words.store(v);
      if (low < 0) {
        if (words.settle(v)) break;
        low = 0;
      } else {
        if (!args.keep) words.name_places();
        low += words.window_room();
        if (!words.has_window(low)) break;
      }
      words.make_window(v, low);
    }
    write(tile, words.keys_alone());
    __syncwarp();
  }
}

template <class Element>
cudaError_t start(const SortArgs& args, const SortPlan& plan, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads)};
  int lane_bits = 0;
  while (1 << lane_bits < plan.lanes) ++lane_bits;
  if (plan.items == 8) {
    shape.smem = kThreads / 32 * WarpTile<Element, 8>::kBytes;
    return launch(sort_warp<Element, 8, false>, shape, stream, args, lane_bits, 1u);
  }
  shape.smem = kThreads / 32 * WarpTile<Element, 32>::kBytes;
  // Multipliers take a share of the network's work of 4-byte keys.
  return launch(sort_warp<Element, 32, sizeof(Element) == 4>, shape, stream, args, lane_bits, 1u);
}

}  // namespace

cudaError_t launch_sort_warp(const SortArgs& args, const SortPlan& plan, cudaStream_t stream) {
  switch (args.bytes) {
    case 1:
      return start<uint8_t>(args, plan, stream);
    case 2:
      return start<uint16_t>(args, plan, stream);
    case 4:
      return start<uint32_t>(args, plan, stream);
    default:
      return start<uint64_t>(args, plan, stream);
  }
}

}  // namespace gpuprims
