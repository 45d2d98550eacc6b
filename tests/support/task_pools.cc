#include "tests/support/task_pools.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace raggemm::test {
namespace {

// Returns a list of tasks that is never destroyed. A leak checker would otherwise report the targets of tasks.
std::vector<std::function<void()>>& KeptForEver() {
  static auto* kept = new std::vector<std::function<void()>>;
  return *kept;
}

}  // namespace

ThreadedPool::ThreadedPool(int threads, bool reverse) : reverse_(reverse) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

ThreadedPool::~ThreadedPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadedPool::Schedule(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    reverse_ ? tasks_.push_front(std::move(task)) : tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void ThreadedPool::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

KeepingPool::~KeepingPool() { std::move(tasks_.begin(), tasks_.end(), std::back_inserter(KeptForEver())); }

void KeepingPool::RunAll() {
  for (std::function<void()>& task : tasks_) task();
  tasks_.clear();
}

}  // namespace raggemm::test
