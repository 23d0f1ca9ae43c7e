// The loops of the .inc files for the vectors that every x86-64 has, and for
// AVX2.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "reduce/cpu_spread.h"

namespace gpuprims {
namespace {  // the CPU sources include this

constexpr int kTile = 512;       // columns side by side: long stretches of each row
constexpr int kTurnedRows = 64;  // short rows that are made columns at a time

template <class T>
constexpr bool kBrain = false;  // bfloat16

template <class T>
constexpr int kWidth = 32 / sizeof(T);  // lanes of a vector
template <class T>                      // integers as wide as T
using BitsOf =
    std::conditional_t<sizeof(T) == 8, int64_t,
                       std::conditional_t<sizeof(T) == 4, int32_t,
                                          std::conditional_t<sizeof(T) == 2, int16_t, int8_t>>>;

// What is added: elements, magnitudes or squares; or factors of a product.
enum Change { as_is, magnitude, squared, factor };

// Comparisons become masks only where the compiler may forget that they can trap on NaN.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("no-trapping-math")
#pragma GCC diagnostic ignored "-Wpsabi"  // only inlined functions take vectors
#endif
namespace narrow {
#include "reduce/cpu_vectors.inc"
// after what it is made of
#include "reduce/cpu_kernels.inc"
#include "reduce/cpu_lines.inc"
#include "reduce/cpu_spread.inc"
}  // namespace narrow

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GPUPRIMS_AVX2 1  // not __AVX2__: GCC's preprocessor does not follow the pragma in C++
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
namespace wide {
#include "reduce/cpu_vectors.inc"
// after what it is made of
#include "reduce/cpu_kernels.inc"
#include "reduce/cpu_lines.inc"
#include "reduce/cpu_spread.inc"
}  // namespace wide
#pragma GCC pop_options
#undef GPUPRIMS_AVX2
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
