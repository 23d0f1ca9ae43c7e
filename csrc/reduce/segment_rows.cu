// Segments of rows: a thread a column (or four that lie together) of a segment, or of a piece of a
// long one. Consecutive threads hold consecutive columns, so that a row is read by coalesced loads,
// and where there are few columns a warp is at several segments at once. A thread keeps the tree's
// eight lanes in registers and has as many rows on their way, or half of them.
#include "common/launch.h"
#include "reduce/segment_start.h"
#include "reduce/segment_values.cuh"

namespace gpuprims {
namespace {

using namespace segmented;

constexpr int kThreads = segment_reduce_tuning::kThreads;
constexpr int kMostPieces = segment_reduce_tuning::kInlineRows / kRowPiece;
static_assert(kMostPieces == 4);

// Blocks on a multiprocessor that registers leave room for.
template <class Op, int V>
constexpr int kBlocks =
    V == 1 ? (sizeof(typename Op::State) == 4 ? 4 : 2) : (sizeof(typename Op::State) == 4 ? 2 : 1);

template <class T, int V>
struct alignas(sizeof(T) * V) Columns {
  T v[V];
};

// Walks the rows of one piece.
template <class Op, int V>
struct PieceReader {
  using State = typename Op::State;
  using A = typename Op::Value;
  const SegmentReduceArgs& args;
  const Op& op;
  int64_t column;
  static constexpr int kAtOnce = V == 1 ? kRowLanes : kRowLanes / 2;  // rows on their way

  __device__ __forceinline__ void run(int64_t row, int length, State (&result)[V]) const {
    with_elements<A>(args.values, args.dtype, [&](auto* elements) {
      using Element = std::remove_cv_t<std::remove_pointer_t<decltype(elements)>>;
      const auto* p = elements + row * args.features + column;
      State lane[kRowLanes][V];
#pragma unroll
      for (int r = 0; r < kRowLanes; ++r)
#pragma unroll
        for (int c = 0; c < V; ++c) lane[r][c] = op.identity();
      for (int at = 0; at < length; at += kRowLanes, p += kRowLanes * args.features) {
#pragma unroll
        for (int from = 0; from < kRowLanes; from += kAtOnce) {
          Columns<Element, V> loaded[kAtOnce];
#pragma unroll
          for (int r = 0; r < kAtOnce; ++r)
            if (at + from + r < length)
              loaded[r] =
                  *reinterpret_cast<const Columns<Element, V>*>(p + (from + r) * args.features);
#pragma unroll
          for (int r = 0; r < kAtOnce; ++r)
#pragma unroll
            for (int c = 0; c < V; ++c)
              if (at + from + r < length)
                lane[from + r][c] =
                    op.combine(lane[from + r][c], op.lift(accumulated<A>(loaded[r].v[c])));
        }
      }
#pragma unroll
      for (int half = kRowLanes / 2; half > 0; half /= 2)
#pragma unroll
        for (int r = 0; r < half; ++r)
#pragma unroll
          for (int c = 0; c < V; ++c) lane[r][c] = op.combine(lane[r][c], lane[r + half][c]);
#pragma unroll
      for (int c = 0; c < V; ++c) result[c] = lane[0][c];
    });
  }
};

// A whole segment of at most four pieces: lanes 0 to 3 of the next level, halved.
template <class Op, int V>
__device__ __forceinline__ void run_segment(const PieceReader<Op, V>& reader, int64_t begin,
                                            int length, typename Op::State (&result)[V]) {
  typename Op::State even[V], odd[V];  // lanes 0 and 2, 1 and 3
#pragma unroll
  for (int c = 0; c < V; ++c) even[c] = odd[c] = reader.op.identity();
  for (int at = 0; at < length; at += kRowPiece) {
    const int left = length - at;
    typename Op::State next[V];
    reader.run(begin + at, left < kRowPiece ? left : kRowPiece, next);
#pragma unroll
    for (int c = 0; c < V; ++c) {
      if (at / kRowPiece % 2 == 0)
        even[c] = reader.op.combine(even[c], next[c]);
      else
        odd[c] = reader.op.combine(odd[c], next[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < V; ++c) result[c] = reader.op.combine(even[c], odd[c]);
}

// Thread `at` of a pass over segments.
template <class Op, int V>
__device__ __forceinline__ void do_segment(const SegmentReduceArgs& args, const Op& op,
                                           const SegmentReducePlan& plan,
                                           const SegmentReduceSpace& space, int64_t at) {
  const int64_t segment = at / plan.groups;
  const int64_t column = (at - segment * plan.groups) * V;
  const int64_t begin = segment_offset(args.indptr, args.wide, segment);
  const int64_t end = segment_offset(args.indptr, args.wide, segment + 1);
  const int64_t length = end - begin;
  if (args.check && (begin < 0 || end < begin || end > args.n)) {
    atomicOr(&space.header->flag, 1);
    return;
  }
  if (length > plan.inline_limit) {
    if (column == 0 &&
        !list_segment(plan, space, segment, (length + kRowPiece - 1) / kRowPiece, false))
      atomicOr(&space.header->flag, 1);
    return;
  }
  const PieceReader<Op, V> reader{args, op, column};
  typename Op::State state[V];
  run_segment(reader, begin, static_cast<int>(length), state);
#pragma unroll
  for (int c = 0; c < V; ++c)
    put_segment(args, op, segment * args.features + column + c, state[c], length);
}

template <class Op, int V>
__device__ __forceinline__ void do_pieces(const SegmentReduceArgs& args, const Op& op,
                                          const SegmentReducePlan& plan,
                                          const SegmentReduceSpace& space) {
  using State = typename Op::State;
  const auto listed = space.header->listed;
  const auto entries = static_cast<int64_t>(listed >> kListShift);
  const auto pieces = static_cast<int64_t>(listed & ((1ull << kListShift) - 1));
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       at < pieces * plan.groups; at += threads) {
    const int64_t piece = at / plan.groups;
    const int64_t column = (at - piece * plan.groups) * V;
    const CutSegment cut = space.list[find_entry(space.list, entries, piece)];
    const int64_t begin =
        segment_offset(args.indptr, args.wide, cut.segment) + (piece - cut.first) * kRowPiece;
    const int64_t left = segment_offset(args.indptr, args.wide, cut.segment + 1) - begin;
    const PieceReader<Op, V> reader{args, op, column};
    State state[V];
    reader.run(begin, static_cast<int>(left < kRowPiece ? left : kRowPiece), state);
    State* const to = static_cast<State*>(space.states) + piece * args.features + column;
#pragma unroll
    for (int c = 0; c < V; ++c) to[c] = state[c];
  }
}

template <class Op, int V>
__global__ void __launch_bounds__(kThreads, kBlocks<Op, V>)
    segment_rows(const __grid_constant__ SegmentReduceArgs args, const __grid_constant__ Op op,
                 const __grid_constant__ SegmentReducePlan plan,
                 const __grid_constant__ SegmentReduceSpace space, const bool pieces) {
  if (pieces) {
    cudaGridDependencySynchronize();
    if (space.header->flag)
      fill_results(args);
    else if (plan.lists)
      do_pieces<Op, V>(args, op, plan, space);
    return;
  }
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (args.check) {
    if (first == 0 && (segment_offset(args.indptr, args.wide, 0) != 0 ||
                       segment_offset(args.indptr, args.wide, args.segments) != args.n))
      atomicOr(&space.header->flag, 1);
    // Somebody else may have found bad offsets: nothing of this will be kept.
    if (*static_cast<volatile int*>(&space.header->flag)) return;
  }
  for (int64_t at = first; at < args.segments * plan.groups; at += threads)
    do_segment<Op, V>(args, op, plan, space, at);
}

template <class Op>
cudaError_t start(const SegmentReduceArgs& args, const Op& op, const SegmentReducePlan& plan,
                  const SegmentReduceSpace& space, bool pieces, cudaStream_t stream) {
  const int64_t blocks = pieces ? plan.long_blocks : plan.row_blocks;
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, pieces};
  if constexpr (std::is_same_v<typename Op::Value, float>)
    if (plan.vec == 4)
      return launch(segment_rows<Op, 4>, shape, stream, args, op, plan, space, pieces);
  return launch(segment_rows<Op, 1>, shape, stream, args, op, plan, space, pieces);
}

}  // namespace

cudaError_t launch_segment_rows(const SegmentReduceArgs& args, const SegmentReducePlan& plan,
                                const SegmentReduceSpace& space, bool pieces, cudaStream_t stream) {
  return with_segment_op(args,
                         [&](auto op) { return start(args, op, plan, space, pieces, stream); });
}

}  // namespace gpuprims
