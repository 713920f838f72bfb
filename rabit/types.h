// rabit's types and operations in Warren's terms.
#pragma once

#include "rabit/internal/engine.h"
#include "warren/c_api.h"

namespace rabit::engine {

// What is out of range becomes what warren_allreduce refuses.
inline warren_type warren_type_of(mpi::DataType type) {
  static_assert(sizeof(int) == 4 && sizeof(long) == 8 && sizeof(long long) == 8);
  switch (type) {
    case mpi::kChar: return WARREN_I8;
    case mpi::kUChar: return WARREN_U8;
    case mpi::kInt: return WARREN_I32;
    case mpi::kUInt: return WARREN_U32;
    case mpi::kLong:
    case mpi::kLongLong: return WARREN_I64;
    case mpi::kULong:
    case mpi::kULongLong: return WARREN_U64;
    case mpi::kFloat: return WARREN_F32;
    case mpi::kDouble: return WARREN_F64;
  }
  return static_cast<warren_type>(0);
}
inline warren_op warren_op_of(mpi::OpType op) {
  switch (op) {
    case mpi::kMax: return WARREN_MAX;
    case mpi::kMin: return WARREN_MIN;
    case mpi::kSum: return WARREN_SUM;
    case mpi::kBitwiseOR: return WARREN_BIT_OR;
  }
  return static_cast<warren_op>(0);
}
inline size_t size_of(mpi::DataType type) {
  switch (type) {
    case mpi::kChar:
    case mpi::kUChar: return 1;
    case mpi::kInt:
    case mpi::kUInt:
    case mpi::kFloat: return 4;
    default: return 8;
  }
}

}  // namespace rabit::engine
