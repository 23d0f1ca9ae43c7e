// merge_topk on the CPU: a partial sort of each row's candidates; rows run in parallel.
#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "topk/merge_op_checks.h"
#include "topk/missing.h"

namespace gpuprims {
namespace {

constexpr auto kOp = "merge_topk";

struct Candidate {
  uint64_t key;
  int64_t index;
  int64_t position;

  bool operator<(const Candidate& other) const {  // better
    if (key != other.key) return key > other.key;
    return index != other.index ? index < other.index : position < other.position;
  }
};

// The candidates of a row that exist; returns how many.
template <class Key, class Index>
int64_t read_row(const Key* values, const Index* indices, int64_t m, const KeyCodec<Key>& codec,
                 Candidate* out) {
  int64_t count = 0;
  for (int64_t i = 0; i < m; ++i)
    if (indices[i] >= 0) out[count++] = {codec.encode(values[i]), indices[i], i};
  return count;
}

template <class Key, class Index>
void merge_rows(const MergeShape& shape, int64_t k, bool largest, const void* values_,
                const void* indices_, void* out_values_, void* out_indices_, int64_t* positions) {
  const auto* const values = static_cast<const Key*>(values_);
  const auto* const indices = static_cast<const Index*>(indices_);
  auto* const out_values = static_cast<Key*>(out_values_);
  auto* const out_indices = static_cast<Index*>(out_indices_);
  const KeyCodec<Key> codec = make_codec<Key>(shape.dtype, largest);
  const Key missing = static_cast<Key>(missing_bits(shape.dtype, largest));
  const int64_t m = shape.m, grain = std::max<int64_t>(1, 8192 / (m + k + 1));
  std::atomic<bool> refused{false};
  torch::stable::parallel_for(0, shape.rows, grain, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<Candidate[]> row(new (std::nothrow) Candidate[m]);
    if (!row) refused = true;
    for (int64_t r = begin; row && r < end; ++r) {
      const int64_t count = read_row(values + r * m, indices + r * m, m, codec, row.get());
      const int64_t found = std::min(k, count);
      std::partial_sort(row.get(), row.get() + found, row.get() + count);
      for (int64_t i = 0; i < k; ++i) {
        const int64_t at = r * k + i;
        const bool there = i < found;
        out_values[at] = there ? values[r * m + row[i].position] : missing;
        out_indices[at] = static_cast<Index>(there ? row[i].index : -1);
        positions[at] = there ? row[i].position : -1;
      }
    }
  });
  check(!refused, kOp, ": out of memory allocating ", m * int64_t{sizeof(Candidate)}, " bytes");
}

template <class Key, class... Args>
void run(bool wide_index, const Args&... args) {
  if (wide_index)
    merge_rows<Key, int64_t>(args...);
  else
    merge_rows<Key, int32_t>(args...);
}

std::tuple<Tensor, Tensor, Tensor> merge_topk_cpu(const Tensor& values_in, const Tensor& indices_in,
                                                  int64_t k, bool largest) {
  const MergeShape shape = check_merge_topk(values_in, indices_in, k);
  const auto dense = [](const Tensor& t) {
    return t.is_contiguous() ? t : torch::stable::contiguous(t);
  };
  const Tensor values = dense(values_in), indices = dense(indices_in);
  const int64_t* const sizes = shape.output.data();
  const auto rank = static_cast<int64_t>(shape.output.size());
  Tensor out_values = empty(kOp, values, values.scalar_type(), sizes, rank);
  Tensor out_indices = empty(kOp, values, indices.scalar_type(), sizes, rank);
  Tensor positions = empty(kOp, values, ScalarType::Long, sizes, rank);
  if (shape.rows > 0 && k > 0) {
    const bool wide = indices.scalar_type() == ScalarType::Long;
    const auto call = [&](auto run_width) {
      run_width(wide, shape, k, largest, values.const_data_ptr(), indices.const_data_ptr(),
                out_values.mutable_data_ptr(), out_indices.mutable_data_ptr(),
                static_cast<int64_t*>(positions.mutable_data_ptr()));
    };
    const int bytes = dtype_bytes(shape.dtype);
    if (bytes == 1) call([](const auto&... args) { run<uint8_t>(args...); });
    if (bytes == 2) call([](const auto&... args) { run<uint16_t>(args...); });
    if (bytes == 4) call([](const auto&... args) { run<uint32_t>(args...); });
    if (bytes == 8) call([](const auto&... args) { run<uint64_t>(args...); });
  }
  return {std::move(out_values), std::move(out_indices), std::move(positions)};
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("merge_topk", TORCH_BOX(&gpuprims::merge_topk_cpu));
}
