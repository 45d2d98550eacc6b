#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"

namespace raggemm::test {

// Returns true if load tests should run longer: RAGGEMM_SOAK is set, as by `./dev test --soak`.
bool Soaking();

// Returns the path of a temporary file that no other process uses, because ctest runs several tests at once.
std::string TemporaryFile(const std::string& name);

int64_t ResidentBytes();

// Runs `body` in a fork of this process and returns its result. If the child does not finish, returns the reason: a
// signal, an exit code, or that it took longer than `seconds`. The child ends by _exit, which runs no destructors.
std::string InChild(unsigned seconds, absl::FunctionRef<std::string()> body);

// Ends the process by SIGALRM unless the Deadline is destroyed within `seconds`, so that a hang is a failure. The
// environment variable RAGGEMM_TESTS_SLOWER, set for emulators, multiplies the limit.
class Deadline {
 public:
  explicit Deadline(unsigned seconds);
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  ~Deadline();
};

}  // namespace raggemm::test
