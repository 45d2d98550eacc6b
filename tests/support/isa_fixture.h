// Tests that run once for each instruction set.
#ifndef RAGGEMM_TESTS_SUPPORT_ISA_FIXTURE_H_
#define RAGGEMM_TESTS_SUPPORT_ISA_FIXTURE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm::test {

inline std::string IsaName(Isa isa) { return std::string(NameOf(isa)); }
Isa Named(absl::string_view isa);  // ends the program where this architecture has none of that name
// One with this ISA and what stands behind it in AllIsas, not probed: a busy host cannot upset what is chosen for it.
Cpu CpuUpTo(Isa isa);
// Asks the CPU without the library whether it has the ISA of this name (host_x86.cc, host_generic.cc); and whether it
// has tiles of AMX, but none of bytes.
bool CpuHas(absl::string_view isa);
bool CpuLacksTilesOfBytes();
// Returns true if the CPU has the ISA, or if plain C++ stands for it.
bool HostHas(Isa isa);
bool HostLacksTilesOfBytes();
// In programs that software_units.cc is linked into.
extern const bool kUnitsAreSoftware;
std::vector<Isa> HostIsas();

class IsaTest : public testing::TestWithParam<Isa> {
 protected:
  // On one thread: which threads compute what is the subject of other tests.
  static Options With(Isa isa) { return {.executor = Executor::kSerial, .isa = isa}; }
};

// RAGGEMM_FOR_EACH_ISA(Fixture): instantiates the tests of a class derived from IsaTest, for the ISAs of the CPU.
#define RAGGEMM_FOR_EACH_ISA(fixture)                                   \
  INSTANTIATE_TEST_SUITE_P(Isa, fixture, testing::ValuesIn(HostIsas()), \
                           [](const testing::TestParamInfo<Isa>& info) { return IsaName(info.param); })

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_ISA_FIXTURE_H_
