// Label propagation on the CPU.
#include <algorithm>

#include "aggregate/cpu_rows.h"
#include "aggregate/labels_checks.h"

namespace gpuprims {
namespace {

int32_t label_at(const LabelArgs& a, int64_t edge) {
  const int64_t node = load_int(a.indices, a.wide_indices, edge);
  return node >= 0 && node < a.rows ? a.from[node] : kNoLabel;
}

// Labels of the neighbours that are looked at; how many.
int sample(const LabelArgs& a, int64_t row, int32_t* labels) {
  const int64_t begin = load_int(a.indptr, a.wide_offsets, row);
  const int64_t end = load_int(a.indptr, a.wide_offsets, row + 1);
  if (begin < 0 || end <= begin || end > a.edges) return 0;
  const int count = static_cast<int>(std::min<int64_t>(end - begin, kSampled));
  for (int s = 0; s < count; ++s) labels[s] = label_at(a, sample_at(begin, end - begin, s, count));
  return count;
}

int32_t majority(const LabelArgs& a, int64_t row) {
  int32_t labels[kSampled];
  const int count = sample(a, row, labels);
  std::sort(labels, labels + count);
  int32_t winner = a.from[row];
  int most = 0;
  for (int i = 0; i < count && labels[i] != kNoLabel;) {
    int end = i;
    while (end < count && labels[end] == labels[i]) ++end;
    if (end - i > most || (end - i == most && scrambled(labels[i]) > scrambled(winner)))
      most = end - i, winner = labels[i];
    i = end;
  }
  return winner;
}

int32_t grown(const LabelArgs& a, int64_t row) {
  int32_t labels[kSampled];
  if (a.from[row] != kNoLabel) return a.from[row];
  const int count = sample(a, row, labels);
  return count > 0 ? *std::min_element(labels, labels + count) : kNoLabel;
}

}  // namespace

Tensor graph_labels_cpu(const Tensor& indptr, const Tensor& indices, int64_t method, int64_t rounds,
                        int64_t spacing) {
  check_labels(indptr, indices, method, rounds, spacing);
  LabelTensors labels(indptr, indices);
  const bool grow = method == 1;
  auto* const first = static_cast<int32_t*>(labels.first.data_ptr());
  for (int64_t row = 0; row < labels.rows; ++row)
    first[row] = !grow || row % spacing == 0 ? static_cast<int32_t>(row) : kNoLabel;
  for (int64_t round = 0; round < rounds; ++round) {
    const LabelArgs& a = labels.args;
    torch::stable::parallel_for(0, labels.rows, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        a.to[row] = grow ? grown(a, row) : majority(a, row);
    });
    labels.turn();
  }
  return labels.first;
}

}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("_graph_labels", TORCH_BOX(&gpuprims::graph_labels_cpu));
}
