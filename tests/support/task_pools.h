// Thread pools that run tasks in different ways, like the pools of runtimes that call the library.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "raggemm/plan.h"

namespace raggemm::test {

// A pool that runs the oldest waiting task first, or the newest first if `reverse` is true.
class ThreadedPool : public TaskPool {
 public:
  explicit ThreadedPool(int threads, bool reverse = false);
  ~ThreadedPool() override;  // Runs the remaining tasks.
  int64_t num_threads() const override { return static_cast<int64_t>(threads_.size()); }
  void Schedule(std::function<void()> task) override;

 private:
  void Work();

  const bool reverse_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

// A pool that runs each task at once, on the thread that schedules the task.
class InlinePool : public TaskPool {
 public:
  explicit InlinePool(int threads) : threads_(threads) {}
  int64_t num_threads() const override { return threads_; }
  void Schedule(std::function<void()> task) override { task(); }

 private:
  const int threads_;
};

// A pool that runs no task before RunAll.
class KeepingPool : public TaskPool {
 public:
  explicit KeepingPool(int threads) : threads_(threads) {}
  ~KeepingPool() override;  // Moves tasks that did not run to memory that is never freed.
  int64_t num_threads() const override { return threads_; }
  void Schedule(std::function<void()> task) override { tasks_.push_back(std::move(task)); }
  void RunAll();
  size_t kept() const { return tasks_.size(); }

 private:
  const int threads_;
  std::vector<std::function<void()>> tasks_;
};

}  // namespace raggemm::test
