// Lanes over the columns of a row, and which of two extremes wins.
#pragma once
#include "aggregate/elements.cuh"

namespace gpuprims {

// affine: a sum, times a factor of the row, plus a bias.
enum class Mode { sum, mean, affine, weighted_sum, extreme, weighted_extreme, extreme_grad };

// small: more edges in flight, for graphs of few warps. deep: the same in the stream of edges, for
// rows in an order, most of which are in L1 or L2: a batch waits for the one that is not. bits: the
// gradient of max and min from bits and rows alone, without weights and ids.
enum class Shape { usual, small, deep, bits };

// The columns of one lane in one tile.
struct Lanes {
  int count;  // L
  int group;  // of this lane
  int groups;
  int64_t column;

  template <int kOwned, int kVec>
  __device__ static Lanes of(int64_t tile, int64_t features, int widest = 32) {
    const int lane = threadIdx.x % 32;
    const int64_t left = features - tile * widest * kOwned;
    const int wanted =
        left >= widest * kOwned ? widest : static_cast<int>((left + kOwned - 1) / kOwned);
    Lanes lanes;
    lanes.count = wanted <= 1 ? 1 : 1 << (32 - __clz(wanted - 1));
    lanes.groups = 32 / lanes.count;
    lanes.group = lane / lanes.count;
    lanes.column = tile * widest * kOwned + (lane & (lanes.count - 1)) * kVec;
    return lanes;
  }
};

// NaN first, then the greater value, then the earlier edge; -1 is no edge. A total order: any tree
// agrees.
template <class Acc>
__device__ __forceinline__ bool beats(Acc value, int position, Acc best, int best_position) {
  if (position < 0 || best_position < 0) return best_position < 0;
  const bool nan = value != value, best_nan = best != best;
  if (nan != best_nan) return nan;
  if (!nan && value != best) return value > best;
  return position < best_position;
}

}  // namespace gpuprims
