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
# Checks name their source from the project's root on, wherever that is: ccache then finds what another folder compiled.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>)
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

# The presets release, ci, asan and tsan compile several sources of a library as one. That takes about half as long, as
# the sources read the same headers and instantiate the same templates. `./dev check standalone` finds includes that a
# source forgets.
option(WARREN_BATCHES "Compile several sources of a library as one" OFF)
function(warren_in_batches target)
  if(WARREN_BATCHES)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      target_compile_options(${target} PRIVATE -Wno-ignored-attributes)  # of flags that one source defines, another declares
    else()
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # GCC takes the sources of a batch for headers
    endif()
  endif()
endfunction()
# warren_apart(source ...): of a target in batches, those whose names are also names of others there.
function(warren_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
# warren_fuzzed(target): the fuzzers (tests/fuzz) see which branches of the target an input takes.
function(warren_fuzzed target)
  if(WARREN_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# warren_library(NAME name SOURCES ... DEPS ...): a static library of ours, with the project's root as include path.
function(warren_library)
  cmake_parse_arguments(A "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_library(${A_NAME} STATIC ${A_SOURCES})
  target_include_directories(${A_NAME} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
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

# Tests are GoogleTest programs, one a folder, and each source is one CTest entry: `worker/engine_test` runs what
# tests/worker/rounds/engine_test.cc holds. Labels say which run takes an entry:
#   fast     `./dev test` runs the entry. Every entry is fast that is not slow.
#   slow     `./dev test --all` alone runs the entry: it takes more than some seconds.
#   e2e      The entry starts whole workers, or processes.
#   memory   AddressSanitizer and UndefinedBehaviorSanitizer run the entry too, but for RELEASE_ONLY and THREADS_ONLY.
#   threads  The entry has threads, so ThreadSanitizer runs it too.
#   gpu      The entry needs a GPU.
# The targets `memory_tests`, `threads_tests` and `slow_tests` build the programs that have such an entry. `all` leaves out
# programs whose entries are all slow.
foreach(label memory threads slow)
  add_custom_target(${label}_tests)
endforeach()

# warren_test_program(NAME name [SOURCES helper ...] DEPS ...): a test program without tests; warren_test adds them.
function(warren_test_program)
  cmake_parse_arguments(A "" "NAME" "SOURCES;DEPS" ${ARGN})
  # A sanitizer's build may leave a program without tests: the program is not built then, but CMake asks for a source.
  if(NOT EXISTS ${PROJECT_BINARY_DIR}/no_test.cc)
    file(TOUCH ${PROJECT_BINARY_DIR}/no_test.cc)
  endif()
  add_executable(${A_NAME} EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/no_test.cc ${A_SOURCES})
  target_include_directories(${A_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} warren_test_main warren_options)
  set_target_properties(${A_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endfunction()

# A test's local name may be another test's global one. A target, so that the option comes after those of warren_options.
add_library(warren_batch_options INTERFACE)
if(WARREN_BATCHES)
  target_compile_options(warren_batch_options INTERFACE -Wno-shadow)
endif()

# warren_test_batch(program name ...): compiles these tests (`name` is name_test.cc) as one source where WARREN_BATCHES is
# set. Tests in one batch share no name in their anonymous namespaces; a test in no batch is compiled by itself.
function(warren_test_batch program first)
  warren_in_batches(${program})
  set_target_properties(${program} PROPERTIES UNITY_BUILD_MODE GROUP)
  target_link_libraries(${program} PRIVATE warren_batch_options)
  string(REPLACE "/" "_" group ${first})
  foreach(name ${first} ${ARGN})
    set_source_files_properties(${name}_test.cc PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()

# warren_test(program source [OWN_MAIN] [LABELS slow|e2e|threads|gpu ...] [RELEASE_ONLY | THREADS_ONLY] [TIMEOUT seconds]):
# adds the source to the program, and its CTest entry. RELEASE_ONLY: no sanitizer runs it, because it would take minutes
# there, or compares speeds. THREADS_ONLY: of the sanitizers, ThreadSanitizer alone runs it. A sanitizer's build leaves out
# the sources that it does not run. OWN_MAIN: the program has no other source.
function(warren_test program source)
  cmake_parse_arguments(A "OWN_MAIN;RELEASE_ONLY;THREADS_ONLY" "TIMEOUT" "LABELS" ${ARGN})
  if(A_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "warren_test(${program} ${source}): unknown argument ${A_UNPARSED_ARGUMENTS}")
  endif()
  set(labels ${A_LABELS})
  foreach(label ${labels})
    if(NOT label MATCHES "^(slow|e2e|threads|gpu)$")
      message(FATAL_ERROR "warren_test(${program} ${source}): unknown label ${label}")
    endif()
  endforeach()
  if(A_RELEASE_ONLY AND "threads" IN_LIST labels)
    message(FATAL_ERROR "warren_test(${program} ${source}): RELEASE_ONLY is for tests that no sanitizer runs")
  endif()
  if(NOT "slow" IN_LIST labels)
    list(APPEND labels fast)
  endif()
  if(A_THREADS_ONLY)
    list(APPEND labels threads)
  elseif(NOT A_RELEASE_ONLY)
    list(APPEND labels memory)
  endif()
  if((WARREN_SANITIZE MATCHES "address" AND NOT "memory" IN_LIST labels) OR
     (WARREN_SANITIZE MATCHES "thread" AND NOT "threads" IN_LIST labels))
    return()
  endif()
  target_sources(${program} PRIVATE ${source})
  if(NOT "slow" IN_LIST labels)
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL OFF)
  endif()
  foreach(label memory threads slow)
    if(label IN_LIST labels)
      add_dependencies(${label}_tests ${program})
    endif()
  endforeach()

  file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  string(REGEX REPLACE "\\.cc$" "" name ${name})
  if(A_OWN_MAIN)
    add_test(NAME ${name} COMMAND ${program})
  else()
    add_test(NAME ${name} COMMAND ${program} --source=${source})
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  if(WARREN_SANITIZE)
    math(EXPR A_TIMEOUT "${A_TIMEOUT} * 5")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "gtest;${labels}")
endfunction()
