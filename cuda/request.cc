#include "cuda/request.h"

namespace warren::cuda {

const char* why_not_reduce(std::size_t inputs, warren_type type, warren_op op) {
  if (inputs < 1 || inputs > WARREN_DEVICE_MAX_INPUTS) return "a reduction takes 1 to 64 inputs";
  if (type != WARREN_F32 && type != WARREN_F16 && type != WARREN_BF16) return "only f32, f16 and bf16 are reduced";
  if (op != WARREN_SUM && op != WARREN_PRODUCT && op != WARREN_MIN && op != WARREN_MAX && op != WARREN_AVERAGE) {
    return "only sum, product, min, max and average are served";
  }
  return nullptr;
}

const char* why_not_convert(warren_type out, warren_type in) {
  const auto half = [](warren_type type) { return type == WARREN_F16 || type == WARREN_BF16; };
  if ((out == WARREN_F32 && half(in)) || (in == WARREN_F32 && half(out))) return nullptr;
  return "only f32 to f16 or bf16, and back, is converted";
}

}  // namespace warren::cuda
