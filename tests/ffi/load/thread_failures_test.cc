// Tests calls if the system refuses to create threads. They run on fewer threads, or only on the calling thread, with
// the same result.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"
#include "tests/support/process.h"

namespace {

constexpr int64_t kNoLimit = INT64_MAX / 2;

// Number of threads that can still be created.
std::atomic<int64_t> room = kNoLimit;
std::atomic<int64_t> refused = 0, made = 0;

struct Start {
  void* (*function)(void*);
  void* argument;
};

void* Counted(void* data) {
  const Start start = *static_cast<Start*>(data);
  delete static_cast<Start*>(data);
  void* result = start.function(start.argument);
  ++room;
  return result;
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*),
                              void* argument) {
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  auto* start = new (std::nothrow) Start{function, argument};
  const bool full = room.fetch_sub(1) <= 0;
  if (start == nullptr || full) {
    ++room;
    ++refused;
    delete start;
    return EAGAIN;
  }
  ++made;
  return create(thread, attributes, Counted, start);
}

namespace raggemm::test {
namespace {

ProblemSpec ManyTiles() { return {.groups = 5, .m = 120, .n = 140, .k = 70, .sizes = {30, 0, 1, 50, 30}, .c = true}; }

// Makes three calls while the system can create only `threads` more threads. Returns "" if all results are right, else
// a message. The calls run on a new thread, so that libgomp has no helper threads for them yet.
std::string RunWithRoomFor(int64_t threads, const std::string& executor, host::TaskRunner* pool) {
  PluginCall call(ManyTiles());
  call.call().attributes["executor"] = executor;
  call.call().attributes["threads"] = int64_t{5};
  std::string result;
  std::thread caller([&] {
    room = threads;
    made = refused = 0;
    for (int i = 0; i < 3 && result.empty(); ++i) {
      result = call.Run(pool).message;
      if (!call.IsRight()) result += "the result is wrong";
    }
    room = kNoLimit;
  });
  caller.join();
  return result;
}

// raggemm must limit the threads: libgomp ends the process if it cannot create one.
TEST(ThreadFailures, OpenMpHasFewerThreads) {
  for (int64_t threads = 0; threads <= 5; ++threads) {
    ASSERT_EQ(RunWithRoomFor(threads, "OPENMP", nullptr), "");
    const int64_t helpers = std::min<int64_t>(threads, 4);
    // Each helper thread is created twice: first as a trial by raggemm, then by libgomp.
    EXPECT_EQ(made, 2 * helpers) << "with room for " << threads;
    EXPECT_EQ(refused > 0, helpers < 4) << threads;
  }
}

// raggemm creates trial threads before libgomp creates its own. The trial threads must have libgomp's stack size. With
// all variables below except OMP_STACKSIZE=1M, only threads of the default size can be created. A trial with the
// default size would succeed, and libgomp would then end the process.
TEST(ThreadFailures, OpenMpTriesThreadsWithTheStackSizeOfLibgomp) {
  const std::string cases = TemporaryFile("thread_failures_test.textproto");
  std::ofstream(cases) << "cases { name: 'large' K: 512 N: 512 group_sizes: [64,64] }";
  const auto driver = std::filesystem::path(RAGGEMM_FFI_LIBRARY).parent_path().parent_path() / "bin" / "ffi_driver";
  const std::string run = driver.string() + " --all --executor=openmp --threads=2 --cases=" + cases;
  for (const char* environment :
       {"OMP_STACKSIZE=100G", "GOMP_STACKSIZE=100G", "ulimit -v 400000; OMP_STACKSIZE=512M", "OMP_STACKSIZE=1M"}) {
    EXPECT_EQ(std::system((std::string(environment) + " " + run + " >/dev/null").c_str()), 0) << environment;
  }
}

TEST(ThreadFailures, PoolAndSerialCreateNoThreads) {
  host::ThreadPool pool(3);
  for (const char* executor : {"POOL", "AUTO", "SERIAL"}) {
    EXPECT_EQ(RunWithRoomFor(0, executor, &pool), "");
    EXPECT_EQ(made, 0);
    EXPECT_EQ(refused, 0);
  }
}

}  // namespace
}  // namespace raggemm::test
