#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "common/cuda_stable.h"
#include "topk/boxed.h"
#include "topk/filter.h"
#include "topk/kernels.h"
#include "topk/plan.h"

namespace gpuprims {
namespace {

// Sizes and strides of a tensor seen as [outer, n, inner] around `dim`, if it can be seen so
// without a copy.
std::optional<RowMap> row_map(TensorRef t, int64_t dim) {
  const auto sizes = t.sizes();
  const auto strides = t.strides();
  const auto rank = static_cast<int64_t>(sizes.size());
  // One stride for a group of dimensions that are dense among themselves.
  const auto stride_of = [&](int64_t begin, int64_t end) -> std::optional<int64_t> {
    int64_t stride = 0, span = -1;
    for (int64_t d = end - 1; d >= begin; --d) {
      if (sizes[d] == 1) continue;
      if (span < 0)
        stride = strides[d];
      else if (strides[d] != span)
        return std::nullopt;
      span = strides[d] * sizes[d];
    }
    return stride;
  };
  if (rank == 0) return RowMap{0, 0, 1};
  const auto outer = stride_of(0, dim), inner = stride_of(dim + 1, rank);
  if (!outer || !inner) return std::nullopt;
  return RowMap{*outer, *inner, sizes[dim] == 1 ? 1 : strides[dim]};
}

Tensor with_dim_last(TensorRef t, int64_t dim) {
  std::array<StableIValue, 3> stack{torch::stable::detail::from(t.shared()),
                                    torch::stable::detail::from(dim),
                                    torch::stable::detail::from(int64_t{-1})};
  check_call(torch_call_dispatcher("aten::movedim", "int", stack.data(), TORCH_ABI_VERSION),
             "movedim");
  return torch::stable::contiguous(torch::stable::detail::to<Tensor>(stack[0]));
}

Tensor expanded(const Tensor& t, TensorRef like) {
  const auto sizes = like.sizes();
  std::array<StableIValue, 3> stack{
      torch::stable::detail::from(t),
      torch::stable::detail::from(std::vector<int64_t>(sizes.begin(), sizes.end())),
      torch::stable::detail::from(false)};
  check_call(torch_call_dispatcher("aten::expand", "", stack.data(), TORCH_ABI_VERSION), "expand");
  return torch::stable::detail::to<Tensor>(stack[0]);
}

TopkAlgo forced_algo() {
  static const TopkAlgo algo = [] {
    const char* name = std::getenv("GPUPRIMS_TOPK_ALGO");
    for (int a = 1; name && a < kTopkAlgos; ++a)
      if (!std::strcmp(name, topk_algo_name(static_cast<TopkAlgo>(a))))
        return static_cast<TopkAlgo>(a);
    return TopkAlgo::automatic;
  }();
  return algo;
}

bool captures(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess)
    return status != cudaStreamCaptureStatusNone;
  cudaGetLastError();  // the legacy stream, while another one captures
  return true;
}

// Zeros that part_row leaves as zeros: cleared once for each stream, whose kernels take turns. A
// graph may be replayed beside the stream that captured it, so it has its own, and clears them.
uint32_t* take_tickets(TensorRef input, int64_t count, int device, cudaStream_t stream,
                       std::optional<Tensor>& own) {
  constexpr int64_t kMost = 1024;  // rows: at most one a multiprocessor
  const auto cleared = [&](int64_t tickets) {
    Tensor memory = workspace("topk", input, tickets * 4);
    check_cuda("topk", cudaMemsetAsync(memory.mutable_data_ptr(), 0, tickets * 4, stream));
    return memory;
  };
  if (count > kMost || stream == cudaStreamPerThread || captures(stream)) {
    own = cleared(count);
    return static_cast<uint32_t*>(own->mutable_data_ptr());
  }
  static std::mutex mutex;
  static auto* const kept = new std::map<std::pair<int, cudaStream_t>, Tensor>;  // to the end
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = kept->find({device, stream});
  if (found == kept->end()) found = kept->emplace(std::pair(device, stream), cleared(kMost)).first;
  return static_cast<uint32_t*>(found->second.mutable_data_ptr());
}

// Rows one after another, without gaps.
bool is_dense(const RowMap& map, const TopkShape& shape) {
  if (map.step != 1) return false;
  return shape.rows == 1 ||
         (map.outer == shape.inner * shape.n && (shape.inner == 1 || map.inner_stride == shape.n));
}

// What the plan calls vectors.
bool has_vectors(TensorRef input, const std::optional<RowMap>& map, const TopkShape& shape,
                 bool largest, bool masked) {
  const bool ordered =
      shape.dtype == Dtype::f32 || shape.dtype == Dtype::f16 || shape.dtype == Dtype::bf16;
  if (!ordered || !largest || masked || !map || map->step != 1 || shape.inner != 1) return false;
  const int64_t vector = topk_vector(shape.dtype);
  return shape.n % vector == 0 && map->outer % vector == 0 &&
         reinterpret_cast<uintptr_t>(input.const_data_ptr()) % 16 == 0;
}

}  // namespace

TopkResult topk_cuda(TensorRef input, int64_t k, int64_t dim, bool largest,
                     const std::optional<Tensor>& mask, int64_t index_bits) {
  const TopkShape shape = check_topk(input, k, dim, mask, index_bits);
  if (shape.rank == 0) k = 1;  // one slot is all that a 0-d result can have, as in torch.topk
  const auto device = input.get_device_index();
  const DeviceGuard guard(device);
  TopkResult result = allocate_topk(input, shape, index_bits);
  const DeviceInfo& info = device_info(device);
  const auto map = row_map(input, shape.dim);
  TopkProblem problem{shape.dtype, shape.rows,    shape.n,          k,
                      info.sms,    forced_algo(), mask.has_value(), info.smem};
  problem.inner = shape.inner;
  problem.index_bits = static_cast<int>(index_bits);
  problem.vectors = has_vectors(input, map, shape, largest, mask.has_value());
  const TopkPlan plan = plan_topk(problem);
  if (plan.grid == 0) return result;

  TopkArgs args;
  args.rows = shape.rows;
  args.n = shape.n;
  args.k = k;
  args.inner = shape.inner;
  args.dtype = shape.dtype;
  args.largest = largest;
  args.wide_index = index_bits == 64;
  const RowMap dense{shape.inner * shape.n, shape.n, 1};  // of [outer, inner, n]
  std::optional<Tensor> copy, dropped;                    // live until the launch
  const bool sorts_rows = plan.algo == TopkAlgo::radix && !plan.filtered;
  if (map && map->step == 1 && (!sorts_rows || is_dense(*map, shape))) {
    args.in = *map;
  } else {
    copy = with_dim_last(input, shape.dim);
    args.in = dense;
  }
  if (mask) {
    dropped = expanded(*mask, input);
    const auto drop = row_map(*dropped, shape.dim);
    if (!drop) dropped = with_dim_last(*dropped, shape.dim);
    args.drop = drop ? *drop : dense;
    args.mask = static_cast<const uint8_t*>(dropped->const_data_ptr());
  }
  args.input = (copy ? TensorRef(*copy) : input).const_data_ptr();
  args.values = data_of(result.values);
  args.indices = data_of(result.indices);

  const cudaStream_t stream = current_stream(device);
  std::optional<Tensor> scratch;
  if (plan.workspace > 0) scratch = workspace("topk", input, plan.workspace);
  void* const memory = scratch ? scratch->mutable_data_ptr() : nullptr;
  switch (plan.algo) {
    case TopkAlgo::lanes:
      check_cuda("topk", launch_topk_lanes(args, plan, stream));
      break;
    case TopkAlgo::warp_row:
      check_cuda("topk", launch_topk_warp(args, plan, stream));
      break;
    case TopkAlgo::cluster_row:
      check_cuda("topk", launch_topk_cluster(args, plan, stream));
      break;
    case TopkAlgo::part_row: {
      std::optional<Tensor> own;
      uint32_t* const tickets =
          plan.splits > 1 ? take_tickets(input, args.rows, device, stream, own) : nullptr;
      check_cuda("topk", launch_topk_part(args, plan, memory, tickets, stream));
      break;
    }
    case TopkAlgo::count_row:
      check_cuda("topk", launch_topk_count(args, plan, stream));
      break;
    case TopkAlgo::thread_row:
      check_cuda("topk", launch_topk_thread(args, plan, stream));
      break;
    case TopkAlgo::radix:
      check_cuda("topk",
                 launch_topk_radix(args,
                                   plan_radix(shape.dtype, shape.rows, shape.n, k, shape.inner,
                                              static_cast<int>(index_bits), info.sms),
                                   memory, info.sms, stream));
      break;
    case TopkAlgo::sort:
      check_cuda("topk", launch_topk_sort(args, plan, memory, stream));
      break;
    default:
      check_cuda("topk", launch_topk_stream(args, plan, memory, stream));
  }
  return result;
}

}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("topk", &gpuprims::boxed_topk<gpuprims::topk_cuda>);
  m.impl("_topk", &gpuprims::boxed_plain_topk<gpuprims::topk_cuda>);
}
