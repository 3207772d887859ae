#!/bin/bash
# The first thing that runs in the namespaces of a machine: makes its root from a tree that all share, and becomes its systemd.
#   boot.sh TREE FOLDER NAME
# FOLDER keeps what the machine writes (upper/) and its disks (disks/), also over reboots.
set -eu
tree=$1 folder=$2 name=$3
mkdir -p "$folder"/{upper,work,root,disks}
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
cd "$folder/root"
mount -t proc proc proc
mount --bind -o ro proc/sys proc/sys # settings of the kernel are not this machine's alone
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty fuse; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mkdir -p disks
mount --bind "$folder/disks" disks
hostname "$name"
mkdir -p old
pivot_root . old
umount -l /old
exec env -i container=embertest PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --bounding-set=-sys_module,-sys_rawio,-sys_time,-syslog /sbin/init
