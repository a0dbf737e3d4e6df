#!/usr/bin/env bash
# Prints the lock that fits this machine: cpu, cuda12, cuda13 or tpu. If there is an accelerator that
# cannot be used as things are, says on standard error what is missing and ends with code 2.
#
# Hardware is recognised by device files, by what the kernel's /sys and /proc say, and by values
# that nvidia-smi is asked for by name; the tables that it prints for people change their wording.
# The argument, for tests, is the directory that holds dev, proc and sys.
set -uo pipefail
root=${1:-}

# JAX for CUDA 12 needs a driver of at least 525, JAX for CUDA 13 one of at least 580.
readonly CUDA12_DRIVER=525 CUDA13_DRIVER=580
# CUDA 13 has no code for GPUs older than Turing, whose compute capability is 7.5.
readonly CUDA13_CAPABILITY=75
readonly NVIDIA=0x10de GOOGLE=0x1ae0
# The devices of Google's that are TPUs, v2 to v7; its virtual network cards have the same vendor.
readonly TPUS=" 0x0027 0x0056 0x005e 0x0062 0x0063 0x006f 0x0076 "
readonly DISPLAY_CLASS=0x03 # the PCI class of graphics cards, and of GPUs that only compute

refuse() {
  echo "$1" >&2
  exit 2
}

ask_nvidia() { # one value for each GPU
  if command -v timeout >/dev/null; then
    timeout 30 nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null
  else
    nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null
  fi
}

text_of() { # the text of a file of the kernel, nothing if there is none
  if [[ -r $root/$1 ]]; then cat "$root/$1"; fi
}

driver_in() { # the first number in a text that looks like a driver's version, 535 of 535.104.05
  [[ $1 =~ (^|[[:space:]])([0-9][0-9][0-9]+)\.[0-9]+ ]] && echo "${BASH_REMATCH[2]}"
}

has_tpu() {
  local directory vendor device group
  for directory in "$root"/sys/bus/pci/devices/*/; do
    vendor=$(cat "$directory/vendor" 2>/dev/null) || continue
    device=$(cat "$directory/device" 2>/dev/null) || continue
    [[ $vendor == "$GOOGLE" && $TPUS == *" $device "* ]] && return 0
  done
  # Without /sys: TPUs up to v4 are /dev/accel0, later ones /dev/vfio/0, which other devices that are
  # passed on to this machine may be, too.
  [[ -e $root/dev/accel0 ]] && return 0
  for group in "$root"/dev/vfio/[0-9]*; do
    [[ -e $group && ! -d $root/sys/bus/pci/devices ]] && return 0
  done
  return 1
}

has_nvidia_card() { # also if no driver is loaded
  local directory vendor class
  for directory in "$root"/sys/bus/pci/devices/*/; do
    vendor=$(cat "$directory/vendor" 2>/dev/null) || continue
    class=$(cat "$directory/class" 2>/dev/null) || continue
    [[ $vendor == "$NVIDIA" && $class == "$DISPLAY_CLASS"* ]] && return 0
  done
  return 1
}

nvidia_device() { # the device file of the first GPU; fails if there is none
  local file
  for file in "$root"/dev/nvidia[0-9]*; do
    [[ -e $file ]] && echo "$file" && return 0
  done
  return 1
}

has_old_gpu() { # older than CUDA 13 supports; drivers that do not tell are older than CUDA 13, too
  local capability
  while read -r capability; do
    [[ $capability =~ ^([0-9]+)\.([0-9])$ ]] || continue
    ((BASH_REMATCH[1] * 10 + BASH_REMATCH[2] < CUDA13_CAPABILITY)) && return 0
  done <<<"$(ask_nvidia compute_cap)"
  return 1
}

if has_tpu; then
  echo tpu
  exit
fi

device=$(nvidia_device) || device=
driver=$(driver_in "$(ask_nvidia driver_version)") || driver=
if [[ -z $device && -z $driver ]]; then
  if command -v nvidia-smi >/dev/null; then
    refuse "nvidia-smi is installed but finds no GPU; mend the driver, or name what to install: ACCEL=cpu, cuda12 or cuda13"
  fi
  if has_nvidia_card; then
    echo "there is an NVIDIA card but no driver for it, so this is the environment for CPUs" >&2
  fi
  echo cpu
  exit
fi

# A container may have the device without nvidia-smi.
if [[ -z $driver ]]; then
  driver=$(driver_in "$(text_of sys/module/nvidia/version)") ||
    driver=$(driver_in "$(text_of proc/driver/nvidia/version)") ||
    refuse "there is ${device#"$root"}, but nothing tells the version of its driver; name what to install: ACCEL=cuda13 (driver $CUDA13_DRIVER or later), ACCEL=cuda12 ($CUDA12_DRIVER or later) or ACCEL=cpu"
fi
if ((driver < CUDA12_DRIVER)); then
  refuse "the NVIDIA driver $driver is too old for JAX, which needs $CUDA12_DRIVER or later; update it, or set ACCEL=cpu"
elif ((driver < CUDA13_DRIVER)) || has_old_gpu; then
  echo cuda12
else
  echo cuda13
fi
