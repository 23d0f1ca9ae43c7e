// The loops of cpu_kernels.inc for the vectors that every x86-64 has, and for AVX2.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "reduce/ops.h"

namespace gpuprims {
namespace {  // one source file includes this

constexpr int kTile = 512;  // columns side by side: long stretches of each row

template <class T>
constexpr bool kBrain = false;  // bfloat16

// Comparisons become masks only where the compiler may forget that they can trap on NaN.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("no-trapping-math")
#endif
namespace narrow {
#include "reduce/cpu_kernels.inc"
}

#if defined(__x86_64__) && defined(__GNUC__)
#define GPUPRIMS_WIDE 1
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
namespace wide {
#include "reduce/cpu_kernels.inc"
}
#pragma GCC pop_options
const bool has_wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#define GPUPRIMS_BEST(...) (has_wide ? wide::__VA_ARGS__ : narrow::__VA_ARGS__)
#else
#define GPUPRIMS_BEST(...) narrow::__VA_ARGS__
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

}  // namespace
}  // namespace gpuprims
