// pack_rows, unpack_rows and gather_packed: tensors to launches.
#include "common/cuda_stable.h"
#include "reorder/checks.h"
#include "reorder/kernels.h"

namespace gpuprims::reorder {
namespace {

// The widest word that divides a slot and the places of both ends.
int pick_word(int64_t slot_bytes, const void* a, const void* b) {
  const uint64_t bits = static_cast<uint64_t>(slot_bytes) | reinterpret_cast<uint64_t>(a) |
                        reinterpret_cast<uint64_t>(b);
  for (int word = 16; word > 1; word /= 2)
    if (bits % word == 0) return word;
  return 1;
}

// GPUPRIMS_CHECK=1 waits for the device and raises.
void raise_if_bad(const char* op, const int* flag, cudaStream_t stream) {
  if (!raise_on_bad_data()) return;
  int raised = 0;
  check_cuda(op, cudaMemcpyAsync(&raised, flag, sizeof raised, cudaMemcpyDeviceToHost, stream));
  check_cuda(op, cudaStreamSynchronize(stream));
  check_good(op, raised == 0);
}

MoveArgs args_for(const Tensor& from, const Tensor& out) {
  MoveArgs args;
  args.from = from.const_data_ptr();
  args.to = out.mutable_data_ptr();
  args.element = static_cast<int>(element_bytes(from.scalar_type()));
  const int64_t bytes = args.element * features_of(from);
  args.word = pick_word(bytes, args.from, args.to);
  args.words = bytes / args.word;
  args.bad = bad_bits(from.scalar_type());
  return args;
}

void move_rows(const char* op, MoveArgs args, const Tensor& like, int64_t promises,
               const MaybeTensor& fill, bool clear, int64_t out_bytes) {
  const cudaStream_t stream = current_stream(like.get_device_index());
  std::optional<Tensor> memory;
  if (fill) args.fill = fill->const_data_ptr();
  const bool look = !(promises & kChecked) || raise_on_bad_data();
  if (look) {
    memory = workspace(op, like, 64);
    int* const flag = static_cast<int*>(memory->mutable_data_ptr());
    check_cuda(op, launch_check(args.p, true, {flag}, stream));
    raise_if_bad(op, flag, stream);
    args.flag = flag;
  }
  if (out_bytes == 0) return;
  if (look && clear)  // rows may repeat in the order
    check_cuda(op, cudaMemsetAsync(args.to, 0, static_cast<size_t>(out_bytes), stream));
  check_cuda(op, launch_move(args, stream));
}

void pack(const char* op, const Tensor& values_in, const PackingTensors& p, const MaybeTensor& fill,
          int64_t promises, Tensor& out) {
  const Tensor values = dense(values_in);
  MoveArgs args = args_for(values, out);
  args.p = p.at;
  args.move = Move::pack;
  move_rows(op, args, values, promises, fill, false, out.numel() * args.element);
}

Tensor pack_rows_cuda(const Tensor& values, const Tensor& indptr, const MaybeTensor& slices,
                      const MaybeTensor& order, const MaybeTensor& units, int64_t slots,
                      const MaybeTensor& fill, int64_t promises) {
  constexpr auto op = "pack_rows";
  check_rows_of(op, "values", values);
  check_packing(op, values, "values", indptr, slices, order, units, slots);
  check_fill(op, fill, values);
  const DeviceGuard guard(values.get_device_index());
  const PackingTensors p(indptr, slices, order, units, slots, values.size(0), promises);
  Tensor out = rows_like(op, values, slots);
  pack(op, values, p, fill, promises, out);
  return out;
}

void pack_rows_into_cuda(Tensor out, const Tensor& values, const Tensor& indptr,
                         const MaybeTensor& slices, const MaybeTensor& order,
                         const MaybeTensor& units, const MaybeTensor& fill, int64_t promises) {
  constexpr auto op = "pack_rows";
  check_rows_of(op, "values", values);
  check_out(op, out, values);
  check_packing(op, values, "values", indptr, slices, order, units, out.size(0));
  check_fill(op, fill, values);
  const DeviceGuard guard(values.get_device_index());
  const PackingTensors p(indptr, slices, order, units, out.size(0), values.size(0), promises);
  pack(op, values, p, fill, promises, out);
}

Tensor unpack_rows_cuda(const Tensor& packed_in, const Tensor& indptr, const MaybeTensor& slices,
                        const MaybeTensor& order, const MaybeTensor& units, int64_t entries,
                        int64_t promises) {
  constexpr auto op = "unpack_rows";
  check_rows_of(op, "packed", packed_in);
  check_packing(op, packed_in, "packed", indptr, slices, order, units, packed_in.size(0));
  check(entries >= 0, op, ": entries must not be negative, got ", entries);
  const DeviceGuard guard(packed_in.get_device_index());
  const Tensor packed = dense(packed_in);
  const PackingTensors p(indptr, slices, order, units, packed.size(0), entries, promises);
  Tensor out = rows_like(op, packed, entries);
  MoveArgs args = args_for(packed, out);
  args.p = p.at;
  args.move = Move::unpack;
  move_rows(op, args, packed, promises, {}, order.has_value(), out.numel() * args.element);
  return out;
}

void gather(const char* op, const Tensor& values_in, const Tensor& index_in,
            const MaybeTensor& fill, Tensor& out) {
  const Tensor values = dense(values_in), index = dense(index_in);
  if (out.numel() == 0) return;
  MoveArgs args = args_for(values, out);
  args.move = Move::gather;
  args.index = index.const_data_ptr();
  args.wide_index = index.scalar_type() == ScalarType::Long;
  args.count = index.size(0);
  args.source_rows = values.size(0);
  if (fill) args.fill = fill->const_data_ptr();
  check_cuda(op, launch_move(args, current_stream(values.get_device_index())));
}

Tensor gather_packed_cuda(const Tensor& values, const Tensor& index, const MaybeTensor& fill,
                          const MaybeTensor& t_indptr, const MaybeTensor& t_order) {
  constexpr auto op = "gather_packed";
  check_gather(op, values, index, fill);
  const DeviceGuard guard(values.get_device_index());
  Tensor out = rows_like(op, values, index.size(0));
  gather(op, values, index, fill, out);
  return out;
}

void gather_packed_into_cuda(Tensor out, const Tensor& values, const Tensor& index,
                             const MaybeTensor& fill) {
  constexpr auto op = "gather_packed";
  check_gather(op, values, index, fill);
  check_out(op, out, values);
  check(out.size(0) == index.size(0), op, ": out must have ", index.size(0), " rows, got ",
        out.size(0));
  const DeviceGuard guard(values.get_device_index());
  gather(op, values, index, fill, out);
}

}  // namespace
}  // namespace gpuprims::reorder

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("pack_rows", TORCH_BOX(&gpuprims::reorder::pack_rows_cuda));
  m.impl("_pack_rows", TORCH_BOX(&gpuprims::reorder::pack_rows_into_cuda));
  m.impl("unpack_rows", TORCH_BOX(&gpuprims::reorder::unpack_rows_cuda));
  m.impl("gather_packed", TORCH_BOX(&gpuprims::reorder::gather_packed_cuda));
  m.impl("_gather_packed", TORCH_BOX(&gpuprims::reorder::gather_packed_into_cuda));
}
