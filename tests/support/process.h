// What tests of load and faults ask of processes.
#ifndef RAGGEMM_TESTS_SUPPORT_PROCESS_H_
#define RAGGEMM_TESTS_SUPPORT_PROCESS_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"

namespace raggemm::test {

// Whether RAGGEMM_SOAK is set, as `./dev test --soak` does: then tests of load run long.
bool Soaking();

// Returns the path of a temporary file that no other process has: ctest runs several tests of a program at once.
std::string TemporaryFile(const std::string& name);

// Returns the resident bytes of this process now, as the kernel counts them.
int64_t ResidentBytes();

// Runs `body` in a fork of this process and gives its result; or what ended the child before: a signal, an exit, or
// that it was not done in `seconds`. The child leaves by _exit: no destructor runs.
std::string InChild(unsigned seconds, absl::FunctionRef<std::string()> body);

// Ends the process by SIGALRM if its scope lasts longer: a hang is a failure then. RAGGEMM_TESTS_SLOWER, which is set
// under an emulator, says how many times longer it may last.
class Deadline {
 public:
  explicit Deadline(unsigned seconds);
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  ~Deadline();
};

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_PROCESS_H_
