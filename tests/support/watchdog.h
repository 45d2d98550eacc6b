// Turns a hang into a failure that says where it hangs.
#ifndef RAGGEMM_TESTS_SUPPORT_WATCHDOG_H_
#define RAGGEMM_TESTS_SUPPORT_WATCHDOG_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace raggemm::test {

// Where its scope lasts longer than `limit`, writes `what` and the stacks of all threads to standard error and aborts.
// So many times longer as RAGGEMM_TESTS_SLOWER says, where that is set.
class Watchdog {
 public:
  Watchdog(std::string what, std::chrono::milliseconds limit);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

 private:
  void Watch(std::chrono::milliseconds limit);

  const std::string what_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_WATCHDOG_H_
