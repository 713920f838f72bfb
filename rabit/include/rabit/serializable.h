// What models are written to and read from: rabit's Stream and Serializable. Where the headers of dmlc-core are on the
// include path these are dmlc's, as in rabit itself; all sources of a program must then have them there. RABIT_NO_DMLC:
// never.
#ifndef RABIT_SERIALIZABLE_H_
#define RABIT_SERIALIZABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <istream>
#include <ostream>
#include <streambuf>
#include <string>
#include <type_traits>
#include <vector>

#if defined(__has_include) && !defined(RABIT_NO_DMLC)
#if __has_include(<dmlc/io.h>)
#define RABIT_STREAMS_ARE_DMLCS
#include <dmlc/io.h>
#endif
#endif

namespace rabit {

#ifdef RABIT_STREAMS_ARE_DMLCS
typedef dmlc::Stream Stream;
typedef dmlc::Serializable Serializable;
namespace utils {
typedef dmlc::SeekStream SeekStream;
}
#else

class Stream;

namespace detail {

// How a value lies in a stream: plain data as in memory; a vector or string as its 64-bit length and its elements.
template <typename T>
struct Format {
  static_assert(std::is_trivially_copyable<T>::value, "a stream takes plain data, strings, and vectors of these");
  static void Write(Stream* to, const T& value);
  static bool Read(Stream* from, T* value);
};
template <typename T>
struct Format<std::vector<T> > {
  static_assert(!std::is_same<T, bool>::value, "std::vector<bool> has no elements in memory");
  static void Write(Stream* to, const std::vector<T>& values);
  static bool Read(Stream* from, std::vector<T>* values);
};
template <>
struct Format<std::string> {
  static void Write(Stream* to, const std::string& text);
  static bool Read(Stream* from, std::string* text);
};

}  // namespace detail

// Bytes to write to or read from.
class Stream {
 public:
  // Reads up to `size` bytes and returns how many they were.
  virtual size_t Read(void* ptr, size_t size) = 0;
  virtual void Write(const void* ptr, size_t size) = 0;
  virtual ~Stream() {}

  // Plain data, strings, and vectors of these. Read: false if the stream ends before the value does.
  template <typename T>
  void Write(const T& data) {
    detail::Format<T>::Write(this, data);
  }
  template <typename T>
  bool Read(T* out) {
    return detail::Format<T>::Read(this, out);
  }
};

// A model that can be checkpointed: Load reads what Save has written.
class Serializable {
 public:
  virtual ~Serializable() {}
  virtual void Load(Stream* from) = 0;
  virtual void Save(Stream* to) const = 0;
};

namespace utils {
// A stream with a position.
class SeekStream : public Stream {
 public:
  virtual void Seek(size_t position) = 0;
  virtual size_t Tell() = 0;
};
}  // namespace utils

namespace detail {

// A sequence of plain data; a length that is a lie costs no more memory than the stream has bytes, and one block.
template <typename Sequence>
bool ReadPlain(Stream* from, Sequence* values) {
  typedef typename Sequence::value_type T;
  std::uint64_t length = 0;
  values->clear();
  if (from->Read(static_cast<void*>(&length), sizeof length) != sizeof length) return false;
  const std::uint64_t block = std::max<std::uint64_t>(1, (1u << 20) / sizeof(T));
  for (std::uint64_t have = 0; have < length;) {
    const std::size_t take = static_cast<std::size_t>(std::min(block, length - have));
    values->resize(static_cast<std::size_t>(have) + take);
    void* to = &(*values)[static_cast<std::size_t>(have)];
    if (from->Read(to, take * sizeof(T)) != take * sizeof(T)) return false;
    have += take;
  }
  return true;
}
template <typename Sequence>
void WritePlain(Stream* to, const Sequence& values) {
  const std::uint64_t length = values.size();
  to->Write(static_cast<const void*>(&length), sizeof length);
  if (length != 0) to->Write(static_cast<const void*>(&values[0]), values.size() * sizeof(values[0]));
}

template <typename T>
void WriteVector(Stream* to, const std::vector<T>& values, std::true_type /*plain*/) {
  WritePlain(to, values);
}
template <typename T>
void WriteVector(Stream* to, const std::vector<T>& values, std::false_type) {
  const std::uint64_t length = values.size();
  to->Write(static_cast<const void*>(&length), sizeof length);
  for (const T& value : values) Format<T>::Write(to, value);
}
template <typename T>
bool ReadVector(Stream* from, std::vector<T>* values, std::true_type /*plain*/) {
  return ReadPlain(from, values);
}
template <typename T>
bool ReadVector(Stream* from, std::vector<T>* values, std::false_type) {
  std::uint64_t length = 0;
  values->clear();
  if (from->Read(static_cast<void*>(&length), sizeof length) != sizeof length) return false;
  for (std::uint64_t i = 0; i < length; ++i) {
    values->emplace_back();
    if (!Format<T>::Read(from, &values->back())) return false;
  }
  return true;
}

template <typename T>
void Format<T>::Write(Stream* to, const T& value) {
  to->Write(static_cast<const void*>(&value), sizeof value);
}
template <typename T>
bool Format<T>::Read(Stream* from, T* value) {
  return from->Read(static_cast<void*>(value), sizeof *value) == sizeof *value;
}
template <typename T>
void Format<std::vector<T> >::Write(Stream* to, const std::vector<T>& values) {
  WriteVector(to, values, std::is_trivially_copyable<T>());
}
template <typename T>
bool Format<std::vector<T> >::Read(Stream* from, std::vector<T>* values) {
  return ReadVector(from, values, std::is_trivially_copyable<T>());
}
inline void Format<std::string>::Write(Stream* to, const std::string& text) {
  WritePlain(to, text);
}
inline bool Format<std::string>::Read(Stream* from, std::string* text) {
  return ReadPlain(from, text);
}

}  // namespace detail
#endif  // RABIT_STREAMS_ARE_DMLCS

}  // namespace rabit

#endif  // RABIT_SERIALIZABLE_H_
