# Warnings, sanitizers, linker and compiler cache: what every target shares.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
pkg_check_modules(SPDLOG REQUIRED IMPORTED_TARGET spdlog)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(ICU REQUIRED IMPORTED_TARGET icu-uc)

set(TUTTI_SANITIZE "" CACHE STRING "Comma-separated sanitizers: address,undefined or thread")

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -fno-math-errno)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  add_compile_options(-Wno-gnu-zero-variadic-macro-arguments)
endif()
if(TUTTI_SANITIZE)
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
endif()

option(TUTTI_FUZZ "Build the fuzz targets (clang)" OFF)
if(TUTTI_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(TUTTI_MOLD mold)
if(TUTTI_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
find_program(TUTTI_CCACHE ccache)
if(TUTTI_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      ${TUTTI_CCACHE})
endif()
