// The graph as CPU kernels walk it: reads, checks, and rows dealt to threads.
#pragma once
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "aggregate/checks.h"
#include "aggregate/plan.h"

namespace gpuprims {
namespace {  // each source file that includes this has its own

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

template <class T>
using AccOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
constexpr AccOf<T> kNaN = std::numeric_limits<AccOf<T>>::quiet_NaN();

int64_t load_int(const void* vector, bool wide, int64_t at) {
  return wide ? static_cast<const int64_t*>(vector)[at] : static_cast<const int32_t*>(vector)[at];
}

void store_int(void* vector, bool wide, int64_t at, int64_t value) {
  if (wide)
    static_cast<int64_t*>(vector)[at] = value;
  else
    static_cast<int32_t*>(vector)[at] = static_cast<int32_t>(value);
}

int64_t offset(const Csr& csr, int64_t row) { return load_int(csr.indptr, csr.wide_offsets, row); }

int64_t edge_id(const Csr& csr, int64_t edge) {
  return csr.edge_ids ? load_int(csr.edge_ids, csr.wide_offsets, edge) : edge;
}

// Where an edge starts, or -1 where that is out of range.
int64_t source_of(const Csr& csr, int64_t edge) {
  const int64_t source = load_int(csr.indices, csr.wide_indices, edge);
  return source >= 0 && source < csr.columns ? source : -1;
}

// Flags for what is wrong with the data; ids cost a pass over the edges.
int check_data(const Csr& csr, bool check_ids) {
  if (offset(csr, 0) != 0 || offset(csr, csr.rows) != csr.edges) return kBadOffsets;
  for (int64_t row = 0; row < csr.rows; ++row)
    if (offset(csr, row + 1) < offset(csr, row)) return kBadOffsets;
  int flag = 0;
  for (int64_t edge = 0; check_ids && edge < csr.edges; ++edge) {
    if (source_of(csr, edge) < 0) flag |= kBadIndices;
    if (edge_id(csr, edge) < 0 || edge_id(csr, edge) >= csr.edges) flag |= kBadIds;
  }
  return flag;
}

// False where outputs must be filled instead.
bool good_data(const char* op, const Csr& csr, int64_t promises) {
  const bool raise = raise_on_bad_data();
  if ((promises & kChecked) && !raise) return true;
  const int flag = check_data(csr, raise);
  if (raise) check_flag(op, flag, csr);
  return !(flag & kBadOffsets);
}

// work(first row, last row) over tasks of about equal (edges + rows) * features.
template <class Work>
void for_rows(const Csr& csr, int64_t features, const Work& work) {
  constexpr int64_t kTask = 1 << 15;
  const int64_t total = csr.edges + csr.rows;
  const int64_t tasks =
      std::clamp<int64_t>(total * std::max<int64_t>(features, 1) / kTask, 1, 1024);
  const auto first_row = [&](int64_t task) {  // offset(row) + row is increasing
    if (task == tasks) return csr.rows;
    const int64_t want = total / tasks * task + total % tasks * task / tasks;
    int64_t low = 0, high = csr.rows;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (offset(csr, middle) + middle < want)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) work(first_row(task), first_row(task + 1));
  });
}

// Where the results of a row go, or -1 where the order is none.
int64_t place_of_row(const Csr& csr, int64_t row) {
  const int64_t place = csr.order ? csr.order[row] : row;
  return place >= 0 && place < csr.rows ? place : -1;
}

struct Edge {
  int64_t source;  // -1: out of range
  int64_t id;
};

// The edge with its weight; an index or id out of range makes it count as NaN.
template <class T>
[[gnu::always_inline]] inline std::pair<Edge, AccOf<T>> edge_at(const Csr& csr, const T* weight,
                                                                int64_t at) {
  Edge edge{source_of(csr, at), edge_id(csr, at)};
  AccOf<T> w = 1;
  if (weight) {
    if (edge.id >= 0 && edge.id < csr.edges)
      w = static_cast<AccOf<T>>(weight[edge.id]);
    else
      edge.source = -1;
  }
  return {edge, edge.source < 0 ? kNaN<T> : w};
}

}  // namespace
}  // namespace gpuprims
