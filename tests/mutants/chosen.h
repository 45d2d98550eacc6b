#ifndef RAGGEMM_TESTS_MUTANTS_CHOSEN_H_
#define RAGGEMM_TESTS_MUTANTS_CHOSEN_H_

// What every source file includes in a build with faults: which of them the environment's MUTANT chooses. Functions are
// inlined always, for files are compiled for instruction sets that this CPU may lack.
namespace mutants {

extern int chosen;              // the fault that MUTANT names, or 0
extern unsigned char* reached;  // [number of faults + 1]: 1 where a fault's place was executed

[[gnu::always_inline]] inline bool Chosen(int n) {
  reached[n] = 1;
  return chosen == n;
}

// The same where a compiler may evaluate what has the fault: it then sees what is right.
[[gnu::always_inline]] constexpr bool ChosenAtRunTime(int n) {
  return !__builtin_is_constant_evaluated() && Chosen(n);
}

}  // namespace mutants

#endif  // RAGGEMM_TESTS_MUTANTS_CHOSEN_H_
