# For ./dev, which sources it: what needs a CPU with AMX, on a Sapphire Rapids that the Bochs of Debian 13 emulates.
amx=$root/build/amx
amx_packages=(bochs bochs-term bochsbios busybox-static cpio isolinux linux-headers-cloud-amd64
  linux-image-cloud-amd64 lz4 make syslinux-common xorriso)
amx_isas=(amx avx512_bf16 avx512_vnni avx512)
amx_minutes=90  # after which a machine that does not end is given up

# PROGRAM WHAT WHY of everything that is left out.
amx_left_out() { grep -v '^#' "$root/tests/amx/left_out.txt"; }

# The flags of the driver, a line for each run: those of the checksums, and tiles of bytes without sign.
amx_flags() {
  checksum_flags
  echo "--cases=$root/proto/cases/edge.textproto --dtype=u8"
}

# What the emulated machine is to do, as files in its root: FOLDER
amx_tasks() {
  local folder=$1 isa program pattern
  for program in $(amx_left_out | cut -d' ' -f1 | uniq); do
    [[ -x $build/bin/$program ]] || die "tests/amx/left_out.txt: there is no $program"
  done
  echo "$build" >"$folder/build"
  amx_flags >"$folder/flags"
  grep -v '^#' "$root/proto/cases/checksums.txt" >"$folder/checksums"
  # Two of these cases, which are errors then, have factors that are no integers.
  # shellcheck disable=SC2046  # words
  "$build/bin/ffi_driver" --all --checksums --isa=scalar $(amx_flags | tail -n 1) |
    grep -v ERROR >>"$folder/checksums" || true
  for isa in "${amx_isas[@]}"; do
    echo "$isa $(amx_left_out | sed -n "s/^ffi_driver \($isa\|\*\):\([^ ]*\) .*/\2/p" | paste -sd '|')"
  done >"$folder/isas"
  for program in "$build"/bin/*_test; do
    program=${program##*/}
    pattern=$(amx_left_out | sed -n "s/^$program \([^ ]*\) .*/\1/p" | paste -sd :)
    [[ $pattern == '*' ]] || echo "$program${pattern:+ --gtest_filter=-$pattern}"
  done >"$folder/programs"
}

# Makes the CD in $amx/image: Linux, and as its root what is tested, at the paths that it has here.
amx_image() {
  local image=$amx/image files=$amx/image/root file
  rm -rf "$image"
  mkdir -p "$image"/{module,cd/isolinux} "$files"/{bin,"$build"/{bin,lib},"$root/proto"}
  cp "$root/tests/amx/tiles.c" "$image/module"
  echo 'obj-m := tiles.o' >"$image/module/Makefile"
  # shellcheck disable=SC2016
  in_debian_13 bash -c 'make -C /usr/src/linux-headers-*-cloud-amd64 M="$0" modules' "$image/module"
  amx_tasks "$files"
  cp "$root/tests/amx/init.sh" "$files/init"
  cp "$image/module/tiles.ko" "$files"
  cp "$debian_13/usr/bin/busybox" "$(type -P chrt)" "$files/bin"
  cp -r "$root/proto/cases" "$files$root/proto"
  cp "$build"/lib/*.so "$files$build/lib"
  cp "$build/bin/ffi_driver" "$files$build/bin"
  cut -d' ' -f1 "$files/programs" | sed "s|^|$build/bin/|" | xargs cp -t "$files$build/bin"
  strip --strip-debug "$files$build"/*/*
  for file in "$files/bin/chrt" "$files$build"/*/*; do ldd "$file" | grep -o '/[^ ]*'; done | sort -u |
    while read -r file; do [[ -f $files$file ]] || install -D "$file" "$files$file"; done
  chmod +x "$files/init"
  # shellcheck disable=SC2016
  in_debian_13 bash -c 'cd "$0" && find . | cpio -o -H newc --quiet | lz4 -lq >../cd/isolinux/initrd' "$files"
  cp "$debian_13"/boot/vmlinuz-* "$image/cd/isolinux/vmlinuz"
  cp "$root/tests/amx/isolinux.cfg" "$debian_13"/usr/lib/{ISOLINUX/isolinux.bin,syslinux/modules/bios/ldlinux.c32} \
    "$image/cd/isolinux"
  in_debian_13 xorriso -as mkisofs -quiet -o "$image/boot.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat \
    -no-emul-boot -boot-load-size 4 -boot-info-table "$image/cd"
  cp "$root/tests/amx/bochsrc.txt" "$image"
}

# Boots that CD, and prints what comes over the serial port: OPTION-OF-BOCHS...
# A network of its own keeps the display, which listens, to itself.
amx_boot() {
  in_debian_13 env -C "$amx/image" timeout -s KILL "${amx_minutes}m" unshare --net bochs -q -f bochsrc.txt "$@" \
    3>&1 >>"$amx/bochs.log" 2>&1 | sed -u 's/\r$//' | tee -a "$amx/serial.log" || true
}

# Booted twice, for Bochs 3.0 multiplies signed bytes on tiles as if they had no sign: all programs see a CPU without
# tiles of bytes, and those of unsigned ones are tested apart. Side by side, for a Bochs has one thread.
test_amx() {
  local debian_13=$amx/debian-13 why_not start=$SECONDS
  mkdir -p "$amx"
  make_debian_13 "${amx_packages[@]}"
  [[ -z $why_not ]] || not_run "AMX and AVX-512 on an emulator: $why_not"
  say "making what the emulated machine boots, see build/amx/image.log"
  amx_image >"$amx/image.log" 2>&1
  say "a Sapphire Rapids in Bochs; times are those of its clock"
  rm -f "$amx"/{bochs,serial}.log
  amx_boot &
  amx_boot 'cpu: exclude_features="amx_int8"'
  wait
  amx_left_out | sed 's/^/dev: NOT covered: /'
  (($(grep -cx 'end: passed' "$amx/serial.log") == 2)) ||
    die "AMX FAILED: $(sed -n 's/^end: //p' "$amx/serial.log" | grep -vx passed || echo 'no end, see build/amx')"
  say "AMX: OK, $(grep -c ^passed: "$amx/serial.log") passed in $(((SECONDS - start) / 60)) min"
}
