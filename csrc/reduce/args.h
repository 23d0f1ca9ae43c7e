// What the kernels of both devices are told.
#pragma once
#include "reduce/plan.h"

namespace gpuprims {

// From an element's bits to the value that is reduced.
struct Decode {
  bool bf16 = false;       // of two 16-bit formats
  bool is_signed = false;  // integers
  bool nonzero = false;    // integers: 1 where (bits & keep) is not 0
  int bytes = 4;           // of an integer
  uint64_t keep = ~uint64_t{0};
  uint64_t flip = 0;  // mirrors the order, for the least element; unsigned order to signed
};

enum class Ending : int32_t { none, divide, root, divide_root };

struct ReduceArgs {
  const void* input = nullptr;
  const void* other = nullptr;  // dot
  ReduceLayout layout;
  Decode decode;
  bool product = false;  // of Additive
  int transform = 0;
  bool indices = false;  // of Stats
  Ending ending = Ending::none;
  double divisor = 1;
  Dtype dtype = Dtype::f32;      // of the input
  Dtype acc = Dtype::f32;        // f32, f64, or i64: elements are looked at as integers
  Dtype out_dtype = Dtype::f32;  // of results; Stats: of min and max
  void* out[7] = {};
  void* partials = nullptr;     // [columns, parts], or [parts, columns] where strided
  uint32_t* tickets = nullptr;  // zeros, and zeros again afterwards
};

}  // namespace gpuprims
