// pack, unpack and gather. A warp has a unit of a packing: 32 rows, up to 256 of their columns.
// Where a slot is a word of at most 8 bytes, rows are read along (a few lanes a row), turned in
// shared memory, and written across: both sides coalesce. Wider slots fill whole sectors by
// themselves and are moved straight. Works on bits, so that five kernels serve all dtypes.
#include <algorithm>

#include "common/launch.h"
#include "reorder/move.cuh"

namespace gpuprims::reorder {
namespace {

extern __shared__ __align__(16) unsigned char dynamic_memory[];  // gathers leave it all to L1

int64_t units_of(const Packing& p) {
  if (p.units) return p.unit_count;
  const int64_t strips = strips_of(p.rows);
  return p.slices ? strips : strips * ((p.longest + kGroup - 1) / kGroup);
}

// A row of the result takes `group` lanes; some rows are on their way in each.
template <class Word>
__device__ void gather_rows(const MoveArgs& args) {
  const auto* const from = static_cast<const Word*>(args.from);
  auto* const to = static_cast<Word*>(args.to);
  const int group = lanes_for(args.words), each = kThreads / group;
  const int own = threadIdx.x / group, first_word = threadIdx.x % group;
  const Pattern fill = fill_pattern(args);
  constexpr int kRows = 4;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * each * kRows; first < args.count;
       first += static_cast<int64_t>(gridDim.x) * each * kRows) {
    int64_t source[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t i = first + k * each + own;
      source[k] = i < args.count ? int_at(args.index, args.wide_index, i) : -1;
    }
    for (int64_t w = first_word; w < args.words; w += group) {
      Word word[kRows];
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const bool inside = source[k] >= 0 && source[k] < args.source_rows;
        word[k] = inside ? from[source[k] * args.words + w] : Word{};
      }
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const int64_t i = first + k * each + own;
        const bool inside = source[k] >= 0 && source[k] < args.source_rows;
        if (i >= args.count) continue;
        if (!inside && source[k] != -1) word[k] = Pattern{args.bad, args.bad}.word<Word>(w);
        if (source[k] == -1) word[k] = fill.word<Word>(w);
        to[i * args.words + w] = word[k];
      }
    }
  }
}

template <class Word>
__global__ void __launch_bounds__(kThreads, 4)
    reorder_move(const __grid_constant__ MoveArgs args, const int64_t units, const int each) {
  if (args.move == Move::gather) {
    gather_rows<Word>(args);
    return;
  }
  if (args.flag && *args.flag) {
    const int64_t rows = args.move == Move::pack ? args.p.slots : args.p.entries;
    auto* const to = static_cast<Word*>(args.to);
    const Pattern bad{args.bad, args.bad};
    for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
         at < rows * args.words; at += static_cast<int64_t>(gridDim.x) * kThreads)
      to[at] = bad.word<Word>(at);
    return;
  }
  Word* const tile = reinterpret_cast<Word*>(dynamic_memory) + threadIdx.x / 32 * kTileWords<Word>;
  const int64_t u = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) * each;
  if (u >= units) return;
  if (args.move == Move::pack)
    move_units<Word, true>(args, u, units, each, tile, kTileWords<Word>);
  else
    move_units<Word, false>(args, u, units, each, tile, kTileWords<Word>);
}

template <class Word>
cudaError_t start(const MoveArgs& args, cudaStream_t stream) {
  int64_t units = 0, blocks;
  int each = 1;  // units of a warp
  size_t memory = 0;
  if (args.move == Move::gather) {
    const int64_t rows = std::max<int64_t>(4 * kThreads / std::min<int64_t>(args.words, 32), 1);
    blocks = std::min<int64_t>((args.count + rows - 1) / rows, 1 << 22);
  } else {
    units = units_of(args.p);
    memory = kWarps * kTileWords<Word> * sizeof(Word);
    // Several at once where they will mostly fit the tile.
    const bool fit = units > 0 && args.words == 1 &&
                     args.p.entries / units * kUnits<Word> <= kTileWords<Word> * 9 / 10;
    if (fit) each = kUnits<Word>;
    blocks = (units + kWarps * each - 1) / (kWarps * each);
  }
  if (args.flag) blocks = std::max<int64_t>(blocks, 1);  // somebody fills
  if (blocks == 0) return cudaSuccess;
  return launch(reorder_move<Word>, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads), memory},
                stream, args, units, each);
}

}  // namespace

cudaError_t launch_move(const MoveArgs& args, cudaStream_t stream) {
  switch (args.word) {
    case 1:
      return start<uint8_t>(args, stream);
    case 2:
      return start<uint16_t>(args, stream);
    case 4:
      return start<uint32_t>(args, stream);
    case 8:
      return start<uint64_t>(args, stream);
    default:
      return start<Word16>(args, stream);
  }
}

}  // namespace gpuprims::reorder
