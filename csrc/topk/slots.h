// Sizes of results that no memory can hold: the product that says so must not overflow.
#pragma once
#include "common/stable.h"

namespace gpuprims {

inline void check_slots(const char* op, int64_t rows, int64_t k) {
  int64_t slots = 0, bytes = 0;
  check(!__builtin_mul_overflow(rows, k, &slots) && !__builtin_mul_overflow(slots, 8, &bytes), op,
        ": out of memory allocating ", rows, " * ", k, " slots");
}

}  // namespace gpuprims
