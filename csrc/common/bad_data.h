// Data that only the device has seen, such as offsets: bad ones fill the outputs, or raise.
#pragma once
#include <cstdlib>
#include <string>

namespace gpuprims {

// GPUPRIMS_CHECK=1: bad offsets and ids raise (the device is waited for) instead of giving filled
// outputs.
inline bool raise_on_bad_data() {
  static const bool on = [] {
    const char* text = std::getenv("GPUPRIMS_CHECK");
    return text && std::string(text) == "1";
  }();
  return on;
}

}  // namespace gpuprims
