#!/usr/bin/env bash
# Runs the kernels' tests and four small trainings on emulated processors with AVX-512, with AVX512_BF16 and with AMX too.
# Usage: bench/emulated/run.sh [avx512] [pairs] [amx] [refused]      (all without an argument; README.md says what it needs)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(cd "$here/../.." && pwd)
work=$(realpath -m "${CARGO_TARGET_DIR:-$project/target}")/emulated
mirror=http://deb.debian.org/debian/pool/main
minutes_max=60
mkdir -p "$work"
cd "$work"

need_packages() {
  local needed=(bison cpio curl flex g++ isolinux make patch syslinux-common xorriso xz-utils) missing=()
  for package in "${needed[@]}"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  [ "$(id -u)" = 0 ] || { echo "install first: apt-get install ${missing[*]}" >&2; exit 1; }
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends "${missing[@]}"
}

# fetch FOLDER FILE SHA256
fetch() {
  [ -e "$2" ] || curl -fsS --retry 3 -o "$2" "$mirror/$1/$2"
  echo "$3  $2" | sha256sum --check --quiet
}

build_emulator() {
  fetch b/bochs bochs_3.0+dfsg.orig.tar.xz 78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b
  fetch b/bochs bochsbios_3.0+dfsg-1_all.deb 13f8f4bdd9bb5c07378b7e39042cb631ebdd41d00b0f1a3091caab17ca946a5b
  fetch v/vgabios vgabios_0.8a+ds-2_all.deb 921cca705c76139df423782979c3e4fe93a246ae3adc143ba17a321decf3544b
  [ -e firmware ] || { for package in bochsbios_*.deb vgabios_*.deb; do dpkg -x "$package" firmware; done; }
  cmp -s "$here/bochs-3.0-tiles.patch" built.patch && return
  rm -rf bochs-3.0
  tar -xf bochs_3.0+dfsg.orig.tar.xz
  patch -s -p1 -d bochs-3.0 <"$here/bochs-3.0-tiles.patch"
  echo "building the emulator: 2 to 3 minutes"
  (
    cd bochs-3.0
    ./configure --enable-cpu-level=6 --enable-x86-64 --enable-all-optimizations --enable-handlers-chaining \
      --enable-trace-linking --enable-avx --enable-evex --enable-amx --enable-long-phy-address --enable-memtype \
      --with-nogui --disable-docbook
    make -j"$(nproc)" bochs
  ) >bochs.log 2>&1 || { tail -n 20 bochs.log; exit 1; }
  cp "$here/bochs-3.0-tiles.patch" built.patch
}

# A kernel and a shell, taken out of their packages and not installed.
fetch_linux() {
  [ -e linux/complete ] && return
  local kernel
  kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2 }')
  apt-get download -qq "$kernel" busybox-static
  for package in "$kernel" busybox-static; do dpkg -x "$package"_*.deb linux; done
  touch linux/complete
}

# What the guest has in memory: the programs, the libraries they load, and the jobs.
fill_guest() {
  local cargo=(cargo --quiet) tests
  cd "$project"
  tests=$("${cargo[@]}" test -p campanile-kernels --lib --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*campanile_kernels-[^"]*\)".*/\1/p')
  "${cargo[@]}" build -p campanile-kernels --example levels
  "${cargo[@]}" build --bin campanile
  cd "$work"
  rm -rf guest
  mkdir -p guest/{bin,dev,proc,tmp}
  cp "$here/init" "$here/trainings" guest/
  cp "$(find linux -name busybox -path '*bin/*')" guest/bin/
  strip -o guest/bin/kernels "$tests"
  strip -o guest/bin/levels ../debug/examples/levels
  strip -o guest/bin/campanile ../debug/campanile
  for program in kernels levels campanile; do
    ldd "guest/bin/$program" | grep -o '/[^ ]*' | xargs -I {} cp -L --parents {} guest
  done
  # Layers that are wide enough for tiles, and enough samples in a grain that all three products use them.
  sed -e 's/^batch_size = 64.*/batch_size = 512/' -e 's/^bottom = .*/bottom = [64, 40, 8]/' -e 's/^top = .*/top = [64, 40]/' \
    "$project/examples/tiny.toml" >guest/f32.toml
  sed 's/^batch_size = .*/&\nprecision = "bf16"/' guest/f32.toml >guest/bf16.toml
}

# boot NAME FEATURES WORDS: leaves what the guest said in NAME/said.txt; the words are for its kernel.
boot() {
  rm -rf "$1"
  mkdir -p "$1/disc"
  (cd guest && find . | cpio --quiet -o -H newc | gzip -1) >"$1/disc/initrd"
  cp linux/boot/vmlinuz-* "$1/disc/vmlinuz"
  cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$1/disc"
  cat >"$1/disc/isolinux.cfg" <<END
default linux
label linux
  kernel vmlinuz
  append initrd=initrd console=ttyS0 quiet loglevel=1 mitigations=off nokaslr $3
END
  xorriso -as mkisofs -quiet -o "$1/disc.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 \
    -boot-info-table "$1/disc" 2>/dev/null
  cat >"$1/bochsrc" <<END
cpu: model=corei7_skylake_x, count=1, ips=50000000, reset_on_triple_fault=0, add_features="$2"
memory: guest=1024, host=1024
romimage: file=$work/firmware/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=$work/firmware/usr/share/vgabios/vgabios.bin
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=$1/disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$1/serial.txt
log: $1/bochs.txt
display_library: nogui
clock: sync=none
panic: action=fatal
error: action=ignore
info: action=ignore
END
  # Switching itself off is a panic of the emulator, so its exit code says nothing.
  timeout $((60 * minutes_max)) bochs-3.0/bochs -q -f "$1/bochsrc" >"$1/bochs.out" 2>&1 </dev/null || true
  tr -d '\r' <"$1/serial.txt" >"$1/said.txt"
}

# expect NAME WHAT PATTERN: the guest's words have a line of that form.
expect() {
  grep -q "$3" "$1/said.txt" && { echo "  $1: $2"; return; }
  echo "  $1: NOT $2; see $work/$1/said.txt" >&2
  failed=1
}

# bits FILE RUN: the hash of that run, or words that no file has.
bits() {
  sed -n "s/.*BITS $2 //p" "$1" | grep . || echo "of a run that failed"
}

need_packages
build_emulator
fetch_linux
fill_guest
rm -rf host
mkdir host
(cd host && jobs=$work/guest PATH=$work/guest/bin:$PATH sh "$here/trainings") >host/said.txt
host_level=$(guest/bin/levels | awk '{ print $NF }')
failed=0
[ $# -gt 0 ] || set -- avx512 pairs amx refused
for name in "$@"; do
  case $name in
    avx512) features="" words="" last=Avx512 ;;
    pairs) features="avx512bf16" words="" last=Avx512Bf16 ;;
    amx) features="avx512bf16,amx,amx_bf16" words="" last=Amx ;;
    refused) features="avx512bf16,amx,amx_bf16" words="clearcpuid=amx_tile levels_only" last=Avx512Bf16 ;;
    *) echo "unknown: $name; known are avx512, pairs, amx and refused" >&2; exit 2 ;;
  esac
  echo "$name: running"
  boot "$name" "$features" "$words"
  expect "$name" "the level that is found is $last" "^LEVELS .*$last\$"
  [ "$name" = refused ] && continue
  expect "$name" "all tests of the kernels pass" "^TESTS exit 0\$"
  for precision in f32 bf16; do
    expect "$name" "$precision trains to the same bits on one and two threads" \
      "BITS $precision 2 $(bits "$name/said.txt" "$precision 1")\$"
    case "$precision $last $host_level" in
      bf16*Amx*) ;; # Products of bfloat16 on tiles round in another order than all other levels.
      *)
        expect "$name" "$precision trains to the bits of this machine" \
          "BITS $precision 1 $(bits host/said.txt "$precision 1")\$"
        ;;
    esac
  done
done
exit $failed
