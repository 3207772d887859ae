"""Programs that live on files, as parts of `tests.real.suites`:
each a script that ends with 0 if all was as it should be.

They are run by root.  What is needed and not installed is named.
"""

import shutil

from .suite_part import Part

IMAGES = """
sums() { (cd "$1"; find . -type f -print0 | sort -z | xargs -0 md5sum); }
mkdir tree at; cp -a /usr/share/perl5/Debconf tree/; sums tree > wanted
for type in ext4:64 xfs:310 btrfs:130; do
    command -v mkfs.${type%:*} && grep -qw ${type%:*} /proc/filesystems || continue
    rm -f image; truncate -s ${type#*:}M image
    for direct in off on; do
        [ $direct = on ] || mkfs.${type%:*} -q image
        loop=$(losetup -f --show --direct-io=$direct image)
        mount $loop at || { losetup -d $loop; exit 1; }
        [ -e at/tree ] || cp -a tree at/
        same=0; sums at/tree | cmp - wanted || same=1
        fallocate -l 5M at/filled; rm at/filled; fstrim at
        umount at; losetup -d $loop
        [ $same = 0 ]
    done
    case $type in ext4*) e2fsck -fn image;; xfs*) xfs_repair -n image;; btrfs*) btrfs check image;; esac
done
"""
"""File systems in an image: through the page cache, then without it;
trimmed, unmounted, checked.
"""
DISKS = """
qemu-img create -q -f qcow2 a.qcow2 64M
qemu-io -c 'write -P 3 1M 3M' -c 'write -P 4 10M 64k' -c 'discard 2M 1M' -c flush a.qcow2
qemu-img check a.qcow2
qemu-img convert -O raw a.qcow2 a.raw; qemu-img compare a.qcow2 a.raw
qemu-img convert -O qcow2 -c a.raw b.qcow2; qemu-img compare a.raw b.qcow2
for cache in none writethrough directsync; do
    qemu-io -f raw -t $cache -c 'aio_write -P 8 5M 1M' -c aio_flush -c 'read -P 8 5M 1M' a.raw | grep 'read 1048576/1048576'
done
qemu-io -f raw -t none -n -c 'write -P 9 0 4k' -c 'read -P 9 0 4k' a.raw | grep 'read 4096/4096'
qemu-io -c 'sleep 3000' a.qcow2 & sleep 1
! qemu-img check a.qcow2 2> told; grep 'lock' told; wait
"""
"""Disks of virtual machines: formats, ways of caching, and the locks that keep others out."""
OVERLAY = """
mkdir lower at; upper=$(mktemp -d -p /tmp); trap 'umount -q at; rm -rf "$upper"' EXIT; mkdir "$upper/u" "$upper/w"
cp -a /usr/share/perl5/Debconf lower/; echo below > lower/f; ln lower/f lower/g; ln -s Debconf lower/l; setfattr -n user.a -v b lower/f
mount -t overlay overlay -o lowerdir=$PWD/lower,upperdir=$upper/u,workdir=$upper/w at
diff -r lower at
echo above >> at/f; [ "$(cat at/f | tr '\\n' ' ')" = 'below above ' ]; [ "$(cat lower/f)" = below ]
[ "$(getfattr --only-values -n user.a at/f)" = b ]
mv at/Debconf at/moved; rm -r at/moved/Element; [ ! -e at/l/. ]; [ -d lower/Debconf/Element ]; flock at/g true
chown 12:13 at/g; [ "$(stat -c %u at/g lower/g | tr '\\n' ' ')" = '12 0 ' ]
umount at
mount -t overlay overlay -o ro,lowerdir=$upper/u:$PWD/lower at; [ -d at/moved ]; ! touch at/f
"""
"""A lower directory, as the layers of containers are."""
REDIS = """
sock=$(mktemp -u); c() { redis-cli -s $sock "$@"; }
start() {
    redis-server --port 0 --unixsocket $sock --dir "$PWD" --appendonly yes --appendfsync $1 --daemonize no --save '' --logfile log & server=$!
    until c dbsize 2>&1 | grep -q '^[0-9]'; do kill -0 $server; sleep .1; done
}
for sync in always everysec no; do
    rm -rf appendonlydir dump.rdb; start $sync
    for i in $(seq 200); do echo "SET k$i v$i"; echo INCR n; done | c > told
    c BGREWRITEAOF; while c info persistence | grep -q 'aof_rewrite_in_progress:1'; do sleep .1; done
    for i in $(seq 100); do echo "SET a$i v$i"; done | c > told
    c SAVE; [ $(c get n) = 200 ]
    kill -9 $server; wait $server || true; start $sync
    [ $(c dbsize) = 301 ]
    c shutdown nosave; wait $server
    redis-check-rdb dump.rdb; redis-check-aof appendonlydir/*.manifest
done
"""
"""An append-only file with each way to sync it, rewritten, then a server that is killed."""
NGINX = """
mkdir www; head -c 30000000 /dev/urandom > www/big; echo old > www/s
cat > conf <<END
daemon off; master_process off; pid $PWD/pid; error_log $PWD/log; user root; events {}
http { access_log $PWD/access; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  server { listen unix:sock; root $PWD/www; location / { sendfile on; autoindex on; } location /aio/ { alias $PWD/www/; aio threads; directio 1m; } } }
END
nginx -p "$PWD" -e log -c conf & server=$!; trap 'kill $server' EXIT
get() { curl -sf --unix-socket sock "$@"; }
until [ -S sock ]; do kill -0 $server; sleep .1; done
get http://x/big | cmp - www/big; get http://x/aio/big | cmp - www/big
get -r 1000000-1999999 http://x/big | cmp - <(tail -c +1000001 www/big | head -c 1000000)
echo new > t; mv t www/s; [ $(get http://x/s) = new ]
get http://x/ | grep big; [ $(wc -l < access) = 5 ]
"""
"""Files that a server sends by sendfile and by direct reads; a socket in the directory."""
ROTATED = """
mkdir d; chmod 755 .
cat > conf <<END
$PWD/d/*.log { rotate 3
 size 1k
 compress
 delaycompress
 su root root
 create 640 daemon mail
 dateext
 dateformat .%s
}
$PWD/d/copied { rotate 9
 size 1
 copytruncate
 su root root
}
END
chmod 600 conf
for i in 1 2 3; do seq 2000 >> d/a.log; echo $i >> d/copied; logrotate -s state conf; sleep 1.1; done
[ $(stat -c %a%U%G%s d/a.log) = 640daemonmail0 ]; [ $(ls d/a.log.*.gz | wc -l) = 2 ]
[ $(for f in d/a.log.*; do zcat -f $f; done | wc -l) = 6000 ]; [ $(cat d/copied.? | sort | tr -d '\\n') = 123 ]
"""
"""Logs that are renamed, packed, or copied and cut."""
RSYNC = """
mkdir -p s/Element; cp -a /usr/share/perl5/Debconf/Element/Noninteractive s/Element/; cd s
truncate -s 20M sparse; head -c 300000 /usr/bin/git | dd of=sparse bs=64k seek=200 conv=notrunc
ln sparse hard; ln -s nowhere l; mkfifo p; setfacl -m u:65534:r sparse; setfattr -n user.x -v y Element; chown 12:13 hard; chmod 4755 hard
find . -exec touch -hd '2024-05-06 07:08:09.123456789' {} +
cd ..; about() { (cd $1; find . -printf '%p %y %m %n %U %G %l %T@\\n' | sort; find . -type f | sort | xargs md5sum; getfacl -Rn .; getfattr -Rdh .); }
about s > wanted
for way in '--inplace --sparse' '--no-whole-file --sparse' '--whole-file --preallocate' --append-verify '--partial-dir=.p --delay-updates' \
    '--checksum --no-whole-file --inplace --fsync'; do
    rm -rf d; mkdir d; [ "$way" = --append-verify ] || head -c 3000000 /dev/urandom > d/sparse
    rsync -aHAX $way s/ d/; about d | cmp - wanted; [ -z "$(rsync -aHAXi $way s/ d/)" ]
    case $way in *sparse) [ $(du -k d/sparse | cut -f1) -lt 4000 ];; esac
done
rsync -aHAX --link-dest=$PWD/d s/ linked/; [ d/hard -ef linked/sparse ]
"""
"""Copies with holes, lists, attributes and links, by each way of writing what is there already.
Of an older second: rsync leaves times alone that differ by less (`--modify-window` of 0).
"""
PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
NEEDED = {
    "images": (IMAGES, "mkfs.ext4 e2fsck losetup fstrim"),
    "disks": (DISKS, "qemu-img qemu-io"),
    "overlay": (OVERLAY, "getfattr setfattr flock"),
    "redis": (REDIS, "redis-server redis-cli redis-check-aof"),
    "nginx": (NGINX, "nginx curl"),
    "rotated": (ROTATED, "logrotate"),
    "rsync": (RSYNC, "rsync git getfacl setfattr"),
}
"""By name: a script, and the commands that it takes."""


def parts() -> dict[str, Part]:
    """Return the scripts that have what they take; print which are left out."""
    found = {}
    for name, (script, commands) in NEEDED.items():
        missing = [
            command for command in commands.split() if not shutil.which(command, path=PATH["PATH"])
        ]
        if missing:
            print(f"left out: programs/{name} ({', '.join(missing)} not installed)")
        else:
            found[f"programs/{name}"] = Part(
                ["/bin/bash", "-eo", "pipefail", "-c", script], environment=PATH
            )
    return found
