# For ./dev, which sources it: fuzzing, the tests under the sanitizers and valgrind, recorded checksums.
#
# build/address has ASan, UBSan and the libFuzzer targets, build/thread has TSan; both are clang's and go without
# OpenMP, whose library no sanitizer sees into. clang 19 is in Debian 12 and 13.
sanitize_packages=(clang-19 libclang-rt-19-dev llvm-19)
# The fuzzers besides fuzz_problems, which needs no libFuzzer.
fuzz_targets=(attributes frame cases)
# Tests that ./dev test --full runs under TSan, as a regex of ctest. Under ASan and UBSan it runs the fuzzers.
short_thread_tests='ParallelFor|Handler'

symbolizer=external_symbolizer_path=/usr/lib/llvm-19/bin/llvm-symbolizer
export ASAN_OPTIONS=abort_on_error=1:detect_stack_use_after_return=1:$symbolizer
export UBSAN_OPTIONS=print_stacktrace=1:$symbolizer
export TSAN_OPTIONS=abort_on_error=1:halt_on_error=1:second_deadlock_stack=1:$symbolizer

# PRESET [cmake --build's arguments]
build_sanitized() {
  debian_packages "${sanitize_packages[@]}"
  configure "$1"
  (cd "$root" && cmake --build --preset "$@" >"$root/build/$1/build.log" 2>&1) ||
    { cat "$root/build/$1/build.log" && die "building build/$1 failed"; }
}

# Puts the seeds of tests/fuzz/corpus and the edge cases where libFuzzer keeps what it finds: TARGET
unpack_seeds() {
  local seeds=$root/tests/fuzz/corpus folder=$fuzz/$1 number=0 line
  case $1 in
    frame)
      while read -r line; do
        [[ $line == \#* ]] || base64 -d <<<"$line" >"$folder/seed$((number++))"
      done <"$seeds/frame.base64"
      ;;
    cases)
      csplit -sz -f "$folder/edge" "$root/proto/cases/edge.textproto" '/^cases {/' '{*}'
      cp "$seeds/cases"/* "$folder"
      ;;
    *) cp "$seeds/$1"/* "$folder" ;;
  esac
}

# Fuzzes with one target for so many seconds: TARGET SECONDS. What it finds is made small and stays in build/fuzz/found.
fuzz_one() {
  local target=$1 seconds=$2 corpus=$root/tests/fuzz/corpus found=$fuzz/found status=0
  if [[ $target == problems ]]; then
    "$build/bin/fuzz_problems" --corpus="$corpus/problems.txt" --seconds="$seconds"
    return
  fi
  local program=$root/build/address/bin/fuzz_$target dictionary=() artifact
  mkdir -p "$fuzz/$target" "$found"
  unpack_seeds "$target"
  [[ ! -f $corpus/$target.dict ]] || dictionary=(-dict="$corpus/$target.dict")
  artifact=$found/$target-$(date +%s)
  "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 "${dictionary[@]}" \
    -exact_artifact_path="$artifact" "$fuzz/$target" >"$fuzz/$target.log" 2>&1 || status=$?
  if ((status == 0)); then
    sed -n "s/^stat::number_of_executed_units: */$target: inputs /p" "$fuzz/$target.log"
    return
  fi
  tail -n 60 "$fuzz/$target.log"
  "$program" -minimize_crash=1 -max_total_time=30 -exact_artifact_path="$artifact.small" "$artifact" \
    >/dev/null 2>&1 || true
  [[ -f $artifact.small ]] || cp "$artifact" "$artifact.small"
  printf 'FAILED. Replay with\n  %s\nand add it to %s, frames in base64\n' "$program $artifact.small" "$corpus"
  return 1
}
export -f fuzz_one unpack_seeds

# All targets, as many at a time as there are cores, for so many seconds together.
fuzz_for() {
  local targets=(problems "${fuzz_targets[@]}") jobs each
  jobs=$(nproc)
  ((jobs <= ${#targets[@]})) || jobs=${#targets[@]}
  each=$(($1 * jobs / ${#targets[@]}))
  build_sanitized address --target "${fuzz_targets[@]/#/fuzz_}"
  export root build fuzz=$root/build/fuzz
  say "fuzzing for $1 s"
  # shellcheck disable=SC2016
  printf '%s\n' "${targets[@]}" | xargs -n 1 -P "$jobs" bash -c 'fuzz_one "$1" "$0"' "$each" || die "fuzzing FAILED"
}

# Prints the minutes that the arguments of fuzz ask for.
fuzz_minutes() {
  local minutes=1
  if [[ ${1:-} == --minutes=* ]]; then
    minutes=${1#*=}
    shift
  fi
  no_arguments fuzz "$@"
  # 0 would never end.
  [[ $minutes =~ ^[1-9][0-9]{0,4}$ ]] || wrong_use "fuzz: --minutes=$minutes: must be an integer from 1 to 99999"
  echo "$minutes"
}

# All tests under a sanitizer, and random problems: address or thread.
test_sanitized() {
  local failed=()
  build_sanitized "$1"
  (cd "$root" && ctest --preset "$1") || failed+=(ctest)
  "$root/build/$1/bin/fuzz_problems" --seconds=120 || failed+=(fuzz_problems)
  ((${#failed[@]} == 0)) || die "FAILED under the $1 sanitizer: ${failed[*]}"
}

# The parts of the above that ./dev test --full has time for.
check_shortly() {
  fuzz_for 30
  build_sanitized thread --target kernels_test ffi_test
  say "thread sanitizer: $short_thread_tests"
  (cd "$root" && ctest --preset thread -R "$short_thread_tests") || die "FAILED under the thread sanitizer"
  valgrind_driver || die "FAILED under valgrind"
}

# What is shipped, for what sanitizers do not see: uses of memory that nobody wrote. Valgrind knows AVX2 and no more.
# Leaks are left to ASan, for protobuf keeps some memory of its own.
memcheck=(valgrind --quiet --error-exitcode=1 --leak-check=no --suppressions="$root/tests/valgrind.supp")

valgrind_driver() {
  local isas
  debian_packages valgrind
  isas=$(host_isas | grep -xE 'avx2|scalar')
  say "valgrind: edge cases, ${isas//$'\n'/, }"
  # shellcheck disable=SC2016
  xargs -P "$(nproc)" -I{} bash -o pipefail -c '"$@" | tail -n 1' {} "${memcheck[@]}" "$build/bin/ffi_driver" \
    --all --isa={} --threads=2 \
    --cases="$root/proto/cases/edge.textproto,$root/proto/cases/formats.textproto" <<<"$isas"
}

test_valgrind() {
  valgrind_driver || die "FAILED under valgrind"
  say "valgrind: random problems"
  "${memcheck[@]}" "$build/bin/fuzz_problems" --seconds=120 || die "FAILED under valgrind"
}

# The driver's flags, a line for each run: the edge cases in the types they have and in others, and those of
# formats.textproto by two rules of bf16. The last of a flag given twice counts.
checksum_flags() {
  local cases=$root/proto/cases types
  for types in "" --dtype=f16 --dtype=f64 --dtype=bf16; do
    echo "--cases=$cases/edge.textproto --bf16_sums=pairs $types"
  done
  for types in tiles fma mmla; do echo "--cases=$cases/edge.textproto --dtype=bf16 --bf16_sums=$types"; done
  for types in pairs tiles; do echo "--cases=$cases/formats.textproto --bf16_sums=$types"; done
}

# "case dtypes checksum" of each of these: INSTRUCTION-SET EXECUTOR
checksum_lines() {
  local flags
  while read -r flags; do
    # shellcheck disable=SC2086  # words
    "$build/bin/ffi_driver" --all --checksums --isa="$1" --executor="$2" $flags || return
  done < <(checksum_flags)
}

# What a change of a bit anywhere in a result changes, and a change of machine, compiler or jaxlib must not.
checksums() {
  local recorded=$root/proto/cases/checksums.txt isa executor lines failed=()
  if (($# == 1)); then
    lines=$(checksum_lines scalar serial)
    printf '%s\n' \
      "# Checksums of the results of edge.textproto and formats.textproto (tests/host/checksum.h): ./dev checksums" \
      "$lines" >"$recorded"
    say "recorded: $(wc -l <<<"$lines") checksums; a line that differs from before is a result that changed"
    return
  fi
  for isa in $(host_isas); do
    for executor in serial openmp pool; do
      if diff <(grep -v '^#' "$recorded") <(checksum_lines "$isa" "$executor"); then
        say "checksums: $isa with $executor: all as recorded"
      else
        failed+=("$isa:$executor")
      fi
    done
  done
  ((${#failed[@]} == 0)) || die "checksums FAILED: ${failed[*]}"
}
