// The winners of a warp's rows, through shared memory to device memory.
#pragma once
#include "topk/networks.cuh"
#include "topk/rows.cuh"

namespace gpuprims {

struct ThreadShape {
  int lanes;    // a row
  int shift;    // log2 of them
  int slots;    // of a lane's list
  int mask_at;  // bytes from the start of a warp's shared memory
  int list_at;
  int warp_bytes;
  uint32_t inverse_k;  // ceil(2^32 / k): rows from slots; 0 for k = 1
  bool runs;           // a warp's rows are copied as one run where they can be
};

// Winners in shared memory, `stride` slots a row, then to device memory as one run.
template <class T>
__device__ __forceinline__ void write_run(T* to, const T* from, int total, int pad,
                                          uint32_t inverse_k, int lane) {
#pragma unroll 1
  for (int i = lane; i < total; i += 32) {
    const int row = static_cast<int>(__umulhi(static_cast<uint32_t>(i), inverse_k));
    to[i] = from[i + row * pad];
  }
}

template <class Key, int K, class Order>
__device__ __forceinline__ void write_winners(const TopkArgs& args, const ThreadShape& shape,
                                              unsigned char* memory, const Entry<Order> (&list)[K],
                                              const Key (&bits)[K], int64_t first, int count,
                                              int lane) {
  const int k = static_cast<int>(args.k), row = lane >> shape.shift;
  const int part = lane & (shape.lanes - 1);
  const auto each = [&](const auto& put) {  // lanes that share a row take turns
#pragma unroll
    for (int i = 0; i < K; ++i)
      if (i < k && (i & (shape.lanes - 1)) == part && row < count)
        put(i, bits[i], list[i].index == kNoIndex ? -1 : list[i].index);
  };
  if (args.inner != 1) {
    const RowPlace place(first + (row < count ? row : 0), args.inner);
    const int64_t base = place.outer * args.k * args.inner + place.inner;
    each([&](int i, Key value, int index) {
      const int64_t at = base + i * args.inner;
      static_cast<Key*>(args.values)[at] = value;
      if (args.wide_index)
        static_cast<int64_t*>(args.indices)[at] = index;
      else
        static_cast<int32_t*>(args.indices)[at] = index;
    });
    return;
  }
  const int stride = k | 1, slots = (32 >> shape.shift) * stride;  // odd: no bank conflicts
  Key* const values = reinterpret_cast<Key*>(memory);
  unsigned char* const behind = memory + (slots * sizeof(Key) + 7) / 8 * 8;
  const auto write = [&](auto* indices) {
    using Index = std::remove_pointer_t<decltype(indices)>;
    each([&](int i, Key value, int index) {
      values[row * stride + i] = value;
      indices[row * stride + i] = index;
    });
    __syncwarp();
    const int64_t at = first * k;
    write_run(static_cast<Key*>(args.values) + at, values, count * k, stride - k, shape.inverse_k,
              lane);
    write_run(static_cast<Index*>(args.indices) + at, indices, count * k, stride - k,
              shape.inverse_k, lane);
  };
  if (args.wide_index)
    write(reinterpret_cast<int64_t*>(behind));
  else
    write(reinterpret_cast<int32_t*>(behind));
}

}  // namespace gpuprims
