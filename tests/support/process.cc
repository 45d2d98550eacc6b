#include "tests/support/process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace raggemm::test {
namespace {

// Last character that a child writes. Without it, the child did not finish.
constexpr char kDone = '\n';

void Write(int to, const std::string& text) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = write(to, text.data() + written, text.size() - written);
    if (count < 0) return;
    written += static_cast<size_t>(count);
  }
}

std::string ReadAll(int from) {
  std::string text;
  char buffer[4096];
  for (ssize_t count; (count = read(from, buffer, sizeof(buffer))) > 0;) text.append(buffer, count);
  return text;
}

}  // namespace

bool Soaking() { return std::getenv("RAGGEMM_SOAK") != nullptr; }

std::string TemporaryFile(const std::string& name) {
  return absl::StrCat(testing::TempDir(), "/", getpid(), "_", name);
}

int64_t ResidentBytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::string InChild(unsigned seconds, absl::FunctionRef<std::string()> body) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return "no pipe";
  std::fflush(nullptr);  // A child that ends by exit() would write buffered text again.
  const pid_t child = fork();
  if (child < 0) return "no process";
  if (child == 0) {
    close(pipe_ends[0]);
    std::signal(SIGALRM, SIG_DFL);
    alarm(seconds);
    Write(pipe_ends[1], body() + kDone);
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string text = ReadAll(pipe_ends[0]);
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    if (WTERMSIG(status) == SIGALRM) return absl::StrCat("not done in ", seconds, " seconds");
    return absl::StrCat("ended by signal ", WTERMSIG(status));
  }
  if (text.empty() || text.back() != kDone) return absl::StrCat("ended by exit ", WEXITSTATUS(status));
  text.pop_back();
  return text;
}

Deadline::Deadline(unsigned seconds) {
  const char* const slower = std::getenv("RAGGEMM_TESTS_SLOWER");
  alarm(seconds * static_cast<unsigned>(slower == nullptr ? 1 : std::max(1, std::atoi(slower))));
}

Deadline::~Deadline() { alarm(0); }

}  // namespace raggemm::test
