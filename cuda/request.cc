#include "cuda/request.h"

namespace warren::cuda {

const char* why_not_reduce(const warren_device_reduction& how) {
  if (how.inputs < 1 || how.inputs > WARREN_DEVICE_MAX_INPUTS) return "a reduction takes 1 to 64 inputs";
  if (how.type != WARREN_F32 && how.type != WARREN_F16 && how.type != WARREN_BF16) {
    return "only f32, f16 and bf16 are reduced";
  }
  if (how.op != WARREN_SUM && how.op != WARREN_PRODUCT && how.op != WARREN_MIN && how.op != WARREN_MAX &&
      how.op != WARREN_AVERAGE) {
    return "only sum, product, min, max and average are served";
  }
  if (how.op == WARREN_AVERAGE && how.contributors < 1) return "an average is divided by 1 or more";
  if (how.first_is_partial != 0 && how.bracketing != WARREN_DEVICE_CHAIN) return "a partial result begins a chain";
  return nullptr;
}

std::size_t reduced_bytes(const warren_device_reduction& how, std::size_t input, std::size_t count) {
  return count * (how.type == WARREN_F32 || (input == 0 && how.first_is_partial != 0) ? 4 : 2);
}

std::size_t reduced_bytes(const warren_device_reduction& how, std::size_t count) {
  return count * (how.type == WARREN_F32 || how.unfinished != 0 ? 4 : 2);
}

const char* why_not_convert(warren_type out, warren_type in) {
  const auto narrow = [](warren_type type) { return type == WARREN_F16 || type == WARREN_BF16 || type == WARREN_I8; };
  if ((out == WARREN_F32 && narrow(in)) || (in == WARREN_F32 && narrow(out))) return nullptr;
  return "only f32 to f16, bf16 or i8, and back, is converted";
}

const char* why_not_pack(std::size_t pieces) {
  return pieces <= WARREN_DEVICE_MAX_PIECES ? nullptr : "at most 240 pieces are packed at once";
}

std::string why_not_on(std::int32_t device, int major, int minor, int lowest) {
  if (major * 100 + minor * 10 >= lowest) return {};
  return "GPU " + std::to_string(device) + " has compute capability " + std::to_string(major) + "." +
         std::to_string(minor) + ", and this module is built for " + std::to_string(lowest / 100) + "." +
         std::to_string(lowest / 10 % 10) + " and newer";
}

std::size_t converted_bytes(warren_type type, std::size_t count) {
  switch (type) {
    case WARREN_F32: return count * 4;
    case WARREN_I8:
      return (count + WARREN_DEVICE_I8_VALUES - 1) / WARREN_DEVICE_I8_VALUES * sizeof(warren_device_i8_block);
    default: return count * 2;
  }
}

}  // namespace warren::cuda
