# Compile options of every target of ours, and the shapes in which targets are made.

set(WARREN_SANITIZE "" CACHE STRING "Sanitizers to build with: address,undefined or thread")

add_library(warren_options INTERFACE)
target_compile_options(warren_options INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wshadow -Wconversion -Wno-sign-conversion
  -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough -fno-math-errno -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these falsely inside libstdc++ at -O2 and above.
  target_compile_options(warren_options INTERFACE -Wno-maybe-uninitialized -Wno-restrict -Wno-array-bounds
    -Wno-stringop-overflow -Wno-stringop-overread)
endif()
if(WARREN_SANITIZE)
  add_compile_options(-fsanitize=${WARREN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${WARREN_SANITIZE})
endif()
# For shared libraries: what is not defined is an error. Not with sanitizers, whose functions Clang gives to programs alone.
set(WARREN_ALL_DEFINED -Wl,-z,defs)
if(WARREN_SANITIZE)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "WARREN_SANITIZE: the options that make these builds quick are Clang's; give -DCMAKE_CXX_COMPILER=clang++")
  endif()
  set(WARREN_ALL_DEFINED "")
endif()

# Processors that kernels are not compiled for, as each costs compile time: beside the baseline there is one target a step
# of those that matter (SSE4, AVX2, AVX-512), with sanitizers AVX2 alone. Of kernels and their tests, which ask for each.
set(WARREN_KERNELS_LEAVE_OUT "HWY_DISABLED_TARGETS=HWY_SSSE3")
if(WARREN_SANITIZE)
  set(WARREN_KERNELS_LEAVE_OUT "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3)")
endif()

# The presets of sanitizers compile several sources as one, which takes less than half as long: most of it is reading
# the same headers, and instantiating the same templates. A build without that, as release is, finds what a source
# forgets to include.
option(WARREN_BATCHES "Compile several sources of a library as one" OFF)
function(warren_in_batches target)
  if(WARREN_BATCHES)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
    target_compile_options(${target} PRIVATE -Wno-ignored-attributes)  # of flags that one source defines, another declares
  endif()
endfunction()
# warren_apart(source ...): of a target in batches, those whose names are also names of others there.
function(warren_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# warren_library(NAME name SOURCES ... DEPS ...): a static library of ours, with the project's root as include path.
function(warren_library)
  cmake_parse_arguments(A "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_library(${A_NAME} STATIC ${A_SOURCES})
  target_include_directories(${A_NAME} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/worker/include)
  target_link_libraries(${A_NAME} PUBLIC ${A_DEPS} PRIVATE warren_options)
  set_target_properties(${A_NAME} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  warren_in_batches(${A_NAME})
endfunction()

# warren_program(NAME name SOURCES ... DEPS ...): an executable in bin/.
function(warren_program)
  cmake_parse_arguments(A "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${A_NAME} ${A_SOURCES})
  target_include_directories(${A_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} warren_options)
endfunction()

# warren_test(NAME name SOURCES ... DEPS ... [LABELS ...] [TIMEOUT seconds]): a GoogleTest program, one CTest entry of
# the same name with the label gtest, by which scripts/run_tests.py knows it.
function(warren_test)
  cmake_parse_arguments(A "" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${A_NAME} ${A_SOURCES})
  target_include_directories(${A_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} GTest::gmock GTest::gtest_main warren_options)
  set_target_properties(${A_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${A_NAME} COMMAND ${A_NAME})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  if(WARREN_SANITIZE)
    math(EXPR A_TIMEOUT "${A_TIMEOUT} * 5")
  endif()
  set_tests_properties(${A_NAME} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "gtest;${A_LABELS}")
endfunction()
