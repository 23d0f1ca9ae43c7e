// What the host may ask of the GPU: raw pointers, sizes, a stream; no PyTorch.
#pragma once
#include <cuda_runtime_api.h>

#include "sort/order.h"
#include "sort/plan.h"

namespace gpuprims {

struct RowSpan {
  int64_t start;
  int64_t n;
};

// What the device finds out about a long row and decides for its passes.
constexpr uint32_t kLeft = 2;

struct RowState {
  uint32_t not_sorted;    // some key is less than the one before it
  uint32_t not_reversed;  // some key is not less than the one before it (keys alone: is greater)
  uint16_t window;        // not 0: the first round sorts by the bits from this one up
  uint16_t narrow;        // not 0: keys vary in 32 bits at most, from number narrow - 1 up
  uint32_t unfinished;    // 1: the window was not enough; in place: the sorted keys are in A.
                          // kLeft: parts or passes by codes left the row
  uint8_t role[2][kMaxPasses];  // in each round
};

static_assert(sizeof(RowState) == kRowStateBytes);

struct SortArgs {
  const void* input = nullptr;  // rows of n elements, one after another; or segments
  void* values = nullptr;       // null: not wanted
  void* indices = nullptr;      // int64 or int32; null: keys alone
  int64_t rows = 0;
  int64_t n = 0;
  int bytes = 4;  // of an element
  int begin_bit = 0;
  int end_bit = 32;
  int64_t keep = 0;  // warp_row, block_row: of each row only so many are written, one row behind
                     // another; 0: all
  bool wide_index = true;
  bool packed = false;  // records are (32-bit key, 32-bit index) in 64 bits
  bool exact = false;   // no optimistic ranks: for tests
  OrderParams<uint32_t> order32;
  OrderParams<uint64_t> order64;
  // Segments: rows r = 0 .. of any length; indices count from the first segment.
  const void* indptr = nullptr;
  bool wide_indptr = true;
  const uint32_t* bad = nullptr;  // not 0: indptr is wrong, and nothing may be done
  const RowSpan* list = nullptr;  // the segments that a kernel is for, *list_count of them
  const uint32_t* list_count = nullptr;
  int64_t shortest = 0, longest = 0;  // warp kernels: the lengths they are for
};

// A monotone map of a row's keys to 32 bits over which they are spread nearly equally: cells of
// equal width above the least key, and in each a line. From a sample; quality decides speed alone.
struct CodeTable {
  uint64_t least, range;  // keys outside [least, least + range] are taken for the nearest inside
  int shift;              // makes the first bit in which keys differ the top one of 64
  uint32_t scale;         // ... and 2^32 the range's end; 0: the row is left to the other passes
  alignas(16) uint32_t cells[kCodeCells];  // a line's rise, above it its start
};

static_assert(sizeof(CodeTable) <= kCodeTableBytes);

// How a row is parted: part i has the keys from first[i] to below first[i + 1], in the order in
// which every bit pattern has a key of its own.
struct RowSplit {
  uint32_t usable;  // 0: the row is not one for parts
  uint32_t first[kMaxParts];
};

static_assert(sizeof(RowSplit) <= kRowSplitBytes);

// What the counting finds out for the passes by buckets.
struct SpreadState {
  uint32_t done;  // blocks that have counted
  uint32_t fits;  // 0: the row is left to the passes by digits
  uint32_t windows, tiles;
};

static_assert(sizeof(SpreadState) <= kSpreadStateBytes);

struct SpreadTile {
  uint32_t begin;
  uint16_t count, group;  // of records; the upper digit that they have
};

struct SpreadSpace {
  SpreadState* state = nullptr;
  uint32_t* counts = nullptr;   // [buckets], two a word
  uint32_t* starts = nullptr;   // [buckets]: the next free place
  uint32_t* firsts = nullptr;   // [upper digits]: the same for the first of two passes
  SpreadTile* tiles = nullptr;  // of the second pass
  uint32_t* windows = nullptr;  // where each begins; one more
  uint32_t* crowded = nullptr;  // [windows]: its bins are too full
};

// Workspace of the device-wide sort.
struct SweepSpace {
  void* keys[2] = {};          // A and B
  void* side[2] = {};          // indices beside keys, where they are not packed; B has a stride of
  int side_step = 4;           // this many bytes an element between rows
  void* status = nullptr;      // [tiles][256], 32 or 64 bits
  uint64_t* counts = nullptr;  // [rows][passes][256]
  RowState* state = nullptr;   // [rows]
  uint32_t* next = nullptr;    // [2][kMaxPasses]: the next tile
  uint32_t* active = nullptr;  // [2][kMaxPasses]: some row may have this pass
  uint32_t* repeat = nullptr;  // some row is unfinished
  CodeTable* codes = nullptr;  // [rows]
  RowSplit* splits = nullptr;  // [rows]
  uint32_t* left = nullptr;    // parts or passes by codes left some row
  uint32_t* code_next = nullptr;    // [2]: their next tile
  uint64_t* code_counts = nullptr;  // [rows][code passes][256]
  SpreadSpace spread;
  uint32_t* totals = nullptr;     // segments: {rows, tiles}
  uint32_t* tile_row = nullptr;   // segments: [tiles]
  uint32_t* tile_base = nullptr;  // segments: [rows], the first tile
};

cudaError_t launch_sort_warp(const SortArgs& args, const SortPlan& plan, cudaStream_t stream);
cudaError_t launch_sort_block(const SortArgs& args, const SortPlan& plan, cudaStream_t stream);
// Rows in parts; clears the first plan.clear_bytes, and marks the rows that are left to
// launch_sort_sweep's own passes.
cudaError_t launch_sort_parts(const SortArgs& args, const SortPlan& plan, const SweepSpace& space,
                              cudaStream_t stream);
// A map of each row's keys to codes, from a sample; clears the first plan.clear_bytes. The map goes
// on for the span of the sample's keys divided by `ends`, to both sides.
cudaError_t launch_sort_sample(const SortArgs& args, const SortPlan& plan, const SweepSpace& space,
                               int ends, cudaStream_t stream);
// The passes by codes; the same as with parts.
cudaError_t launch_sort_codes(const SortArgs& args, const SortPlan& plan, const SweepSpace& space,
                              cudaStream_t stream);
// A row by buckets; the same.
cudaError_t launch_sort_spread(const SortArgs& args, const SortPlan& plan, const SweepSpace& space,
                               cudaStream_t stream);
cudaError_t launch_sort_sweep(const SortArgs& args, const SortPlan& plan, const SweepSpace& space,
                              cudaStream_t stream);

// Lists of segments by length, for the kernels above; `bad` becomes 1 where indptr is wrong, and
// the outputs are filled.
struct SegmentLists {
  uint32_t* bad = nullptr;
  uint32_t* count[kSegmentClasses] = {};  // of the block kernels' classes, then of the long ones
  RowSpan* list[kSegmentClasses] = {};
  int64_t capacity[kSegmentClasses] = {};
};
cudaError_t launch_segment_lists(const SortArgs& args, const SegmentLists& lists,
                                 const SweepSpace& space, int64_t tiles, bool floating, int grid,
                                 int fill_grid, cudaStream_t stream);
cudaError_t launch_clear(void* memory, int64_t bytes, int grid, cudaStream_t stream);

}  // namespace gpuprims
