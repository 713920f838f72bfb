# What `cmake --install` leaves: the program `warren`, the shared library, rabit's libraries, public headers, and what find_package and
# pkg-config need. The library's own dependencies are private: a consumer needs none of their headers.
include(CMakePackageConfigHelpers)

install(TARGETS warren EXPORT warren_targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT warren
  NAMELINK_COMPONENT warren)
install(TARGETS warren_store LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT warren)
install(TARGETS warren_store_trial RUNTIME DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT warren)
if(WARREN_CUDA_BUILT)
  install(TARGETS warren_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT warren)
  install(TARGETS warren_nccl_root RUNTIME DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT warren)
endif()
install(TARGETS rabit rabit_shared rabit_mock rabit_mock_static EXPORT warren_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT warren
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT warren NAMELINK_COMPONENT warren)
install(DIRECTORY rabit/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT warren
  FILES_MATCHING PATTERN "*.h")
install(DIRECTORY include/warren DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT warren
  FILES_MATCHING PATTERN "*.h")
install(EXPORT warren_targets NAMESPACE warren:: FILE warrenTargets.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/warren COMPONENT warren)

configure_package_config_file(cmake/warrenConfig.cmake.in ${PROJECT_BINARY_DIR}/warrenConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/warren
  NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/warrenConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/warrenConfig.cmake ${PROJECT_BINARY_DIR}/warrenConfigVersion.cmake
  rabit/rabit_target.cc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/warren COMPONENT warren)

file(RELATIVE_PATH WARREN_PC_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(cmake/warren.pc.in ${PROJECT_BINARY_DIR}/warren.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/warren.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT warren)

# The program finds the library beside it, wherever the tree was installed.
file(RELATIVE_PATH WARREN_BIN_TO_LIB /p/${CMAKE_INSTALL_BINDIR} /p/${CMAKE_INSTALL_LIBDIR})
set_target_properties(warren_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${WARREN_BIN_TO_LIB}")
install(TARGETS warren_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT warren)
