# The version is that of the table of functions, LEAKCORE_KERNELS_VERSION: find_package(leakcore 2 CONFIG) takes a
# leakcore with table 2 and no other.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../../../include/leakcore/kernels.h" PACKAGE_VERSION
     REGEX "^#define LEAKCORE_KERNELS_VERSION [0-9]+")
string(REGEX MATCH "[0-9]+$" PACKAGE_VERSION "${PACKAGE_VERSION}")
if(PACKAGE_FIND_VERSION_MAJOR EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
