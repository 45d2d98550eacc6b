#include "kernels/threads/fork.h"

#include <pthread.h>

#include <atomic>

#include "raggemm/plan.h"

namespace raggemm {
namespace {

constinit std::atomic<bool> is_child = false;

void BeforeFork() {
  HostCpu();  // Waits for a running probe of the CPU. The child would wait for it forever.
  lists_mutex.lock();
}

void InParent() { lists_mutex.unlock(); }

void InChild() {
  lists_mutex.unlock();
  is_child.store(true, std::memory_order_relaxed);
}

__attribute__((constructor)) void Register() { pthread_atfork(BeforeFork, InParent, InChild); }

}  // namespace

constinit std::mutex lists_mutex;

bool IsForkedChild() { return is_child.load(std::memory_order_relaxed); }

}  // namespace raggemm
