# libtorch from a torch wheel or a libtorch folder: TUTTI_TORCH names the folder that has lib/ and
# include/. Targets use its libraries directly: TorchConfig.cmake would bring a dummy protobuf.
set(TUTTI_TORCH "$ENV{TUTTI_TORCH}" CACHE PATH "Folder of libtorch (with include/ and lib/)")
if(NOT TUTTI_TORCH)
  file(GLOB found ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(GET found 0 TUTTI_TORCH)
endif()
if(NOT EXISTS ${TUTTI_TORCH}/include/ATen/ATen.h)
  message(FATAL_ERROR "No libtorch at TUTTI_TORCH='${TUTTI_TORCH}'. Run ./dev setup, or set TUTTI_TORCH to a "
                      "folder that has include/ATen and lib/libtorch.so.")
endif()

add_library(tutti_torch INTERFACE)
target_include_directories(tutti_torch SYSTEM INTERFACE
                           ${TUTTI_TORCH}/include ${TUTTI_TORCH}/include/torch/csrc/api/include)
target_compile_definitions(tutti_torch INTERFACE USE_C10D_GLOO USE_DISTRIBUTED)
target_link_directories(tutti_torch INTERFACE ${TUTTI_TORCH}/lib)
target_link_options(tutti_torch INTERFACE -Wl,-rpath,${TUTTI_TORCH}/lib)
target_link_libraries(tutti_torch INTERFACE -Wl,--no-as-needed torch torch_cpu c10 -Wl,--as-needed)
if(EXISTS ${TUTTI_TORCH}/lib/libtorch_cuda.so)
  target_compile_definitions(tutti_torch INTERFACE USE_C10D_NCCL TUTTI_WITH_CUDA)
  target_link_libraries(tutti_torch INTERFACE -Wl,--no-as-needed torch_cuda c10_cuda -Wl,--as-needed)
endif()

# One precompiled torch/torch.h for all: a file then costs 4 CPU-seconds instead of 40.
file(WRITE ${CMAKE_BINARY_DIR}/torch_header.cc "// Carries the precompiled header.\n")
add_library(tutti_torch_header OBJECT ${CMAKE_BINARY_DIR}/torch_header.cc)
target_link_libraries(tutti_torch_header PRIVATE tutti_torch Threads::Threads)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  set(CMAKE_PCH_INSTANTIATE_TEMPLATES ON)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
  target_precompile_headers(tutti_torch_header PRIVATE <torch/torch.h>)
endif()

function(tutti_use_torch_header target)
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    target_precompile_headers(${target} REUSE_FROM tutti_torch_header)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL EXECUTABLE)  # the same flags as the header: -fPIC, not -fPIE
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE -fPIC)
    endif()
  endif()
endfunction()
