// A warp takes up to 32 consecutive segments. Those of 32 elements or fewer share its lanes: a run
// of them, which lies together in memory, is read at once, an element a lane, and an element's rank
// is the number of better ones in its segment. Longer ones have the warp to themselves: the k-th
// largest of the lanes' best pairs is a bound that few elements pass, and ranks are counted among
// those.
#include "common/launch.h"
#include "topk/rows.cuh"
#include "topk/segment_device.cuh"

namespace gpuprims {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kMost = segment_tuning::kLongest;  // elements of a warp's segment
constexpr int kItems = kMost / 32;
static_assert(kMost * sizeof(Narrow) >= 1024 * sizeof(uint32_t));  // room to stage

// Every output is filled where the offsets are bad.
__device__ __forceinline__ void fill_bad(const SegmentArgs& args) {
  const int64_t slots = args.segments * args.k;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < slots;
       at += threads) {
    put_bits(args, at, args.bad);
    put_index(args, at, -1);
  }
}

// Elements [begin, begin + total) are whole segments, an element a lane. `starts` has a bit for
// each position where one starts, owners[start] the lane that holds the segment's numbers.
template <class Key>
__device__ __forceinline__ void rank_lanes(const SegmentArgs& args, const KeyCodec<Key>& codec,
                                           const Key* source, int64_t first, int64_t begin,
                                           int total, unsigned starts, int longest,
                                           const int* owners, int wanted) {
  const int lane = threadIdx.x % 32;
  const bool here = lane < total;
  const Key bits = here ? source[lane] : Key(0);
  const Key key = codec.encode(bits);
  const unsigned up_to = ~0u >> (31 - lane);
  const int start = 31 - __clz(static_cast<int>(starts & up_to));  // bit 0 is set
  const unsigned later = starts & ~up_to;
  const int end = later ? __ffs(static_cast<int>(later)) - 1 : total;
  const int owner = owners[start];
  const int slots = __shfl_sync(~0u, wanted, owner);
  int rank = 0, other = lane;
  for (int step = 1; step < longest; ++step) {
    other = other + 1 < end ? other + 1 : start;
    const Key theirs = __shfl_sync(~0u, key, other);
    // Shorter segments go round more than once: each of the others counts the first time alone.
    rank += step < end - start && (theirs > key || (theirs == key && other < lane));
  }
  if (!here || rank >= slots) return;
  const int64_t at = (first + owner) * args.k + rank;
  static_cast<Key*>(args.out_values)[at] = bits;
  put_index(args, at, begin + lane);
}

// One segment of at most kMost elements.
template <class Key, class Pair>
__device__ __forceinline__ void rank_segment(const SegmentArgs& args, const KeyCodec<Key>& codec,
                                             int64_t segment, int64_t begin, int length, int wanted,
                                             Pair* buffer) {
  const int lane = threadIdx.x % 32;
  const Key* const source = static_cast<const Key*>(args.values) + begin;
  Key keys[kItems];
#pragma unroll
  for (int e = 0; e < kItems; ++e) {
    const int at = e * 32 + lane;
    keys[e] = at < length ? source[at] : Key(0);
  }
  Pair mine = 0;
#pragma unroll
  for (int e = 0; e < kItems; ++e) {
    const int at = e * 32 + lane;
    keys[e] = codec.encode(keys[e]);
    const Pair pair = make_pair<Pair>(keys[e], at);
    if (at < length && pair > mine) mine = pair;
  }
  Pair bound = 0;
  if (wanted < segment_tuning::kBoundK) {
    buffer[lane] = mine;
    __syncwarp();
    int better = 0;
    for (int i = 0; i < 32; ++i) better += buffer[i] > mine;
    const unsigned holder = __ballot_sync(~0u, better == wanted - 1);
    bound = buffer[__ffs(static_cast<int>(holder)) - 1];  // all lanes hold an element
    __syncwarp();
  }
  int count = 0;
#pragma unroll
  for (int e = 0; e < kItems; ++e) {
    if (e * 32 >= length) break;
    const int at = e * 32 + lane;
    const Pair pair = make_pair<Pair>(keys[e], at);
    const bool take = at < length && pair >= bound;
    const unsigned taken = __ballot_sync(~0u, take);
    if (take) buffer[count + __popc(taken & ((1u << lane) - 1))] = pair;
    count += __popc(taken);
  }
  __syncwarp();
  for (int i = lane; i < count; i += 32) {
    const Pair pair = buffer[i];
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += buffer[j] > pair;
    if (rank >= wanted) continue;
    const int64_t index = static_cast<int64_t>(pair_index(pair));
    const int64_t at = segment * args.k + rank;
    static_cast<Key*>(args.out_values)[at] = source[index];
    put_index(args, at, begin + index);
  }
  __syncwarp();
}

// The slots of each lane's segment from its `filled` on; k where the segment is not this warp's.
__device__ __forceinline__ void fill_missing(const SegmentArgs& args, int64_t first, int group,
                                             int64_t filled) {
  const int lane = threadIdx.x % 32;
  const unsigned open = __ballot_sync(~0u, filled < args.k);
  if (args.k < 32) {  // neighbours together
    const int k = static_cast<int>(args.k), slots = group * k;
    for (int base = 0; open && base < slots; base += 32) {
      const int slot = base + lane, owner = slot < slots ? slot / k : 0;
      const int64_t taken = __shfl_sync(~0u, filled, owner);
      if (slot < slots && slot - owner * k >= taken) put_missing(args, first * args.k + slot);
    }
    return;
  }
  for (unsigned left = open; left; left &= left - 1) {
    const int owner = __ffs(static_cast<int>(left)) - 1;
    const int64_t taken = __shfl_sync(~0u, filled, owner);
    for (int64_t slot = taken + lane; slot < args.k; slot += 32)
      put_missing(args, (first + owner) * args.k + slot);
  }
}

template <class Key, class Pair>
__global__ void __launch_bounds__(kThreads)
    segment_small(const __grid_constant__ SegmentArgs args,
                  const __grid_constant__ KeyCodec<Key> codec,
                  const __grid_constant__ SegmentPlan plan, const SegmentHeader* header) {
  if (header && header->flag) return fill_bad(args);
  __shared__ Pair buffers[kWarps][kMost];
  __shared__ int owner_of[kWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int* const owners = owner_of[warp];
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps * plan.group;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * plan.group;
       first < args.segments; first += step) {
    const int group =
        args.segments - first < plan.group ? static_cast<int>(args.segments - first) : plan.group;
    Segment mine(args, first + (lane < group ? lane : group - 1));
    if (lane >= group) mine.begin += mine.length, mine.length = 0, mine.wanted = 0;
    const bool ours = mine.length <= plan.small;
    const int wanted = ours ? static_cast<int>(mine.wanted) : 0;
    // Where all share lanes, their elements (at most 32 * 32) are read at once, not run by run.
    const Key* const values = static_cast<const Key*>(args.values);
    Key* const staged = reinterpret_cast<Key*>(buffers[warp]);
    const int64_t base = __shfl_sync(~0u, mine.begin, 0);
    const bool tiny = __ballot_sync(~0u, mine.length > 32) == 0;
    if (tiny) {
      const int all = static_cast<int>(__shfl_sync(~0u, mine.begin + mine.length, 31) - base);
#pragma unroll 8
      for (int at = lane; at < all; at += 32) staged[at] = values[base + at];
      __syncwarp();
    }
    for (int i = 0; i < group;) {
      const int64_t begin = __shfl_sync(~0u, mine.begin, i);
      // Ends rise, so the lanes whose segments end within the first 32 elements are a run.
      const int64_t end = mine.begin + mine.length - begin;
      const unsigned within = __ballot_sync(~0u, lane >= i && end <= 32);
      if ((within >> i & 1) == 0) {
        const int64_t length = __shfl_sync(~0u, mine.length, i);
        const int slots = __shfl_sync(~0u, wanted, i);
        if (length <= plan.small && slots > 0)
          rank_segment<Key, Pair>(args, codec, first + i, begin, static_cast<int>(length), slots,
                                  buffers[warp]);
        ++i;
        continue;
      }
      const int last = 31 - __clz(static_cast<int>(within));
      const bool in = lane >= i && lane <= last && mine.length > 0;
      const int length = in ? static_cast<int>(mine.length) : 0;
      const int total = static_cast<int>(__shfl_sync(~0u, end, last));
      const int start = static_cast<int>(mine.begin - begin);
      if (in) owners[start] = lane;
      const unsigned starts = __reduce_or_sync(~0u, in ? 1u << start : 0u);
      const unsigned lengths = __reduce_or_sync(~0u, in ? 1u << (length - 1) : 0u);
      __syncwarp();
      if (total > 0)
        rank_lanes(args, codec, tiny ? staged + (begin - base) : values + begin, first, begin,
                   total, starts, 32 - __clz(static_cast<int>(lengths)), owners, wanted);
      __syncwarp();
      i = last + 1;
    }
    fill_missing(args, first, group, ours && lane < group ? mine.wanted : args.k);
  }
}

template <class Key, class Pair>
cudaError_t start(const SegmentArgs& args, const SegmentPlan& plan, const SegmentSpace& space,
                  cudaStream_t stream) {
  return launch(segment_small<Key, Pair>,
                {dim3(static_cast<unsigned>(plan.small_blocks)), dim3(kThreads)}, stream, args,
                make_codec<Key>(args.dtype, args.largest), plan, space.header);
}

}  // namespace

cudaError_t launch_segment_small(const SegmentArgs& args, const SegmentPlan& plan,
                                 const SegmentSpace& space, cudaStream_t stream) {
  switch (args.bytes) {  // indices count from the segment's start: 32 bits hold them
    case 1:
      return start<uint8_t, Narrow>(args, plan, space, stream);
    case 2:
      return start<uint16_t, Narrow>(args, plan, space, stream);
    case 4:
      return start<uint32_t, Narrow>(args, plan, space, stream);
    default:
      return start<uint64_t, Wide>(args, plan, space, stream);
  }
}

}  // namespace gpuprims
