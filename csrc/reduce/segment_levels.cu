// Brings the pieces of long segments of rows together: a block takes four columns of 4,096 states,
// 64 pieces of 64, and so climbs two levels of the tree.
#include "common/launch.h"
#include "reduce/segment_start.h"
#include "reduce/segment_values.cuh"

namespace gpuprims {
namespace {

using namespace segmented;

constexpr int kThreads = segment_reduce_tuning::kThreads;
constexpr int kColumns = segment_reduce_tuning::kLevelColumns;
constexpr int64_t kRows = segment_reduce_tuning::kLevelRows;
static_assert(kThreads == kRowPiece * kColumns && kRows == kRowPiece * kRowPiece);

// One piece of states, `stride` apart.
template <class Op, class Load>
__device__ __forceinline__ typename Op::State reduce_piece(const Op& op, int length, Load load) {
  typename Op::State lane[kRowLanes];
#pragma unroll
  for (int r = 0; r < kRowLanes; ++r) lane[r] = op.identity();
  for (int at = 0; at < length; at += kRowLanes)
#pragma unroll
    for (int r = 0; r < kRowLanes; ++r)
      if (at + r < length) lane[r] = op.combine(lane[r], load(at + r));
#pragma unroll
  for (int half = kRowLanes / 2; half > 0; half /= 2)
#pragma unroll
    for (int r = 0; r < half; ++r) lane[r] = op.combine(lane[r], lane[r + half]);
  return lane[0];
}

// Where an entry's states of a level begin. Division rounds down, so each entry may need one state
// more than its share: its number makes room for that.
__device__ __forceinline__ int64_t level_first(const CutSegment* list, int64_t entry, int level) {
  int64_t first = list[entry].first;
  for (int i = 0; i < level; ++i) first /= kRows;
  return level > 0 ? first + entry : first;
}

template <class Op>
__global__ void __launch_bounds__(kThreads)
    segment_levels(const __grid_constant__ SegmentReduceArgs args, const __grid_constant__ Op op,
                   const __grid_constant__ SegmentReducePlan plan,
                   const __grid_constant__ SegmentReduceSpace space, const int level) {
  using State = typename Op::State;
  __shared__ __align__(16) unsigned char memory[kThreads * sizeof(State)];
  State* const shared = reinterpret_cast<State*>(memory);
  cudaGridDependencySynchronize();
  if (space.header->flag) return;  // filled already
  const auto listed = space.header->listed;
  const auto entries = static_cast<int64_t>(listed >> kListShift);
  if (entries == 0) return;
  State* const states = static_cast<State*>(space.states);
  const State* const from = states + (level > 0 ? plan.level_at[level - 1] : 0) * args.features;
  State* const to = states + plan.level_at[level] * args.features;
  // Results of this level, with gaps between entries.
  const int64_t slots = level_first(space.list, entries - 1, level + 1) + plan.pieces / kRows + 2;
  const int64_t tiles = (args.features + kColumns - 1) / kColumns;
  const int sub = threadIdx.x / kColumns;
  for (int64_t item = blockIdx.x; item < slots * tiles; item += gridDim.x) {
    const int64_t slot = item / tiles;
    const int64_t column = (item - slot * tiles) * kColumns + threadIdx.x % kColumns;
    int64_t entry = 0;
    for (int64_t count = entries; count > 1;) {
      const int64_t half = count / 2;
      if (level_first(space.list, entry + half, level + 1) <= slot) entry += half;
      count -= half;
    }
    const int64_t segment = space.list[entry].segment;
    const int64_t length = segment_offset(args.indptr, args.wide, segment + 1) -
                           segment_offset(args.indptr, args.wide, segment);
    int64_t have = (length + kRowPiece - 1) / kRowPiece;  // states of the level below
    for (int i = 0; i < level; ++i) have = (have + kRows - 1) / kRows;
    const int64_t group = slot - level_first(space.list, entry, level + 1);
    const int64_t begin = group * kRows;
    if (have <= 1 || group < 0 || begin >= have) continue;  // done, or a gap
    const int64_t left = have - begin;
    const int many = static_cast<int>(left < kRows ? left : kRows);
    const int pieces = (many + kRowPiece - 1) / kRowPiece;
    if (sub < pieces && column < args.features) {
      const State* const mine =
          from + (level_first(space.list, entry, level) + begin + sub * kRowPiece) * args.features +
          column;
      const int rows = many - sub * kRowPiece;
      shared[threadIdx.x] = reduce_piece(op, rows < kRowPiece ? rows : kRowPiece, [&](int r) {
        return load_fresh(mine + r * args.features);
      });
    }
    __syncthreads();
    if (sub == 0 && column < args.features) {
      const State state = reduce_piece(
          op, pieces, [&](int r) { return shared[r * kColumns + threadIdx.x % kColumns]; });
      if (have <= kRows)
        put_segment(args, op, segment * args.features + column, state, length);
      else
        to[slot * args.features + column] = state;
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_segment_levels(const SegmentReduceArgs& args, const SegmentReducePlan& plan,
                                  const SegmentReduceSpace& space, int level, cudaStream_t stream) {
  return with_segment_op(args, [&](auto op) {
    const LaunchShape shape{dim3(static_cast<unsigned>(plan.long_blocks)), dim3(kThreads), 0, true};
    return launch(segment_levels<decltype(op)>, shape, stream, args, op, plan, space, level);
  });
}

}  // namespace gpuprims
