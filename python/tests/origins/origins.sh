# For ./dev, which sources it: the tests in and beside the libraries that front ends stand for.

# Says which of them PyPI has in a newer version for the Python of an environment: ENVIRONMENT
say_newer_origins() {
  local name
  for name in tokamax ejkernel transformer_engine maxtext; do
    "$1/bin/python" -m pip index versions --disable-pip-version-check "$name" 2>/dev/null |
      awk -v name="$name" '/INSTALLED:/ { own = $2 } /LATEST:/ { newest = $2 }
        END { if (own && own != newest) print "dev: PyPI has " name " " newest ", these tests are with " own }' || true
  done
}

# In the root of Debian 13, where only the wheel runs, with ARGS for pytest.
test_newest_origins() {
  local folder=$wheels/origins
  python_environment "$folder" python/tests/origins/requirements.txt "" "the newest origins into build/wheel/origins"
  "$folder/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall \
    "$root"/dist/*_x86_64.whl
  say_newer_origins "$folder"
  rm -rf "$folder/run"
  mkdir "$folder/run"
  cp -r "$root"/python/{tests,examples} "$folder/run"
  cd "$folder/run"
  "$folder/bin/python" -m pytest -n 2 --rootdir=. -q tests/origins "$@"
}

# raggemm is imported from its sources here, for its dependencies are other versions than .venv's.
test_origins() {
  local folder=$root/build/origins why_not failed=()
  python_environment "$folder" python/tests/origins/requirements.txt "" "origins into build/origins (900 MB)"
  say_newer_origins "$folder"
  PYTHONPATH=$root/python "$folder/bin/python" -m pytest -n 2 -q python/tests/origins "$@" || failed+=(these)
  if ! "$folder/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
    make_debian_13 "${debian_13_packages[@]}"
    if [[ -n $why_not ]]; then
      say "NOT covered: the newest, which need Python 3.12, in a root of Debian 13: $why_not"
    else
      make_wheel
      export -f say_newer_origins test_newest_origins
      in_debian_13 test_newest_origins "$@" || failed+=("the newest")
    fi
  fi
  ((${#failed[@]} == 0)) || die "origins FAILED: ${failed[*]}"
  say "origins: OK"
}
