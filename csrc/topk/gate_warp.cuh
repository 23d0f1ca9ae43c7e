// topk_gate for any options: a warp a row, the order of the biased scores as keys in shared memory.
// Without bias the keys are the logits', whose order is the same and finer.
#pragma once
#include "topk/gate_element.cuh"

namespace gpuprims {

namespace t = gate_tuning;

// Takes the keys above `above`, and the first `ties` of those that equal it.
template <class Key>
struct Cut {
  Key above;
  int ties;
};

// Which of keys[0 .. m), not 0, are the best `want`; by binary search on the bits of the want-th.
template <class Key>
__device__ __forceinline__ Cut<Key> exact_cut(const Key* keys, int m, int want, int lane) {
  const Key mine = lane < m ? keys[lane] : Key(0);
  const auto count_from = [&](Key least) {
    int count = __popc(__ballot_sync(~0u, mine >= least));
    for (int first = 32; first < m; first += 32)
      count += __popc(__ballot_sync(~0u, first + lane < m && keys[first + lane] >= least));
    return count;
  };
  Key bound = 0;
#pragma unroll 1
  for (int bit = sizeof(Key) * 8 - 1; bit >= 0; --bit) {
    const Key trial = bound | Key(1) << bit;
    const int count = count_from(trial);
    if (count >= want) bound = trial;
    if (count == want) return {trial - 1, 0};
  }
  return {bound, want - (bound == ~Key(0) ? 0 : count_from(bound + 1))};
}

// A lower bound of the k-th best key: the k-th best of 32 or 128 keys, each the best of its part.
template <class Key>
__device__ __forceinline__ Key parts_bound(const Key* keys, int n, int k, int lane) {
  Key best[4] = {0, 0, 0, 0};
  for (int first = lane; first < n; first += 128) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const Key key = first + part * 32 < n ? keys[first + part * 32] : Key(0);
      best[part] = key > best[part] ? key : best[part];
    }
  }
  const bool few = k <= 24;  // 32 parts bound it closely enough
#pragma unroll
  for (int part = 1; part < 4; ++part)
    if (few && best[part] > best[0]) best[0] = best[part];
  Key bound = 0;
#pragma unroll 1
  for (int bit = sizeof(Key) * 8 - 1; bit >= 0; --bit) {
    const Key trial = bound | Key(1) << bit;
    int count = __popc(__ballot_sync(~0u, best[0] >= trial));
    if (!few) {
#pragma unroll
      for (int part = 1; part < 4; ++part) count += __popc(__ballot_sync(~0u, best[part] >= trial));
    }
    if (count >= k) bound = trial;
    if (count == k) break;
  }
  return bound;
}

// Lists the pairs of the keys that the cut takes, as far as there is room; returns their number.
template <class Key, class Pair>
__device__ __forceinline__ int gather(const Key* keys, int n, Cut<Key> cut, Pair* list, int lane) {
  const unsigned below = (1u << lane) - 1;
  int count = 0, ties = 0;
  for (int first = 0; first < n; first += 32) {
    const int at = first + lane;
    const Key key = at < n ? keys[at] : Key(0);
    bool take = key > cut.above;
    if (cut.ties > 0) {
      const bool tie = at < n && key == cut.above;
      const unsigned tied = __ballot_sync(~0u, tie);
      take |= tie && ties + __popc(tied & below) < cut.ties;
      ties += __popc(tied);
    }
    const unsigned taken = __ballot_sync(~0u, take);
    const int slot = count + __popc(taken & below);
    if (take && slot < t::kCandidates) list[slot] = make_pair<Pair>(key, at);
    count += __popc(taken);
  }
  return count;
}

template <class T>
__device__ __forceinline__ auto bias_at(const GateArgs& args, int at) {
  using Real = typename GateReal<T>::Real;
  return args.bias_dtype == Dtype::f32
             ? static_cast<Real>(static_cast<const float*>(args.bias)[at])
             : static_cast<Real>(widen(static_cast<const T*>(args.bias)[at]));
}

// What a softmax needs of its whole row.
template <class Real>
struct Softmax {
  Real top;
  Real total;
};

// Fills keys[0 .. n), each lane its own. Element i is lane i % 32's, and a lane adds in order, so
// the sum's tree depends on n alone.
template <class T, class Real, class Key>
__device__ __forceinline__ Softmax<Real> fill_keys(const GateArgs& args, const T* row, Key* keys,
                                                   int lane) {
  const bool whole = !args.sigmoid && (args.bias || !args.renormalize);
  Key most = 0;
  // Four loads in flight; float64 would spill.
#pragma unroll(sizeof(T) == 8 ? 1 : 4)
  for (int i = lane; i < args.n; i += 32) {
    Real value = widen(row[i]);
    if (args.sigmoid && args.bias) value = sigmoid(value) + bias_at<T>(args, i);
    const Key key = order_key(value);
    keys[i] = key;
    most = key > most ? key : most;
  }
  if (!whole) return {Real(0), Real(1)};
  const Real top = order_value(warp_max(most));
  Real total = 0;
  for (int i = lane; i < args.n; i += 32) total += exponential(order_value(keys[i]) - top);
  total = lanes_sum<32>(total);
  if (args.bias)
    for (int i = lane; i < args.n; i += 32)
      keys[i] = order_key(exponential(order_value(keys[i]) - top) / total + bias_at<T>(args, i));
  return {top, total};
}

// Sets the keys of dropped groups to 0. `share` lanes (of group_lanes) look at a group together;
// group g starts g elements in, so that they meet in different banks.
template <class Real, class Key>
__device__ __forceinline__ void drop_groups(const GateArgs& args, int share, Key* keys,
                                            Key* group_keys, int lane) {
  const int groups = args.num_groups, size = args.n / groups;
  const int steps = (size + share - 1) / share, at_once = 32 / share;
  for (int first = 0; first < groups; first += at_once) {
    const int g = first + lane / share, offset = lane % share;
    Key best = 0, second = 0;
    if (g < groups) {
      int step = g % steps;
      for (int i = 0; i < steps; ++i, step = step + 1 < steps ? step + 1 : 0) {
        const int at = step * share + offset;
        const Key key = at < size ? keys[g * size + at] : Key(0);
        const Key lower = key < best ? key : best;
        best = key > best ? key : best;
        second = lower > second ? lower : second;
      }
    }
    for (int step = share / 2; step > 0; step /= 2) {
      const Key other = __shfl_xor_sync(~0u, best, step);
      const Key other_second = __shfl_xor_sync(~0u, second, step);
      const Key lower = other < best ? other : best;
      const Key higher = other_second > second ? other_second : second;
      best = other > best ? other : best;
      second = lower > higher ? lower : higher;
    }
    if (g < groups && offset == 0) {
      if (args.sigmoid) {  // the sum of the two best scores; a group of one has one
        const auto score = [&](Key key) {
          const Real value = order_value(key);
          return args.bias ? value : sigmoid(value);
        };
        best = order_key(second ? score(best) + score(second) : score(best));
      }
      group_keys[g] = best;
    }
  }
  __syncwarp();
  const Cut<Key> cut = exact_cut(group_keys, groups, args.topk_groups, lane);
  int ties = 0;
  for (int first = 0; first < groups; first += 32) {
    const int g = first + lane;
    const Key key = g < groups ? group_keys[g] : Key(0);
    const unsigned tied = __ballot_sync(~0u, g < groups && key == cut.above);
    const bool tie_kept = key == cut.above && ties + __popc(tied & ((1u << lane) - 1)) < cut.ties;
    ties += __popc(tied);
    if (g < groups && !(key > cut.above || tie_kept)) group_keys[g] = 0;
  }
  __syncwarp();
  for (int g = lane / share; g < groups; g += at_once)
    if (!group_keys[g])
      for (int at = lane % share; at < size; at += share) keys[g * size + at] = 0;
  __syncwarp();
}

template <class T>
__global__ void __launch_bounds__(t::kThreads)
    gate_warp_kernel(const __grid_constant__ GateArgs args, int warp_smem, int group_lanes,
                     bool grouped) {
  using Real = typename GateReal<T>::Real;
  using Key = typename GateReal<T>::Key;
  using Pair = typename GateReal<T>::Pair;
  extern __shared__ __align__(16) unsigned char dynamic_memory[];
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  Pair* const list = reinterpret_cast<Pair*>(dynamic_memory + threadIdx.x / 32 * warp_smem);
  Pair* const winners = list + t::kCandidates;
  Key* const keys = reinterpret_cast<Key*>(winners + t::kMaxK);
  const int n = args.n, k = args.k;

  for (int64_t row = blockIdx.x * int64_t{warps} + threadIdx.x / 32; row < args.rows;
       row += gridDim.x * int64_t{warps}) {
    const T* const logits = static_cast<const T*>(args.logits) + row * args.stride;
    Softmax<Real> softmax = fill_keys<T, Real>(args, logits, keys, lane);
    __syncwarp();
    if (grouped) drop_groups<Real>(args, group_lanes, keys, keys + (n + 3) / 4 * 4, lane);
    const Key bound = parts_bound(keys, n, k, lane);
    int count = gather(keys, n, Cut<Key>{bound ? bound - 1 : Key(0), 0}, list, lane);
    __syncwarp();
    if (count > t::kCandidates) {
      count = gather(keys, n, exact_cut(keys, n, k, lane), list, lane);
      __syncwarp();
    }
    for (int i = lane; i < count; i += 32) {
      const Pair pair = list[i];
      int better = 0;
      for (int j = 0; j < count; ++j) better += list[j] > pair;
      if (better < k) winners[better] = pair;
    }
    __syncwarp();
    // A lane has at most two winners.
    const auto logit_of = [&](Pair pair) {
      return args.bias ? static_cast<Real>(widen(logits[pair_index(pair)]))
                       : order_value(static_cast<Key>(pair_key(pair)));
    };
    if (!args.bias && args.renormalize) softmax.top = logit_of(winners[0]);
    Real scores[2] = {0, 0};
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (s * 32 + lane >= k) continue;
      const Real logit = logit_of(winners[s * 32 + lane]);
      scores[s] = args.sigmoid ? sigmoid(logit) : exponential(logit - softmax.top);
    }
    const Real total = args.renormalize ? lanes_sum<32>(scores[0] + scores[1]) : softmax.total;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const int slot = s * 32 + lane;
      if (slot < k)
        write_slot(args, row * k + slot, scores[s], total,
                   static_cast<int64_t>(pair_index(winners[slot])));
    }
    __syncwarp();
  }
}

}  // namespace gpuprims
