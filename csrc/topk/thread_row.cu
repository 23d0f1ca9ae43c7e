// Many short rows: a thread a row, or 2, 4, 8 lanes a row, whose warp brings its rows to shared
// memory. Work is counted in instructions, of which a warp of 32 rows of 100 takes about 1,100.
//
// 1. Element i belongs to group i % G: the groups' best elements are G running maxima. The k-th
//    best of them is a bound that k elements reach, and hardly more than k: G ln(G / (G - k)).
// 2. A bit for each vector whose best element reaches the bound.
// 3. The elements of those vectors, in index order, enter a sorted list in registers if they are
//    better than its last: equal elements keep the lowest index, and cost no more than others.
#include "common/launch.h"
#include "topk/lane_keys.cuh"
#include "topk/networks.cuh"
#include "topk/tile.cuh"

namespace gpuprims {
namespace {

extern __shared__ __align__(16) unsigned char dynamic_memory[];

struct ThreadShape {
  int lanes;           // a row
  int mask_at;         // bytes from the start of a warp's shared memory
  int warp_bytes;      // shared memory
  uint32_t inverse_k;  // ceil(2^32 / k): rows from slots; 0 for k = 1
};

// A row in shared memory as the lanes that share it see it.
template <class Key, bool kAligned>
struct SharedRow {
  static constexpr int kVector = Vector<Key>::kSize;
  const unsigned char* bytes;
  int n;
  int begin, end;  // this lane's vectors
  int twist;       // lanes look at vectors in different orders, so that banks do not clash

  __device__ __forceinline__ Key element(int index) const {
    return reinterpret_cast<const Key*>(bytes)[index];
  }
  __device__ __forceinline__ uint4 load(int vector) const {
    const unsigned char* const from = bytes + vector * 16;
    if constexpr (kAligned) return *reinterpret_cast<const uint4*>(from);
    const auto address = reinterpret_cast<uintptr_t>(from);
    const auto* const words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t{3});
    if constexpr (sizeof(Key) >= 4) return make_uint4(words[0], words[1], words[2], words[3]);
    const unsigned shift = static_cast<unsigned>(address) % 4 * 8;
    return make_uint4(
        __funnelshift_r(words[0], words[1], shift), __funnelshift_r(words[1], words[2], shift),
        __funnelshift_r(words[2], words[3], shift), __funnelshift_r(words[3], words[4], shift));
  }
};

// The groups' maxima of this lane, as keys.
template <int kGroups, class S, class Row>
__device__ __forceinline__ void group_maxima(const S& view, const Row& row, int share, bool even,
                                             typename S::Order (&out)[kGroups]) {
  constexpr int kVector = Row::kVector, kLoads = kGroups / kVector;
  typename S::Value best[kLoads][kVector];
#pragma unroll
  for (int a = 0; a < kLoads; ++a)
#pragma unroll
    for (int j = 0; j < kVector; ++j) best[a][j] = S::worst();
  int u = 0;
  const int whole = even ? share / kLoads * kLoads : 0;
  for (; u < whole; u += kLoads) {
#pragma unroll
    for (int a = 0; a < kLoads; ++a) {
      Vector<typename S::Key> vector;
      vector.raw = row.load(row.begin + ((u + a) ^ row.twist));
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        best[a][j] = S::best(best[a][j], view.value(vector.element[j]));
    }
  }
  for (; u < share; u += kLoads) {
#pragma unroll
    for (int a = 0; a < kLoads; ++a) {
      const int v = row.begin + ((u + a) ^ row.twist);
      if (u + a >= share || v >= row.end) continue;
      Vector<typename S::Key> vector;
      vector.raw = row.load(v);
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        if (v * kVector + j < row.n)
          best[a][j] = S::best(best[a][j], view.value(vector.element[j]));
    }
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) out[g] = S::order(best[g / kVector][g % kVector]);
}

// The key of a vector's best element; elements behind the row's end may count.
template <class S, class Row>
__device__ __forceinline__ typename S::Order vector_order(const S& view, const Row& row, int v) {
  Vector<typename S::Key> vector;
  vector.raw = row.load(v);
  typename S::Value best = view.value(vector.element[0]);
#pragma unroll
  for (int j = 1; j < Row::kVector; ++j) best = S::best(best, view.value(vector.element[j]));
  return S::order(best);
}

// Bit i: vector base + i of this lane may have an element above `limit`. Once k vectors are found,
// later elements must be above the bound itself.
template <class S, class Row>
__device__ __forceinline__ uint32_t reaching_vectors(const S& view, const Row& row, int base,
                                                     int count, bool even, int k,
                                                     typename S::Order limit,
                                                     typename S::Order bound) {
  uint32_t reaching = 0;
  for (int block = 0; block < count; block += 8) {
    uint32_t found = 0;
    const int first = row.begin + base + block;
    if (even && block + 8 <= count) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (vector_order(view, row, first + (i ^ row.twist)) > limit) found |= 1u << i;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int v = first + (i ^ row.twist);
        if (block + i < count && v < row.end && vector_order(view, row, v) > limit)
          found |= 1u << i;
      }
    }
    reaching |= found << block;
    if (__popc(reaching) >= k && bound > limit) limit = bound;
  }
  // Bit i stands for vector i ^ twist.
  if (row.twist & 1) reaching = (reaching & 0x55555555u) << 1 | (reaching >> 1 & 0x55555555u);
  if (row.twist & 2) reaching = (reaching & 0x33333333u) << 2 | (reaching >> 2 & 0x33333333u);
  if (row.twist & 4) reaching = (reaching & 0x0f0f0f0fu) << 4 | (reaching >> 4 & 0x0f0f0f0fu);
  return reaching;
}

// Winners in shared memory, `stride` slots a row, then to device memory as one run.
template <class T>
__device__ __forceinline__ void write_run(T* to, const T* from, int total, int pad,
                                          uint32_t inverse_k, int lane) {
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
  const int k = static_cast<int>(args.k), row = lane / shape.lanes, part = lane % shape.lanes;
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
  const int stride = k | 1, slots = 32 / shape.lanes * stride;  // odd: no bank conflicts
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

// kAligned: rows are whole vectors, so that they start at multiples of 16 bytes.
template <class S, int K, bool kAligned>
__global__ void __launch_bounds__(128)
    topk_thread(const __grid_constant__ TopkArgs args,
                const __grid_constant__ KeyCodec<typename S::Key> codec,
                const __grid_constant__ ThreadShape shape) {
  using Key = typename S::Key;
  using Order = typename S::Order;
  constexpr int kVector = Vector<Key>::kSize, kGroups = K > 8 ? 2 * K : 16;
  const int lane = threadIdx.x % 32, rows = 32 / shape.lanes;
  const int n = static_cast<int>(args.n), k = static_cast<int>(args.k);
  unsigned char* const memory = dynamic_memory + threadIdx.x / 32 * shape.warp_bytes;
  Key* const tile = reinterpret_cast<Key*>(memory);
  uint8_t* const mask = memory + shape.mask_at;
  const S view(codec);

  const int vectors = (n + kVector - 1) / kVector;
  const int share = (vectors + shape.lanes - 1) / shape.lanes;
  const bool even = share * shape.lanes * kVector == n;
  const int mine = lane / shape.lanes, part = lane % shape.lanes;
  SharedRow<Key, kAligned> row;
  row.n = n;
  row.begin = part * share;
  row.end = row.begin + share < vectors ? row.begin + share : vectors;
  row.twist = 0;
  if (kAligned && even) {  // lane l starts at vector l * share
    const int zeros = __ffs(share | 8) - 1;
    row.twist = (lane >> (3 - zeros)) & ((1 << zeros) - 1);
  }

  const int64_t step = int64_t{gridDim.x} * (blockDim.x / 32) * rows;
  for (int64_t first = (blockIdx.x * int64_t{blockDim.x / 32} + threadIdx.x / 32) * rows;
       first < args.rows; first += step) {
    const int count = static_cast<int>(args.rows - first < rows ? args.rows - first : rows);
#pragma unroll 1
    for (int masks = 0; masks <= (args.mask ? 1 : 0); ++masks)
      copy_rows(masks ? mask : memory,
                masks ? args.mask : static_cast<const unsigned char*>(args.input),
                masks ? 1 : static_cast<int>(sizeof(Key)), masks ? args.drop : args.in, args, first,
                count, lane);
    copies_done();
    if (args.mask) {  // what is dropped bounds nothing
      for (int i = lane; i < count * n; i += 32)
        if (!mask[i]) tile[i] = worst_bits(codec);
      __syncwarp();
    }
    const int here = mine < count ? mine : count - 1;  // lanes without a row walk along
    row.bytes = reinterpret_cast<const unsigned char*>(tile + here * n);

    Order maxima[kGroups];
    group_maxima<kGroups>(view, row, share, even, maxima);
    best_of<0, kGroups, K>(maxima);
    best_of_lanes<K>(maxima, shape.lanes);
    Order bound = maxima[0];
#pragma unroll
    for (int i = 1; i < K; ++i)
      if (i < k) bound = maxima[i];  // not i == k - 1, which becomes a look-up in memory
    const Order below = bound == kLowest<Order> ? bound : bound - 1;

    Entry<Order> list[K];
#pragma unroll
    for (int i = 0; i < K; ++i) list[i] = {below, kNoIndex};
    for (int base = 0; base < share; base += 32) {
      uint32_t reaching = reaching_vectors(view, row, base, share - base < 32 ? share - base : 32,
                                           even, k, list[K - 1].key, bound);
      uint32_t hits = 0;
      int start = 0;
#pragma unroll 1
      while (reaching | hits) {
        if (!hits) {
          const int v = row.begin + base + __ffs(static_cast<int>(reaching)) - 1;
          reaching &= reaching - 1;
          start = v * kVector;
          Vector<Key> vector;
          vector.raw = row.load(v);
#pragma unroll
          for (int j = 0; j < kVector; ++j)
            if (S::order(view.value(vector.element[j])) > list[K - 1].key) hits |= 1u << j;
          if (start + kVector > n) hits &= (1u << (n - start)) - 1;
        }
        if (hits) {
          const int index = start + __ffs(static_cast<int>(hits)) - 1;
          hits &= hits - 1;
          if (!args.mask || mask[here * n + index])
            insert<K>(list, Entry<Order>{S::order(view.value(row.element(index))), index});
        }
      }
    }
    best_of_lanes<K>(list, shape.lanes);
    if constexpr (S::kFull) {  // slots left for elements of the lowest key, of which none is above
      bool missing = false;
#pragma unroll
      for (int i = 0; i < K; ++i) missing |= i < k && list[i].index == kNoIndex;
      for (int index = 0; missing && index < n; ++index) {
        if (S::order(view.value(row.element(index))) != kLowest<Order>) continue;
        if (args.mask && !mask[here * n + index]) continue;
        bool placed = false;
#pragma unroll
        for (int i = 0; i < K; ++i) {
          if (placed || list[i].index != kNoIndex) continue;
          list[i].index = index;
          placed = true;
        }
      }
    }

    Key bits[K];
#pragma unroll
    for (int i = 0; i < K; ++i) {
      if (i >= k) break;
      bits[i] = list[i].index != kNoIndex ? row.element(list[i].index) : fill_bits<Key>(args);
    }
    __syncwarp();
    write_winners(args, shape, memory, list, bits, first, count, lane);
    __syncwarp();
  }
}

template <class S, int K>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  using Key = typename S::Key;
  const LaunchShape launch_shape{dim3(static_cast<unsigned>(plan.grid)),
                                 dim3(static_cast<unsigned>(plan.threads)),
                                 static_cast<size_t>(plan.smem)};
  const auto k = static_cast<uint32_t>(args.k);
  const int64_t tile = topk_thread_tile(32 / plan.lanes * args.n * int64_t{sizeof(Key)});
  const ThreadShape shape{plan.lanes, static_cast<int>(tile),
                          static_cast<int>(plan.smem / (plan.threads / 32)),
                          k == 1 ? 0 : UINT32_MAX / k + 1};
  const auto codec = make_codec<Key>(args.dtype, args.largest);
  return args.n % Vector<Key>::kSize == 0
             ? launch(topk_thread<S, K, true>, launch_shape, stream, args, codec, shape)
             : launch(topk_thread<S, K, false>, launch_shape, stream, args, codec, shape);
}

template <class S>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  return args.k <= 8 ? start<S, 8>(args, plan, stream) : start<S, 16>(args, plan, stream);
}

}  // namespace

cudaError_t launch_topk_thread(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  switch (args.dtype) {
    case Dtype::f32:
      return args.largest ? start<FloatView<Float::f32, false>>(args, plan, stream)
                          : start<FloatView<Float::f32, true>>(args, plan, stream);
    case Dtype::f16:
      if (args.largest) return start<FloatView<Float::f16, false>>(args, plan, stream);
      break;
    case Dtype::bf16:
      if (args.largest) return start<FloatView<Float::bf16, false>>(args, plan, stream);
      break;
    default:
      break;
  }
  switch (dtype_bytes(args.dtype)) {
    case 1:
      return start<IntegerView<uint8_t>>(args, plan, stream);
    case 2:
      return start<CodecView<uint16_t>>(args, plan, stream);
    case 4:
      return start<IntegerView<uint32_t>>(args, plan, stream);
    default:
      return start<CodecView<uint64_t>>(args, plan, stream);
  }
}

}  // namespace gpuprims
