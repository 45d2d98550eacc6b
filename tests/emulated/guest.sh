#!/bin/busybox sh
# The first process of the emulated machine. It runs ffi_driver with the flags of each line of /flags, once for each
# instruction set of /isas, and compares the results with the checksums in /checksums. Then it runs test programs. If
# the CPU has tiles of bytes, the only instruction set is AMX, and the only tests are those of the list of kernels.
# Otherwise it uses all other instruction sets and all programs of /programs. The path of the build is in /build. Prints
# a line for each run, and at the end "end: passed" or "end: " with the names of what failed.
PATH=/bin
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
insmod /tiles.ko || echo "tiles.ko was not loaded"
cd "$(cat /build)" || exit
failed=

# run SECONDS COMMAND...: runs a command for at most SECONDS of the emulated clock. Its output goes to /tmp/log. chrt
# selects SCHED_FIFO, and tiles.c says why.
run() {
  local seconds=$1 before
  shift
  before=$(cut -d' ' -f1 /proc/uptime)
  status=0
  chrt -f 2 timeout -s KILL "$seconds" chrt -f 1 "$@" >/tmp/log 2>&1 </dev/null || status=$?
  took="$(awk "{ printf \"%.2f\", \$1 - $before }" /proc/uptime) s"
}

# checksums ISA PATTERN: compares the checksums of an instruction set, except for cases whose names match PATTERN.
checksums() {
  local isa=$1 pattern=$2 flags
  : >/tmp/got
  while read -r flags; do
    # shellcheck disable=SC2086  # words
    run 60 bin/ffi_driver --all --checksums --executor=serial --isa="$isa" $flags
    grep -E ' [0-9a-f]{16}$' /tmp/log >>/tmp/got
    echo "$isa ${flags##*/}: $took$([ "$status" -le 1 ] || echo ", ended with $status")"
  done </flags
  grep -vE "^($pattern) " /tmp/got >/tmp/got.known
  grep -vE "^($pattern) " /checksums >/tmp/want
  if diff /tmp/want /tmp/got.known; then
    echo "passed: $isa: $(wc -l </tmp/want) checksums as recorded"
  else
    echo "FAILED: $isa: checksums differ"
    failed="$failed checksums:$isa"
  fi
}

# program PROGRAM FILTER: runs the tests of a program that match FILTER, in the syntax of --gtest_filter.
program() {
  local counts name="$1 ${2%%-*}"
  run 20 "bin/$1" --gtest_color=no "--gtest_filter=$2"
  counts=$(sed -n 's/^\[ *\([A-Z]*\) *\] \([0-9]*\) tests\?[.,].*/\1 \2/p' /tmp/log | tr 'A-Z\n' 'a-z,')
  if [ "$status" = 0 ]; then
    echo "passed: $name: $counts $took"
    return
  fi
  grep -vE '^\[ +(OK|RUN) |^\[---' /tmp/log | head -n 80
  echo "FAILED: $name: ended with $status, $counts $took"
  failed="$failed $name"
}

echo "Linux $(uname -r) with $(grep -o 'amx_[a-z0-9]*' /proc/cpuinfo | tr '\n' ' ')"
if grep -q amx_int8 /proc/cpuinfo; then
  grep '^amx ' /isas >/tmp/isas
  grep '^kernels_test \(AbsentIsa\|ArithmeticFor\|HostCpu\|Isa/ForcedIsa\|KernelsFor\|Probe\)\.' /programs >/tmp/programs
  echo 'kernels_test *.UseTheUnitOfTheIsa/*' >>/tmp/programs
else
  grep -v '^amx ' /isas >/tmp/isas
  cp /programs /tmp/programs
fi
while read -r isa pattern; do checksums "$isa" "$pattern"; done </tmp/isas
while read -r name filter; do program "$name" "$filter"; done </tmp/programs
echo "end: ${failed:-passed}"
# Waits until all output has left the serial port. Then causes a triple fault, at which Bochs ends.
sleep 2
reboot -f
