// Calls on f32 whose values travel as f16, bf16 or blocks of 8-bit integers (CallSpec::wire). The engine works on a
// copy of the narrower type: it is made when the round is about to read its input, and widened into the output when the
// round is over. So it is a round of narrow elements like any other, combined in f32, with its log and its recovery;
// the program's input is not touched before the result comes, and every rank keeps the values that the others have got,
// its own ones too.
#pragma once

#include <memory>

#include "recovery/base/result.h"
#include "worker/rounds/call.h"
#include "worker/system/copy_memory.h"

namespace warren::worker {

// Gives a validated call that has a wire type, and whose buffers are memory of the CPU, such a copy, and itself as
// spec.prepare; what its buffers were before (Staging, which may have left it a wire type) stays in force around it.
// kExhausted: no memory.
[[nodiscard]] Status narrow(Call& call, const GroupShape& group, const std::shared_ptr<CopyMemory>& memory);

}  // namespace warren::worker
