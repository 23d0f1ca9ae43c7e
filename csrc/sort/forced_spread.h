// GPUPRIMS_SORT_SPREAD, for the op and for its explanation.
#pragma once
#include <cstdlib>

namespace gpuprims {

// Bits of the codes that one long row of 4-byte keys is sorted in buckets by, 0 for none; -1: as
// fits. Read at every call, so that tests can compare both ways.
inline int forced_spread() {
  const char* const set = std::getenv("GPUPRIMS_SORT_SPREAD");
  return set ? std::atoi(set) : -1;
}

}  // namespace gpuprims
