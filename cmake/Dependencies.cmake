# Every dependency, in one place; `./dev setup` installs the Debian packages that hold them.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gflags REQUIRED)
find_package(glog REQUIRED)
find_package(RocksDB REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(prometheus-cpp REQUIRED)
find_package(GTest REQUIRED)
find_package(hwy REQUIRED)
find_package(ZLIB REQUIRED)
pkg_check_modules(zmq REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
# The library's choice of vectors by the processor, which not every distribution builds (storage/xxh3.cc).
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::xxhash)
check_cxx_source_compiles("#include <xxhash.h>
#include <xxh_x86dispatch.h>
int main() { return static_cast<int>(XXH3_64bits_withSeed(\"\", 0, 1)); }" WARREN_XXHASH_DISPATCHES)
unset(CMAKE_REQUIRED_LIBRARIES)
# Debian compiles it: the flags of pkg-config must match, or the layout of its classes does not.
pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib)
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE} CACHE STRING "" FORCE)
endif()
