// Checks of invariants. They stay on in release builds: a crash is a fault that Warren survives, a wrong result is not.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace warren::detail {
[[noreturn, gnu::cold]] inline void check_failed(const char* file, int line, const char* condition, const char* why) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s (%s)\n", file, line, condition, why);
  std::abort();
}
}  // namespace warren::detail

// WARREN_CHECK(condition, why): `why` is a string literal that says what must hold, with the invariant's number
// (I1-I10, docs/invariants.md) where there is one. Never use it on what a peer, a file or a user supplied: that is
// validated, with a Status.
#define WARREN_CHECK(condition, why)                                       \
  do {                                                                     \
    if (!(condition)) [[unlikely]]                                         \
      ::warren::detail::check_failed(__FILE__, __LINE__, #condition, why); \
  } while (false)

// Where control never comes: after a switch over all values, say. Also without optimization the compiler knows that
// nothing follows.
#define WARREN_UNREACHABLE(why) ::warren::detail::check_failed(__FILE__, __LINE__, "never reached", why)
