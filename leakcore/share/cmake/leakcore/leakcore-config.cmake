# leakcore::kernels: the include folder of leakcore/kernels.h. Nothing is linked, because the installed Python package
# hands its table of functions over at run time.
get_filename_component(_leakcore_include "${CMAKE_CURRENT_LIST_DIR}/../../../include" ABSOLUTE)
if(NOT TARGET leakcore::kernels)
  add_library(leakcore::kernels INTERFACE IMPORTED)
  set_target_properties(leakcore::kernels PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_leakcore_include}")
endif()
set(leakcore_INCLUDE_DIR "${_leakcore_include}")
unset(_leakcore_include)
