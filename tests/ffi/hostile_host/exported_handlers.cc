#include "tests/ffi/hostile_host/exported_handlers.h"

#include <elf.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "absl/strings/match.h"
#include "tests/ffi/plugin_call.h"

namespace raggemm::test {
namespace {

// A shared library as a file.
class ElfFile {
 public:
  explicit ElfFile(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    if (bytes_.size() < sizeof(Elf64_Ehdr) || bytes_.compare(0, SELFMAG, ELFMAG) != 0) {
      throw std::runtime_error(path + " is not an ELF file");
    }
  }

  std::vector<std::string> DefinedFunctions() const {
    const auto& header = *At<Elf64_Ehdr>(0);
    const auto* sections = At<Elf64_Shdr>(header.e_shoff);
    std::vector<std::string> names;
    for (int i = 0; i < header.e_shnum; ++i) {
      if (sections[i].sh_type != SHT_DYNSYM) continue;
      const auto* symbols = At<Elf64_Sym>(sections[i].sh_offset);
      const uint64_t texts = sections[sections[i].sh_link].sh_offset;
      for (uint64_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s) {
        if (ELF64_ST_TYPE(symbols[s].st_info) != STT_FUNC || symbols[s].st_shndx == SHN_UNDEF) continue;
        names.emplace_back(At<char>(texts + symbols[s].st_name));
      }
    }
    return names;
  }

 private:
  template <typename T>
  const T* At(uint64_t offset) const {
    return reinterpret_cast<const T*>(bytes_.data() + offset);
  }

  std::string bytes_;
};

std::vector<ExportedHandler> FindHandlers() {
  static constexpr std::pair<absl::string_view, XLA_FFI_ExecutionStage> kStages[] = {
      {"_instantiate", XLA_FFI_ExecutionStage_INSTANTIATE},
      {"_prepare", XLA_FFI_ExecutionStage_PREPARE},
      {"_initialize", XLA_FFI_ExecutionStage_INITIALIZE},
      {"_execute", XLA_FFI_ExecutionStage_EXECUTE},
  };
  std::vector<ExportedHandler> handlers;
  for (const std::string& symbol : ElfFile(RAGGEMM_FFI_LIBRARY).DefinedFunctions()) {
    for (const auto& [suffix, stage] : kStages) {
      if (!absl::EndsWith(symbol, suffix)) continue;
      auto* function = ThePlugin().library.Find<XLA_FFI_Handler>(symbol.c_str());
      handlers.push_back({symbol.substr(0, symbol.size() - suffix.size()), stage, function});
    }
  }
  return handlers;
}

}  // namespace

const std::vector<ExportedHandler>& ExportedHandlers() {
  static const auto* handlers = new std::vector<ExportedHandler>(FindHandlers());
  return *handlers;
}

}  // namespace raggemm::test
