// Element types, by a tag that torch-facing and torch-free code share.
#pragma once
#include <cstdint>

namespace gpuprims {

enum class Dtype : int32_t { u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64, boolean };

constexpr int dtype_bytes(Dtype t) {
  switch (t) {
    case Dtype::u8:
    case Dtype::i8:
    case Dtype::boolean:
      return 1;
    case Dtype::u16:
    case Dtype::i16:
    case Dtype::f16:
    case Dtype::bf16:
      return 2;
    case Dtype::u32:
    case Dtype::i32:
    case Dtype::f32:
      return 4;
    default:
      return 8;
  }
}

constexpr bool is_floating(Dtype t) {
  return t == Dtype::f16 || t == Dtype::bf16 || t == Dtype::f32 || t == Dtype::f64;
}

constexpr bool is_signed_integer(Dtype t) {
  return t == Dtype::i8 || t == Dtype::i16 || t == Dtype::i32 || t == Dtype::i64;
}

constexpr const char* dtype_name(Dtype t) {
  constexpr const char* names[] = {"uint8",   "int8",    "uint16", "int16",   "uint32",
                                   "int32",   "uint64",  "int64",  "float16", "bfloat16",
                                   "float32", "float64", "bool"};
  return names[static_cast<int>(t)];
}

}  // namespace gpuprims
