#include "bench/sampler.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <time.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/types/span.h"

namespace raggemm::bench {
namespace {

constexpr int64_t kNanosecondsPerSample = 1'000'000;

struct Sample {
  uintptr_t pc;
  int thread;
};
std::array<Sample, 1 << 18> samples;
std::atomic<size_t> sample_count = 0;

uintptr_t PcOf(const ucontext_t& context) {
#ifdef __x86_64__
  return static_cast<uintptr_t>(context.uc_mcontext.gregs[REG_RIP]);
#else
  return static_cast<uintptr_t>(context.uc_mcontext.pc);
#endif
}

void OnTick(int /*signal*/, siginfo_t* info, void* context) {
  const size_t i = sample_count.fetch_add(1, std::memory_order_relaxed);
  if (i < samples.size()) samples[i] = {PcOf(*static_cast<const ucontext_t*>(context)), info->si_value.sival_int};
}

// A function of the executable, and its first address. Functions follow each other without gaps.
using Symbol = std::pair<uintptr_t, std::string>;

// The range of addresses that the executable's code is loaded at.
struct LoadedCode {
  uintptr_t base = 0, begin = UINTPTR_MAX, end = 0;
};
LoadedCode FindLoadedCode() {
  LoadedCode code;
  const auto visit = [](dl_phdr_info* info, size_t /*size*/, void* result) {
    auto& code = *static_cast<LoadedCode*>(result);
    code.base = info->dlpi_addr;
    for (const ElfW(Phdr) & part : absl::MakeSpan(info->dlpi_phdr, info->dlpi_phnum)) {
      if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
      code.begin = std::min(code.begin, code.base + part.p_vaddr);
      code.end = std::max(code.end, code.base + part.p_vaddr + part.p_memsz);
    }
    return 1;  // The first object is the executable.
  };
  dl_iterate_phdr(visit, &code);
  return code;
}

std::string Demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return text != nullptr ? text.get() : name;
}

// Reads the functions of the executable from its symbol table, in the order of their addresses.
std::vector<Symbol> ReadSymbols(const LoadedCode& code) {
  std::ifstream stream("/proc/self/exe", std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  std::vector<Symbol> symbols;
  if (file.size() < sizeof(ElfW(Ehdr))) return symbols;
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(file.data());
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(file.data() + header->e_shoff);
  for (const ElfW(Shdr) & section : absl::MakeSpan(sections, header->e_shnum)) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const char* names = file.data() + sections[section.sh_link].sh_offset;
    const auto* table = reinterpret_cast<const ElfW(Sym)*>(file.data() + section.sh_offset);
    for (const ElfW(Sym) & symbol : absl::MakeSpan(table, section.sh_size / sizeof(ElfW(Sym)))) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_value == 0) continue;
      symbols.emplace_back(code.base + symbol.st_value, names + symbol.st_name);
    }
  }
  std::sort(symbols.begin(), symbols.end());
  return symbols;
}

}  // namespace

Sampler::Sampler() {
  sample_count = 0;
  struct sigaction action = {};
  action.sa_sigaction = OnTick;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGPROF, &action, nullptr);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    struct sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGPROF;
    event.sigev_value.sival_int = static_cast<int>(timers_.size());
    event._sigev_un._tid = std::atoi(entry.path().filename().c_str());
    timer_t timer = nullptr;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) continue;
    timers_.push_back(timer);
    const itimerspec period = {{0, kNanosecondsPerSample}, {0, kNanosecondsPerSample}};
    timer_settime(timer, 0, &period, nullptr);
  }
}

Sampler::~Sampler() { StopTimers(); }

void Sampler::StopTimers() {
  for (void* timer : timers_) timer_delete(timer);
  timers_.clear();
}

std::vector<FunctionCounts> Sampler::Stop() {
  std::vector<FunctionCounts> threads(timers_.size());
  StopTimers();
  const LoadedCode code = FindLoadedCode();
  const std::vector<Symbol> symbols = ReadSymbols(code);
  std::map<uintptr_t, std::string> names;  // Demangled, by the address of the function.
  for (size_t i = 0; i < std::min(sample_count.load(), samples.size()); ++i) {
    const auto [pc, thread] = samples[i];
    std::string name(kOutside);
    const auto after = std::upper_bound(symbols.begin(), symbols.end(), pc,
                                        [](uintptr_t address, const Symbol& symbol) { return address < symbol.first; });
    if (code.begin <= pc && pc < code.end && after != symbols.begin()) {
      const Symbol& symbol = *std::prev(after);
      std::string& demangled = names[symbol.first];
      if (demangled.empty()) demangled = Demangled(symbol.second.c_str());
      name = demangled;
    }
    ++threads[static_cast<size_t>(thread)][name];
  }
  const auto is_idle = [](const FunctionCounts& counts) {
    return counts.empty() || (counts.size() == 1 && counts.begin()->first == kOutside);
  };
  threads.erase(std::remove_if(threads.begin(), threads.end(), is_idle), threads.end());
  return threads;
}

}  // namespace raggemm::bench
