// Helpers for tests that need processes.
#ifndef RAGGEMM_TESTS_SUPPORT_PROCESS_H_
#define RAGGEMM_TESTS_SUPPORT_PROCESS_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"

namespace raggemm::test {

// Returns true if RAGGEMM_SOAK is set, as by `./dev test --soak`. Load tests then run long.
bool Soaking();

// Returns the path of a temporary file of this process alone, because ctest runs several tests at once.
std::string TemporaryFile(const std::string& name);

// Returns the resident bytes of this process, as the kernel counts them.
int64_t ResidentBytes();

// Runs `body` in a fork of this process and returns its result, or the reason why the child did not finish: a signal,
// an exit, or the time limit in seconds. The child ends by _exit, without destructors.
std::string InChild(unsigned seconds, absl::FunctionRef<std::string()> body);

// Ends the process by SIGALRM if its scope lasts longer, so that a hang is a failure. RAGGEMM_TESTS_SLOWER multiplies
// the limit under an emulator.
class Deadline {
 public:
  explicit Deadline(unsigned seconds);
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  ~Deadline();
};

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_PROCESS_H_
