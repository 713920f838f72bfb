// Which sanitizer this build has: what only takes long there may be done less often, where the release build does it
// all.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define WARREN_TESTS_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define WARREN_TESTS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WARREN_TESTS_ASAN 1
#elif __has_feature(thread_sanitizer)
#define WARREN_TESTS_TSAN 1
#endif
#endif

namespace warren {

#ifdef WARREN_TESTS_ASAN
inline constexpr bool kAddressSanitized = true;
#else
inline constexpr bool kAddressSanitized = false;
#endif
#ifdef WARREN_TESTS_TSAN
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

}  // namespace warren
