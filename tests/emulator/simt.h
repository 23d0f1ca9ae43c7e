// A block of CUDA threads on the host: a fiber a thread, scheduled at random, so that kernels run
// under AddressSanitizer where there is no GPU. Enough of CUDA for csrc/topk: barriers, warp
// collectives (which must be reached by whole warps), atomics (where fibers may be switched).
// Blocks run one after another, so kernels may not wait for each other. No weak memory, no timing:
// a clean run proves little, a failing one a lot.
#pragma once
#include <cuda_runtime_api.h>
#include <ucontext.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#undef __global__
#undef __device__
#undef __forceinline__
#undef __noinline__
#undef __shared__
#undef __grid_constant__
#undef __launch_bounds__
#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static  // a block at a time
#define __grid_constant__
#define __launch_bounds__(...)

namespace simt {

enum class State { ready, at_warp, at_block, done };
enum class Collective { shuffle, ballot, reduce, sync };

struct Thread {
  ucontext_t context;
  State state;
  Collective collective;
  uint64_t given;
  bool vote;
};

constexpr int kMaxThreads = 1024;
constexpr size_t kStack = 128 * 1024;
inline Thread threads[kMaxThreads];
inline uint64_t taken[kMaxThreads];  // what each lane gave to its warp's last collective
inline ucontext_t scheduler;
inline int current = 0;
inline bool any_vote = false;
inline const std::function<void()>* body = nullptr;
inline std::mt19937 random(1);
inline uint3 thread_index, block_index;
inline dim3 grid_size, block_size;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulator: %s (block %u, %u; thread %d)\n", what, block_index.x,
               block_index.y, current);
  std::abort();
}

inline void suspend() { swapcontext(&threads[current].context, &scheduler); }
inline void maybe_suspend() {
  if (random() % 4 == 0) suspend();
}

inline void start() {
  (*body)();
  threads[current].state = State::done;
  suspend();
}

// Lets go on whoever is complete at a collective or the barrier; false if nobody is.
inline bool release(int count) {
  bool released = false;
  for (int first = 0; first < count; first += 32) {
    Thread* const warp = threads + first;
    if (!std::all_of(warp, warp + 32, [](const Thread& t) { return t.state == State::at_warp; }))
      continue;
    for (int lane = 0; lane < 32; ++lane) {
      if (warp[lane].collective != warp->collective)
        fail("the lanes of a warp are at different collectives");
      taken[first + lane] = warp[lane].given;
      warp[lane].state = State::ready;
    }
    released = true;
  }
  if (released) return true;
  any_vote = false;
  for (int i = 0; i < count; ++i) {
    if (threads[i].state == State::at_warp) return false;
    any_vote |= threads[i].state == State::at_block && threads[i].vote;
  }
  for (int i = 0; i < count; ++i) {
    if (threads[i].state != State::at_block) continue;
    threads[i].state = State::ready;
    released = true;
  }
  return released;
}

inline void run_block(int count, const std::function<void()>& kernel) {
  static char* const stacks = static_cast<char*>(std::malloc(kMaxThreads * kStack));
  body = &kernel;
  for (int i = 0; i < count; ++i) {
    Thread& t = threads[i];
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = stacks + i * kStack;
    t.context.uc_stack.ss_size = kStack;
    t.context.uc_link = nullptr;
    makecontext(&t.context, start, 0);
    t.state = State::ready;
  }
  std::vector<int> ready;
  while (true) {
    // All warps, a random half of them, or one: some run far ahead of others.
    const unsigned mode = random() % 3, half = random(), one = random() % (count / 32);
    ready.clear();
    bool waiting = false, left = false;
    for (int i = 0; i < count; ++i) {
      left |= threads[i].state != State::done;
      if (threads[i].state != State::ready) continue;
      const unsigned warp = i / 32;
      if (mode == 0 || (mode == 1 && (half >> warp & 1)) || (mode == 2 && warp == one))
        ready.push_back(i);
      else
        waiting = true;
    }
    if (!left) return;
    if (ready.empty() && !waiting && !release(count)) fail("deadlock");
    std::shuffle(ready.begin(), ready.end(), random);
    for (int i : ready) {
      if (threads[i].state != State::ready) continue;
      current = i;
      thread_index = {static_cast<unsigned>(i), 0, 0};
      swapcontext(&scheduler, &threads[i].context);
    }
  }
}

// Gives `value` to the warp and returns what its lanes gave.
inline const uint64_t* meet(Collective collective, uint64_t value) {
  Thread& t = threads[current];
  t.given = value;
  t.collective = collective;
  t.state = State::at_warp;
  suspend();
  return taken + current / 32 * 32;
}

inline void barrier(bool vote) {
  threads[current].vote = vote;
  threads[current].state = State::at_block;
  suspend();
}

template <class T>
T shuffle(T value, int from) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = meet(Collective::shuffle, bits)[from & 31];
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int lane() { return current % 32; }

// An asynchronous copy, done at once; misaligned ones fail as on the card.
inline void copy(void* to, const void* from, int bytes) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes)
    fail("an asynchronous copy is misaligned");
  std::memcpy(to, from, bytes);
}

inline float half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const float fraction = static_cast<float>(bits & 1023);
  const float size = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                     : exponent == 0 ? std::ldexp(fraction, -24)
                                     : std::ldexp(fraction + 1024, exponent - 25);
  return bits >> 15 ? -size : size;
}

}  // namespace simt

#define threadIdx simt::thread_index
#define blockIdx simt::block_index
#define gridDim simt::grid_size
#define blockDim simt::block_size

template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return simt::shuffle(value, from);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return simt::shuffle(value, simt::lane() ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int by) {
  return simt::shuffle(value, simt::lane() >= by ? simt::lane() - by : simt::lane());
}
template <class T>
T __shfl_down_sync(unsigned, T value, int by) {
  return simt::shuffle(value, simt::lane() + by < 32 ? simt::lane() + by : simt::lane());
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  const uint64_t* const votes = simt::meet(simt::Collective::ballot, vote);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<unsigned>(votes[i]) << i;
  return bits;
}
inline bool __all_sync(unsigned, bool vote) { return __ballot_sync(~0u, vote) == ~0u; }
inline bool __any_sync(unsigned, bool vote) { return __ballot_sync(~0u, vote) != 0; }
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  const uint64_t* const all = simt::meet(simt::Collective::reduce, value);
  return static_cast<unsigned>(*std::min_element(all, all + 32));
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  const uint64_t* const all = simt::meet(simt::Collective::reduce, value);
  return static_cast<unsigned>(*std::max_element(all, all + 32));
}
inline int __reduce_max_sync(unsigned, int value) {
  const uint64_t* const all = simt::meet(simt::Collective::reduce, static_cast<uint32_t>(value));
  int result = value;
  for (int i = 0; i < 32; ++i) result = std::max(result, static_cast<int>(all[i]));
  return result;
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  const uint64_t* const all = simt::meet(simt::Collective::reduce, value);
  return static_cast<unsigned>(std::accumulate(all, all + 32, uint64_t{0}));
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  const uint64_t* const all = simt::meet(simt::Collective::reduce, value);
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= static_cast<unsigned>(all[i]);
  return result;
}
template <class T>
unsigned __match_any_sync(unsigned, T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const uint64_t* const all = simt::meet(simt::Collective::reduce, bits);
  unsigned same = 0;
  for (int i = 0; i < 32; ++i) same |= static_cast<unsigned>(all[i] == bits) << i;
  return same;
}
inline void __syncwarp() { simt::meet(simt::Collective::sync, 0); }
inline void __syncthreads() { simt::barrier(false); }
inline bool __syncthreads_or(bool vote) {
  simt::barrier(vote);
  return simt::any_vote;
}
inline void __threadfence() {}
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}

template <class T, class U>
T atomicAdd(T* at, U value) {
  simt::maybe_suspend();
  const T old = *at;
  *at = old + value;
  simt::maybe_suspend();
  return old;
}
inline int atomicMin(int* at, int value) {
  simt::maybe_suspend();
  return std::exchange(*at, std::min(*at, value));
}
template <class T>
T atomicOr(T* at, T value) {
  simt::maybe_suspend();
  return std::exchange(*at, static_cast<T>(*at | value));
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  simt::maybe_suspend();
  return std::exchange(*at, value);
}

inline unsigned atomicInc(unsigned* at, unsigned most) {
  simt::maybe_suspend();
  const unsigned old = *at;
  *at = old >= most ? 0 : old + 1;
  return old;
}

template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
void __stcg(T* at, T value) {
  *at = value;
}
inline int __clz(int value) { return value ? __builtin_clz(value) : 32; }
inline int __clzll(long long value) { return value ? __builtin_clzll(value) : 64; }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
inline int __ffs(int value) { return __builtin_ffs(value); }
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float __fadd_rn(float a, float b) {
  const float sum = a + b;
  return sum == sum ? sum : __uint_as_float(0x7fffffff);
}
