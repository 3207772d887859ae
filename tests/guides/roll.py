"""Roll a cluster under load from the code of another checkout to this one,
a process at a time; by hand.

    git worktree add /tmp/old COMMIT
    python -m tests.guides.roll /tmp/old [--clients-first | --back]

The processes are those of the compose file.  Two loads work all the time: through the mount of an
old daemon, and through a native client of the old code; one of the new code follows when all
servers have been rolled, with `--clients-first` it begins before them, with `--back` the servers go
back to the old code instead.  Each reads back what it wrote, whole, and notes errors and its
longest call.  After each process all targets have to serve before the next one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.app.by_hand import EMBER, SERVERS, ByHand

HERE = Path(__file__).resolve().parents[2]
WAIT_S_MAX = 180.0
ORDER = sorted(SERVERS, key=lambda name: (name != "mgmtd", name == "meta"))
"""Who is asked before who asks, as the guide has it."""
PAUSE_S = 2.0
"""Of work with each mixture."""

LOAD = """
import hashlib, json, os, random, sys, time
kind, place, stop, manager, key = sys.argv[1:]
if kind == "native":
    from fs.client.blocking import connect_blocking
    os.environ["EMBERFS_KEY_FILE"] = key
    fs = connect_blocking([manager], "compose")
    fs.__enter__()
    write, read, rename, unlink = fs.write_file, fs.read_file, fs.rename, fs.unlink
    fs.makedirs(place)
else:
    os.makedirs(place)
    def write(path, data):
        with open(path, "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
    def read(path):
        with open(path, "rb") as file:
            return file.read()
    rename, unlink = os.rename, os.unlink
def content(number):
    seed = hashlib.sha256(b"%d" % number).digest()
    return seed * (1 + number * 7919 % 12_000)
known, chance, count, longest, errors, wrong = [], random.Random(1), 0, 0.0, [], 0
def step(number):
    global wrong
    path = f"{place}/{number}"
    write(path + ".new", content(number))
    rename(path + ".new", path)
    known.append(number)
    again = chance.choice(known)
    if read(f"{place}/{again}") != content(again):
        wrong += 1
    if len(known) > 200:
        unlink(f"{place}/{known.pop(0)}")
while not os.path.exists(stop):
    began = time.monotonic()
    try:
        step(count)
    except Exception as error:
        errors.append(f"{count}: {error!r}")
    longest = max(longest, time.monotonic() - began)
    count += 1
for number in known:
    wrong += read(f"{place}/{number}") != content(number)
told = {"steps": count, "longest_s": round(longest, 2), "wrong": wrong}
print(json.dumps(told | {"errors": len(errors), "first": errors[:3]}))
"""


def load(hand, name, kind, place, code):
    """Start a load; its last line says what it met."""
    environment = {**os.environ, "PYTHONPATH": f"{code}:{code}/fs/client/user"}
    words = [kind, place, hand.base / "stop", hand.manager, hand.key_file]
    command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", LOAD, *words]
    return name, subprocess.Popen(
        [str(word) for word in command],
        env=environment, cwd=hand.base, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_serving(hand):
    end_s = time.monotonic() + WAIT_S_MAX
    for name in ("storage-1", "storage-2", "storage-3"):
        while (found := hand.probe(name, "--serving"))[0]:
            assert time.monotonic() < end_s, found
            time.sleep(0.3)


def roll(hand, code, names):
    for name in names:
        began = time.monotonic()
        hand.stop(name)
        hand.wait_ready(hand.start(name, code))
        wait_serving(hand)
        print(
            f"{name}: runs from {code}, all serve after {time.monotonic() - began:.1f} s",
            flush=True,
        )
        time.sleep(PAUSE_S)


def run(hand, old, *, is_clients_first, is_back):
    waiting = [hand.start(name, old) for name in SERVERS]
    print(hand.init().strip(), flush=True)
    hand.wait_ready(*waiting)
    hand.mount_with_the_key()
    hand.wait_ready(hand.start("mount", old))
    wait_serving(hand)
    loads = [
        load(hand, "old mount", "mount", hand.mount / "mounted", old),
        load(hand, "old native client", "native", "/native-old", old),
    ]
    newer = "new native client", "native", "/native-new", HERE
    if is_clients_first:
        loads.append(load(hand, *newer))
    time.sleep(PAUSE_S)
    roll(hand, HERE, ORDER)
    if is_back:
        roll(hand, old, list(reversed(ORDER)))
    elif not is_clients_first:
        loads.append(load(hand, *newer))
        time.sleep(3 * PAUSE_S)
    (hand.base / "stop").touch()
    is_good = True
    for name, child in loads:
        told = json.loads(child.communicate(timeout=300)[0])
        is_good = is_good and told["steps"] > 0 and not told["errors"] and not told["wrong"]
        print(f"{name}: {told}", flush=True)
    hand.stop("mount")
    compare = [EMBER, "admin", "chunks", "compare", "--config", hand.file("mgmtd")]
    done = subprocess.run(compare, capture_output=True, text=True, check=False)
    print(done.stdout.strip().splitlines()[-1] if done.stdout else done.stderr)
    for name in reversed(SERVERS):
        hand.stop(name)
    return 0 if is_good and done.returncode == 0 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="a checkout of an earlier commit")
    parser.add_argument("--clients-first", action="store_true", help="the wrong order")
    parser.add_argument("--back", action="store_true", help="roll back afterwards")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ember-roll-") as base:
        hand = ByHand(Path(base))
        try:
            return run(
                hand,
                arguments.old.resolve(),
                is_clients_first=arguments.clients_first,
                is_back=arguments.back,
            )
        except BaseException:
            print(hand.logs()[-20_000:])
            raise
        finally:
            hand.end()


if __name__ == "__main__":
    sys.exit(main())
