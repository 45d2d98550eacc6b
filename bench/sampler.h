// Samples what the threads of this process execute.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace raggemm::bench {

// Functions of one thread, by name: how often a sample found the thread in it. Code outside of the executable, such as
// OpenMP's wait for other threads, has the name kOutside.
inline constexpr absl::string_view kOutside = "outside";
using FunctionCounts = std::map<std::string, int64_t>;

// Samples all threads that exist when the object is made, until Stop. Only one object may exist at a time.
class Sampler {
 public:
  Sampler();
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Ends sampling. Returns the counts of each thread that ran code of the executable.
  std::vector<FunctionCounts> Stop();

 private:
  void StopTimers();

  std::vector<void*> timers_;
};

}  // namespace raggemm::bench
