#ifndef RAGGEMM_TESTS_FFI_HOSTILE_HOST_EXPORTED_HANDLERS_H_
#define RAGGEMM_TESTS_FFI_HOSTILE_HOST_EXPORTED_HANDLERS_H_

#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace raggemm::test {

struct ExportedHandler {
  std::string target;  // the symbol without the stage
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_Handler* function;
};

// Every function that the plugin exports and that is named after a stage, from the plugin's own table of symbols.
// Throws std::runtime_error where the plugin is not a library that can be read.
const std::vector<ExportedHandler>& ExportedHandlers();

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_FFI_HOSTILE_HOST_EXPORTED_HANDLERS_H_
