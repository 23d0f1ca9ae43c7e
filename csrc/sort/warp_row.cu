// A warp for up to 1,024 elements: one row, or several short ones, each sorted by 1 to 32 of its
// lanes as 32-bit words in registers (lane_sort.cuh). A word is the top of the key, as many of the
// bits in which the row's keys differ as it has room for, and below it the place in the row. So the
// order is the stable one, and a word says which element's bits go where; those wait in shared
// memory. Where a word left out bits of the key, ties are looked at again (warp_words.cuh).
#include "common/launch.h"
#include "sort/warp_words.cuh"

namespace gpuprims {
namespace {

constexpr int kThreads = 128;

// Writes elements and indices in the words' order.
template <class Element, int kItems>
__device__ __forceinline__ void write(const WarpTile<Element, kItems>& tile, bool keys_alone) {
  const SortArgs& args = tile.args;
  Element* const values = static_cast<Element*>(args.values);
  const auto word_at = [&](int i) { return tile.words.words[tile.words.place(i)]; };
  if constexpr (sizeof(Element) <= 4)
    if (keys_alone)
      return tile.template each<4>([&](int i, int, int rank, const RowSpan& row) {
        values[row.start + rank] = static_cast<Element>(args.order32.decode(word_at(i)));
      });
  tile.template each<4>([&](int i, int r, int rank, const RowSpan& row) {
    const int place = static_cast<int>(word_at(i)) & tile.place_mask();
    if (values) values[row.start + rank] = tile.raw[r * tile.stride() + place];
    if (args.indices) store_index(args, row.start + rank, index_of(args, row.start, place));
  });
}

template <class Element>
constexpr int kBlocks = sizeof(Element) == 8 ? 4 : sizeof(Element) == 4 ? 6 : 5;  // resident

template <class Element, int kItems>
__global__ void __launch_bounds__(kThreads, (kBlocks<Element>))
    sort_warp(const __grid_constant__ SortArgs args, int lane_bits) {
  using Tile = WarpTile<Element, kItems>;
  constexpr int kWarps = kThreads / 32;
  const int64_t rows = row_count(args);
  for (int turn = 0;; ++turn) {
    // Anew for each row: nothing that is computed from the shape is kept meanwhile.
    const int warp = opaque(threadIdx.x) / 32;
    Tile tile(args, dynamic_memory + warp * Tile::kBytes, opaque(lane_bits));
    const int64_t block = int64_t{turn} * gridDim.x + blockIdx.x;
    const int64_t first = (block * kWarps + warp) << (5 - tile.lane_bits);
    if (first >= rows) return;
    if (!tile.take(first, rows)) continue;
    tile.stage();
    WarpWords<Element, kItems> words(tile);
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
        words.name_places();
        low += words.room();
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
    return launch(sort_warp<Element, 8>, shape, stream, args, lane_bits);
  }
  shape.smem = kThreads / 32 * WarpTile<Element, 32>::kBytes;
  return launch(sort_warp<Element, 32>, shape, stream, args, lane_bits);
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
