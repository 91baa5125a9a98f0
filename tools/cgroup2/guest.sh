#!/bin/sh
# PID 1 of the guest that run.py boots: mounts cgroup version 2, runs what run.py said, writes
# NAME=VALUE lines on the second serial line, and switches the machine off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

finish() {
  sync
  echo 1 >/proc/sys/kernel/sysrq
  echo o >/proc/sysrq-trigger
  sleep 60
}

# As in a container with a cgroup namespace of its own: the root that it sees is not the kernel's
# root, and processes are in it, so that it hands no controller down while they stay there.
# shellcheck disable=SC2317  # run.py's command calls it
in_container() {
  mkdir -p /sys/fs/cgroup/unit
  echo "+memory +pids +cpu" >/sys/fs/cgroup/cgroup.subtree_control
  INSIDE="mount -t cgroup2 none /sys/fs/cgroup && $1" sh -c '
    echo $$ >/sys/fs/cgroup/unit/cgroup.procs
    exec unshare --cgroup --mount --pid --fork --mount-proc sh -c "$INSIDE"'
}

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
exec </dev/null >/dev/ttyS0 2>&1
stty -opost </dev/ttyS0

case " $(cat /proc/cmdline) " in
  *" trialyard.probe "*) echo probe=ok >/dev/ttyS1; finish ;;
esac

hostname cgroup2
ip link set lo up
sysctl -q -w kernel.printk='3 4 1 3' vm.overcommit_memory=0
for module in overlay fuse loop tun veth bridge nf_tables; do modprobe -q "$module"; done
mount -t cgroup2 -o nsdelegate none /sys/fs/cgroup
mkdir -p /mnt/repository
mount /dev/nvme1n1 /mnt/repository || finish
. /mnt/repository/.guest
mkdir -p "$ROOT"
mount --move /mnt/repository "$ROOT"
cd "$ROOT" || finish
SCALE=$(sed -n 's/.*trialyard.scale=\([0-9]*\).*/\1/p' /proc/cmdline)
export PYTHON SCALE TRIALYARD_TIME_SCALE="$SCALE" PYTHONPATH="$ROOT/src" PYTHONDONTWRITEBYTECODE=1
{
  echo "kernel=$(uname -r)"
  echo "controllers=$(cat /sys/fs/cgroup/cgroup.controllers)"
} >/dev/ttyS1
: >/run/output
(eval "$COMMAND") >>/run/output 2>&1 &
suite=$!
tail -n +1 -f --pid=$suite /run/output
wait $suite
status=$?
{
  echo "summary=$(grep -E '^=+ .* in [0-9.]+s' /run/output | tr -d '=' | xargs -n 99 echo)"
  echo "status=$status"
} >/dev/ttyS1
finish
