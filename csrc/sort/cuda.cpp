// Tensors -> plan -> launches.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "common/bad_data.h"
#include "common/cuda_stable.h"
#include "sort/checks.h"
#include "sort/forced_spread.h"
#include "sort/kernels.h"
#include "sort/layout.h"
#include "sort/rows.h"

namespace gpuprims {
namespace {

// What the environment says when the library is loaded, which is at import.
const bool kExactRanks = std::getenv("GPUPRIMS_SORT_EXACT") != nullptr;

int number_in(const char* variable, int most) {
  const char* const set = std::getenv(variable);
  return set ? std::min(std::atoi(set), most) : -1;
}
const int kCodeBits = number_in("GPUPRIMS_SORT_CODES", 16);  // of long rows' codes; 0 for none
const int kRowParts = number_in("GPUPRIMS_SORT_PARTS", kMaxParts);  // of a row; 0 for none

const SortAlgo kForcedAlgo = [] {
  const char* const name = std::getenv("GPUPRIMS_SORT_ALGO");
  for (int a = 1; name && a <= 3; ++a)
    if (!std::strcmp(name, sort_algo_name(static_cast<SortAlgo>(a))))
      return static_cast<SortAlgo>(a);
  return SortAlgo::automatic;
}();

ScalarType index_type(int64_t bits) { return bits == 64 ? ScalarType::Long : ScalarType::Int; }

struct Result {
  std::optional<Tensor> values, indices;
};

Result sort_dim(const char* op, const Tensor& input, const SortShape& shape, bool descending,
                bool want_values, bool want_indices, int64_t index_bits, int64_t begin_bit,
                int64_t end_bit, bool in_place = false) {
  const int device = input.get_device_index();
  const DeviceGuard guard(device);
  const Tensor source = rows_last(op, input, shape.dim, shape.last);
  SortProblem problem{shape.dtype,
                      shape.rows,
                      shape.n,
                      want_values,
                      want_indices,
                      static_cast<int>(index_bits),
                      static_cast<int>(begin_bit),
                      static_cast<int>(end_bit),
                      device_info(device).sms,
                      kForcedAlgo,
                      in_place,
                      kCodeBits,
                      kRowParts,
                      forced_spread()};
  const SortPlan plan = plan_sort(problem);
  Result result;
  SortArgs args;
  args.input = source.const_data_ptr();
  if (want_values) {
    result.values = in_place ? input : empty_as(op, source, input.scalar_type());
    args.values = result.values->mutable_data_ptr();
  }
  if (want_indices) {
    result.indices = empty_as(op, source, index_type(index_bits));
    args.indices = result.indices->mutable_data_ptr();
  }
  if (plan.grid > 0) {
    args.rows = shape.rows;
    args.n = shape.n;
    args.begin_bit = problem.begin_bit;
    args.end_bit = problem.end_bit;
    args.wide_index = index_bits == 64;
    args.packed = plan.packed;
    args.exact = kExactRanks;
    set_order(args, shape.dtype, descending, !want_indices);
    const cudaStream_t stream = current_stream(device);
    if (plan.algo != SortAlgo::sweep) {
      check_cuda(op, launch_sort_rows(args, plan, nullptr, problem.sms, stream));
    } else {
      const Tensor memory = workspace(op, input, plan.workspace);
      char* const base = static_cast<char*>(memory.mutable_data_ptr());
      check_cuda(op, launch_sort_rows(args, plan, base, problem.sms, stream));
    }
  }
  if (want_values) result.values = rows_back(op, *result.values, shape.dim, shape.last);
  if (want_indices) result.indices = rows_back(op, *result.indices, shape.dim, shape.last);
  return result;
}

}  // namespace

std::tuple<Tensor, Tensor> sort_cuda(const Tensor& input, int64_t dim, bool descending,
                                     int64_t index_bits) {
  const SortShape shape = check_sort("sort", input, dim);
  check_index_bits("sort", index_bits, shape.n);
  Result r = sort_dim("sort", input, shape, descending, true, true, index_bits, 0,
                      dtype_bytes(shape.dtype) * 8);
  return {*r.values, *r.indices};
}

Tensor argsort_cuda(const Tensor& input, int64_t dim, bool descending, int64_t index_bits,
                    int64_t begin_bit, int64_t end_bit) {
  const SortShape shape = check_sort("argsort", input, dim);
  check_index_bits("argsort", index_bits, shape.n);
  end_bit = check_bits("argsort", shape.dtype, begin_bit, end_bit);
  return *sort_dim("argsort", input, shape, descending, false, true, index_bits, begin_bit, end_bit)
              .indices;
}

Tensor sort_keys_cuda(const Tensor& input, int64_t dim, bool descending) {
  const SortShape shape = check_sort("sort_keys", input, dim);
  return *sort_dim("sort_keys", input, shape, descending, true, false, 64, 0,
                   dtype_bytes(shape.dtype) * 8)
              .values;
}

void sort_keys_in_place_cuda(const Tensor& input, bool descending) {
  const SortShape shape = check_sort_in_place(input);
  sort_dim("sort_keys", input, shape, descending, true, false, 64, 0, dtype_bytes(shape.dtype) * 8,
           true);
}

namespace {

// GPUPRIMS_CHECK=1 waits for the device and raises.
void raise_if_bad(const uint32_t* bad, int64_t n, cudaStream_t stream) {
  if (!raise_on_bad_data()) return;
  uint32_t flag = 0;
  constexpr auto op = "segment_sort";
  check_cuda(op, cudaMemcpyAsync(&flag, bad, sizeof(flag), cudaMemcpyDeviceToHost, stream));
  check_cuda(op, cudaStreamSynchronize(stream));
  check(!flag, op, ": indptr must rise from 0 to the number of keys (", n, ")");
}

}  // namespace

// Every class of lengths has its kernel, which finds its segments in a list on the device; classes
// that n is too small for are left out.
std::tuple<Tensor, Tensor> segment_sort_cuda(const Tensor& keys, const Tensor& indptr,
                                             bool descending, int64_t index_bits) {
  constexpr auto op = "segment_sort";
  check_segments(keys, indptr, index_bits);
  const int device = keys.get_device_index(), sms = device_info(device).sms;
  const DeviceGuard guard(device);
  const Tensor source = dense(op, keys), at = dense(op, indptr);
  Tensor values = empty_as(op, source, keys.scalar_type());
  Tensor indices = empty_as(op, source, index_type(index_bits));
  const int64_t n = keys.size(0);
  if (n == 0 && !raise_on_bad_data()) return {values, indices};
  const Dtype dtype = dtype_of(op, keys.scalar_type());
  SortArgs args;
  args.input = source.const_data_ptr();
  args.values = values.mutable_data_ptr();
  args.indices = indices.mutable_data_ptr();
  args.rows = at.size(0) - 1;
  args.n = n;
  args.end_bit = dtype_bytes(dtype) * 8;
  args.exact = kExactRanks;
  args.wide_index = index_bits == 64;
  args.indptr = at.const_data_ptr();
  args.wide_indptr = at.scalar_type() == ScalarType::Long;
  set_order(args, dtype, descending, false);
  const cudaStream_t stream = current_stream(device);

  const SegmentSortPlan plan = plan_segments(
      {dtype, 1, n, true, true, static_cast<int>(index_bits), 0, args.end_bit, sms}, args.rows);
  const Tensor memory = workspace(op, keys, plan.workspace);
  char* const base = static_cast<char*>(memory.mutable_data_ptr());
  check_cuda(op, launch_clear(base, plan.clear_bytes, 4 * sms, stream));
  SweepSpace space = space_at(base, plan.sweep, args, index_bits / 8);
  uint32_t* const head = reinterpret_cast<uint32_t*>(base + plan.head_at);
  space.totals = head;
  space.tile_row = reinterpret_cast<uint32_t*>(base + plan.tile_row_at);
  space.tile_base = reinterpret_cast<uint32_t*>(base + plan.tile_base_at);
  SegmentLists lists;
  lists.bad = head + 2;
  for (int c = 0; c < kSegmentClasses; ++c) {
    lists.capacity[c] = plan.capacity[c];
    if (plan.capacity[c] == 0) continue;
    lists.list[c] = reinterpret_cast<RowSpan*>(base + plan.list_at[c]);
    lists.count[c] = c < kSegmentClasses - 1 ? head + 4 + c : head;
  }
  check_cuda(op, launch_segment_lists(args, lists, space, plan.sweep.tiles, is_floating(dtype),
                                      static_cast<int>(plan.list_grid), 2 * sms, stream));
  args.bad = lists.bad;
  raise_if_bad(args.bad, n, stream);
  if (n == 0) return {values, indices};
  args.packed = plan.sweep.packed;
  for (const auto& [shortest, longest, shape] : plan.warps) {
    args.shortest = shortest, args.longest = longest;
    check_cuda(op, launch_sort_warp(args, shape, stream));
  }
  args.shortest = args.longest = 0;
  for (int c = 0; c < kSegmentClasses; ++c) {
    if (plan.capacity[c] == 0) continue;
    args.list = lists.list[c], args.list_count = lists.count[c];
    check_cuda(op, c == 0                    ? launch_sort_warp(args, plan.blocks[c], stream)
                   : c < kSegmentClasses - 1 ? launch_sort_block(args, plan.blocks[c], stream)
                                             : launch_sort_sweep(args, plan.sweep, space, stream));
  }
  return {values, indices};
}

}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("sort", TORCH_BOX(&gpuprims::sort_cuda));
  m.impl("argsort", TORCH_BOX(&gpuprims::argsort_cuda));
  m.impl("sort_keys", TORCH_BOX(&gpuprims::sort_keys_cuda));
  m.impl("_sort_keys_", TORCH_BOX(&gpuprims::sort_keys_in_place_cuda));
  m.impl("segment_sort", TORCH_BOX(&gpuprims::segment_sort_cuda));
}
