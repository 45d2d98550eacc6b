# For ./dev, which sources it: the long forms of the tests, all of them, one after the other.
release=$root/build/release-test

# NAME MINUTES COMMAND of each; the minutes are those of two cores of Zen 5, once everything is installed.
release_rows() {
  local version
  echo "default 12 test"
  for version in "${wheel_versions[@]}" "$(newest_jax)"; do echo "wheel-$version 6 test --wheel --share $version"; done
  cat <<'ROWS'
debian-13 10 test --debian-13
headers 5 test --headers
origins 10 test --origins
checkpoints 5 test --checkpoints
amx 25 test --amx
aarch64 45 test --aarch64
address 17 test --sanitize=address
thread 11 test --sanitize=thread
valgrind 5 test --valgrind
soak 5 test --soak
fuzz 6 fuzz --minutes=5
lint 8 lint
docs 1 docs
checksums 1 checksums
full 20 test --full
ROWS
}

# What the tests look at: the commit and what differs from it. Nothing outside a git checkout.
release_state() { (cd "$root" && git rev-parse HEAD && git diff HEAD | sha256sum) 2>/dev/null | tr -d '\n' || true; }

# The names of the rows that ARGS of test --release ask for, and --resume first if they have it.
release_arguments() {
  local argument names
  names=$(release_rows | cut -d' ' -f1)
  for argument in "$@"; do
    [[ $argument == --resume ]] || grep -qxF -- "$argument" <<<"$names" ||
      wrong_use "test --release: $argument is none of ${names//$'\n'/ }"
  done
  printf '%s\n' "$@" | grep -xF -- --resume || true
  printf '%s\n' "$@" | grep -vxF -- --resume | grep . || echo "$names"
}

# Runs a row, with its output in a log, and leaves its status and seconds beside it: STATE NAME MINUTES COMMAND...
release_row() {
  local state=$1 name=$2 minutes=$3 status=0 start=$SECONDS
  rm -f "$release/$name.result"
  say "$name (about $minutes min): ./dev ${*:4}"
  "$root/dev" "${@:4}" >"$release/$name.log" 2>&1 </dev/null || status=$?
  echo "$status $((SECONDS - start)) $state" >"$release/$name.result"
}

# Prints a row's line of the table: whether it was ASKED-FOR (yes, no) or has passed BEFORE, NAME, COMMAND...
release_line() {
  local asked=$1 name=$2 status seconds text minutes=- log=build/release-test/$2.log
  if [[ $asked == no ]]; then
    text="not asked for"
  else
    read -r status seconds _ <"$release/$name.result"
    minutes=$(awk "BEGIN { printf \"%.1f\", $seconds / 60 }")
    case $status in
      0) text=$([[ $asked == before ]] && echo "passed before" || echo passed) ;;
      77) text="not run: $(sed -n 's/^dev: NOT covered: //p' "$root/$log" | tail -n 1)" ;;
      *) text="FAILED ($status), see $log" ;;
    esac
  fi
  printf '%-14s %6s  %-28s %s\n' "$name" "$minutes" "./dev ${*:3}" "$text"
}

# A row that ends with 77 was not run, and says why in a line with "NOT covered". With --resume those that passed on
# the same commit, with the same changes, are not run again.
test_release() {
  local arguments resume=no state name minutes command asked table="" passed=0 failed=() missing=()
  arguments=$(release_arguments "$@") || exit
  if [[ ${arguments%%$'\n'*} == --resume ]]; then
    resume=yes
    [[ $arguments == *$'\n'* ]] || arguments=
    arguments=${arguments#*$'\n'}
  fi
  mkdir -p "$release"
  state=$(release_state)
  # The rows come by another descriptor than 0, which the commands have.
  while read -ru 3 name minutes command; do
    asked=no
    if grep -qxF -- "$name" <<<"$arguments"; then
      asked=yes
      if [[ $resume == yes && -n $state ]] && grep -qs "^0 .* $state\$" "$release/$name.result"; then
        asked=before
      else
        # shellcheck disable=SC2086  # a row's words
        release_row "$state" "$name" "$minutes" $command
      fi
      case $(cut -d' ' -f1 "$release/$name.result") in
        0) passed=$((passed + 1)) ;;
        77) missing+=("$name") ;;
        *) failed+=("$name") ;;
      esac
    fi
    # shellcheck disable=SC2086
    table+=$(release_line "$asked" "$name" $command)$'\n'
  done 3< <(release_rows)
  printf '\n%-14s %6s  %-28s %s\n%s\n' "row" "min" "command" "result" "$table"
  ((${#failed[@]} == 0)) || die "release FAILED: ${failed[*]}; $passed passed${missing:+; NOT run: ${missing[*]}}"
  say "release: OK, $passed passed${missing:+; NOT run: ${missing[*]}}"
}
