// Candidates that wait to be measured: GPUPRIMS_TOPK_TRIAL, a sum of topk_tuning::kTry..., read at
// a library's first call. Goes away when they are settled.
#pragma once
#include <cstdlib>

namespace gpuprims {

inline int& topk_trial() {
  static int trial = [] {
    const char* const chosen = std::getenv("GPUPRIMS_TOPK_TRIAL");
    return chosen ? std::atoi(chosen) : 0;
  }();
  return trial;
}

}  // namespace gpuprims
