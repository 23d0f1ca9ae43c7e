// A warp a row: what sum, extreme and extreme_grad share.
//
// The tree of a sum (a function of the row's degree, F and the element size alone). Columns form
// tiles of 512 bytes; a tile of w columns takes L = the power of two >= w / (16 bytes of columns)
// lanes, so the warp holds G = 32 / L groups. A chunk's edge number e goes to group e mod G; a
// group adds its edges in order, starting from +0, with one fused multiply-add each; the groups are
// added by a butterfly (distances L, 2L, .. 16). A row below kHubDegree is one chunk; a longer one
// is cut every kChunk edges and its chunks are added in order. Which lane holds which column, how
// wide its loads are and how many are in flight changes no bit.
#pragma once
#include "aggregate/elements.cuh"

namespace gpuprims {

enum class Mode { sum, extreme, extreme_grad };

// The columns of one lane in one tile.
struct Lanes {
  int count;   // L
  int group;   // of this lane
  int groups;  // G
  int64_t column;

  template <int kOwned, int kVec>
  __device__ static Lanes of(int64_t tile, int64_t features) {
    const int lane = threadIdx.x % 32;
    const int64_t left = features - tile * 32 * kOwned;
    const int wanted = left >= 32 * kOwned ? 32 : static_cast<int>((left + kOwned - 1) / kOwned);
    Lanes lanes;
    lanes.count = wanted <= 1 ? 1 : 1 << (32 - __clz(wanted - 1));
    lanes.groups = 32 / lanes.count;
    lanes.group = lane / lanes.count;
    lanes.column = tile * 32 * kOwned + (lane & (lanes.count - 1)) * kVec;
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

template <class T, int kVec, Mode kMode, class Index>
struct RowWarp {
  using Acc = typename Math<T>::Acc;
  static constexpr int kOwned = kLaneBytes / sizeof(T);
  static constexpr int kLoads = kOwned / kVec;
  static constexpr int kFlight =
      kLoads == 1 && kMode != Mode::extreme_grad ? 4 : 2;  // edges in flight a group
  static constexpr bool kExtreme = kMode == Mode::extreme;
  // Blocks a multiprocessor shall hold: as many as spill nothing (4: 64 registers, 3: 80, 2: 128).
  static constexpr int kBlocks = sizeof(T) == 2 ? (kExtreme ? 2 : 3)
                                 : kLoads == 1 && (sizeof(T) + sizeof(Index) > 8 || kExtreme) ? 3
                                                                                              : 4;

  const AggregateArgs& a;
  const Lanes& lanes;
  Acc value[kOwned];
  int position[kExtreme ? kOwned : 1];  // edge within the chunk; -1: none

  __device__ bool owns(int load) const {
    return lanes.column + static_cast<int64_t>(load) * lanes.count * kVec < a.features;
  }
  __device__ int64_t column(int load) const {
    return lanes.column + static_cast<int64_t>(load) * lanes.count * kVec;
  }

  struct Edge {
    Index source;  // -1: none, or out of range
    int64_t id;    // extreme_grad
    Acc weight;    // 0: no edge; NaN: an edge out of range
  };

  __device__ Edge fetch(int64_t begin, int number, int length) const {
    Edge edge{-1, 0, Acc(0)};
    if (number < length) {
      const int64_t at = begin + number;
      const Index source = __ldg(static_cast<const Index*>(a.csr.indices) + at);
      bool good = static_cast<uint64_t>(source) < static_cast<uint64_t>(a.csr.columns);
      edge.weight = kExtreme && a.reduce == Reduce::min ? Acc(-1) : Acc(1);
      if (kMode == Mode::extreme_grad || a.edge_weight) {
        edge.id = edge_id(a.csr, at);
        good = good && static_cast<uint64_t>(edge.id) < static_cast<uint64_t>(a.csr.edges);
        if (good && a.edge_weight)
          edge.weight *= widen(__ldg(static_cast<const T*>(a.edge_weight) + edge.id));
      }
      if (good)
        edge.source = source;
      else
        edge.weight = not_a_number<Acc>();
    }
    return edge;
  }

  // One chunk: value and position of the whole chunk, in every lane.
  __device__ void reduce_chunk(int64_t begin, int length) {
#pragma unroll
    for (int k = 0; k < kOwned; ++k) value[k] = kExtreme ? -INFINITY : Acc(0);
    if constexpr (kExtreme) {
#pragma unroll
      for (int k = 0; k < kOwned; ++k) position[k] = -1;
    }
    const T* x = static_cast<const T*>(a.x);
    Edge next[kFlight];
#pragma unroll
    for (int u = 0; u < kFlight; ++u)
      next[u] = fetch(begin, lanes.group + u * lanes.groups, length);
    for (int from = lanes.group; from - lanes.group < length; from += kFlight * lanes.groups) {
      Packed<T, kVec> row[kFlight][kLoads];
      unsigned taken[kFlight];  // extreme_grad: bit k where the edge is the one that column k took
      Acc weight[kFlight];
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        taken[u] = next[u].source < 0 ? ~0u : 0u;
        weight[u] = next[u].weight;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          row[u][i] = Packed<T, kVec>{};
          if (next[u].source >= 0 && owns(i)) {
            row[u][i] = Packed<T, kVec>::load(
                x + static_cast<int64_t>(next[u].source) * a.x_stride + column(i));
            if constexpr (kMode == Mode::extreme_grad) {
              const int64_t at = static_cast<int64_t>(next[u].source) * a.features + column(i);
              taken[u] |=
                  (a.csr.wide_offsets
                       ? equal_mask<long long, kVec>(static_cast<const long long*>(a.arg) + at,
                                                     next[u].id)
                       : equal_mask<int, kVec>(static_cast<const int*>(a.arg) + at, next[u].id))
                  << (i * kVec);
            }
          }
        }
      }
      // Indices and weights of the next round arrive while this round's rows are on their way.
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        next[u] = fetch(begin, from + (kFlight + u) * lanes.groups, length);
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        const int number = from + u * lanes.groups;
#pragma unroll
        for (int k = 0; k < kOwned; ++k) {
          const Acc element = row[u][k / kVec][k % kVec];
          if constexpr (kMode == Mode::sum) {
            value[k] = fused(weight[u], element, value[k]);
          } else if constexpr (kMode == Mode::extreme_grad) {
            if (taken[u] >> k & 1) value[k] = fused(weight[u], element, value[k]);
          } else {
            const Acc candidate = number < length ? weight[u] * element : Acc(-INFINITY);
            if (!(candidate <= value[k]) && value[k] == value[k])
              value[k] = candidate, position[k] = number;
          }
        }
      }
    }
    if constexpr (kExtreme) {  // every edge of the group is -inf: its first one stands for it
#pragma unroll
      for (int k = 0; k < kOwned; ++k)
        if (position[k] < 0 && lanes.group < length) position[k] = lanes.group;
    }
    for (int distance = lanes.count; distance < 32; distance *= 2) {
#pragma unroll
      for (int k = 0; k < kOwned; ++k) {
        const Acc other = __shfl_xor_sync(~0u, value[k], distance);
        if constexpr (kExtreme) {
          const int other_position = __shfl_xor_sync(~0u, position[k], distance);
          if (beats(other, other_position, value[k], position[k]))
            value[k] = other, position[k] = other_position;
        } else {
          value[k] += other;
        }
      }
    }
  }

  // The row's results; `begin` is the edge that positions count from.
  __device__ void store_row(int64_t row, int64_t begin, int64_t degree) const {
    if (lanes.group != 0) return;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (!owns(i)) continue;
      Pack<T, kVec> pack;
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        Acc v = value[i * kVec + j];
        if constexpr (kExtreme) v = degree == 0 ? Acc(0) : a.reduce == Reduce::min ? -v : v;
        if (kMode == Mode::sum && a.reduce == Reduce::mean && degree > 0)
          v /= static_cast<Acc>(degree);
        pack.v[j] = narrow<T>(v);
      }
      store<T, kVec>(static_cast<T*>(a.out) + row * a.features + column(i), pack);
      if constexpr (kExtreme) {
        if (a.arg_out) {
          for (int j = 0; j < kVec; ++j) {
            const int at = position[i * kVec + j];
            store_arg(row * a.features + column(i) + j, at < 0 ? -1 : edge_id(a.csr, begin + at));
          }
        }
      }
    }
  }

  __device__ void store_arg(int64_t at, int64_t id) const {
    if (a.csr.wide_offsets)
      static_cast<int64_t*>(a.arg_out)[at] = id;
    else
      static_cast<int32_t*>(a.arg_out)[at] = static_cast<int32_t>(id);
  }

  __device__ void store_partial(int64_t slot) const {
    if (lanes.group != 0) return;
    for (int i = 0; i < kLoads; ++i) {
      if (!owns(i)) continue;
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        const int64_t at = slot * a.features + column(i) + j;
        static_cast<Acc*>(a.space.partial)[at] = value[i * kVec + j];
        if constexpr (kExtreme) a.space.partial_position[at] = position[i * kVec + j];
      }
    }
  }

  __device__ void fill_row(int64_t row) const {  // bad offsets: NaN and -1
    if (lanes.group != 0) return;
    for (int i = 0; i < kLoads; ++i) {
      if (!owns(i)) continue;
      for (int j = 0; j < kVec; ++j) {
        const int64_t at = row * a.features + column(i) + j;
        static_cast<T*>(a.out)[at] = not_a_number<T>();
        if (kExtreme && a.arg_out) store_arg(at, -1);
      }
    }
  }
};

}  // namespace gpuprims
