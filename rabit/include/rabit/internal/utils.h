// Small things that programs written for rabit use: checks that end the process, printing, the address of a vector's
// elements.
#ifndef RABIT_INTERNAL_UTILS_H_
#define RABIT_INTERNAL_UTILS_H_

#include <inttypes.h>
#include <stdint.h>
#include <strings.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace rabit {
namespace utils {

// Messages are cut to this many bytes.
const int kPrintBuffer = 1 << 12;

inline int CompareStringsCaseInsensitive(const char* a, const char* b) {
  return strcasecmp(a, b);
}
// "true" in any case, or a number that is not 0.
inline bool StringToBool(const char* text) {
  return CompareStringsCaseInsensitive(text, "true") == 0 || std::atoi(text) != 0;
}

// Whether what fails ends the process; false: it throws std::runtime_error instead. DMLC_WORKER_STOP_PROCESS_ON_ERROR
// sets it in Init.
extern bool STOP_PROCESS_ON_ERROR;

// Not std::exit: a check may fail within a reduction, and what a program does at its end could wait for that round.
[[noreturn]] inline void EndProcess(int code) {
  std::fflush(stdout);
  std::fflush(stderr);
  std::_Exit(code);
}

// What is done with a message: the first two do as STOP_PROCESS_ON_ERROR says, the others print. The library's own are
// weak; a program that defines RABIT_CUSTOMIZE_MSG_, as rabit asks, has these four itself. They get the library's
// errors too, after which the process ends. Not inline: no compiler must conclude from the library's that they never
// return.
void HandleAssertError(const char* message);
void HandleCheckError(const char* message);
void HandlePrint(const char* message);
void HandleLogInfo(const char* format, ...);

// Prints to standard output.
inline void Printf(const char* format, ...) {
  std::string message(kPrintBuffer, '\0');
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(&message[0], kPrintBuffer, format, arguments);
  va_end(arguments);
  HandlePrint(message.c_str());
}

inline int SPrintf(char* buffer, size_t size, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int written = std::vsnprintf(buffer, size, format, arguments);
  va_end(arguments);
  return written;
}

// For what can only be a mistake in the program: ends the process unless `holds`.
inline void Assert(bool holds, const char* format, ...) {
  if (holds) return;
  std::string message(kPrintBuffer, '\0');
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(&message[0], kPrintBuffer, format, arguments);
  va_end(arguments);
  HandleAssertError(message.c_str());
}

// For what comes from outside: ends the process unless `holds`.
inline void Check(bool holds, const char* format, ...) {
  if (holds) return;
  std::string message(kPrintBuffer, '\0');
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(&message[0], kPrintBuffer, format, arguments);
  va_end(arguments);
  HandleCheckError(message.c_str());
}

inline void Error(const char* format, ...) {
  std::string message(kPrintBuffer, '\0');
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(&message[0], kPrintBuffer, format, arguments);
  va_end(arguments);
  HandleCheckError(message.c_str());
}

// Opens a file, or ends the process.
inline std::FILE* FopenCheck(const char* name, const char* mode) {
  std::FILE* file = std::fopen(name, mode);
  Check(file != nullptr, "can not open file \"%s\"", name);
  return file;
}

}  // namespace utils

// The address of the first element; null if there is none.
template <typename T>
inline T* BeginPtr(std::vector<T>& values) {  // NOLINT(runtime/references): as in rabit
  return values.empty() ? nullptr : &values[0];
}
template <typename T>
inline const T* BeginPtr(const std::vector<T>& values) {
  return values.empty() ? nullptr : &values[0];
}
inline char* BeginPtr(std::string& text) {  // NOLINT(runtime/references): as in rabit
  return text.empty() ? nullptr : &text[0];
}
inline const char* BeginPtr(const std::string& text) {
  return text.empty() ? nullptr : &text[0];
}

}  // namespace rabit

#endif  // RABIT_INTERNAL_UTILS_H_
