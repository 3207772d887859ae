"""TensorStore's databases with writers on both mounts at once,
and checkpoints that Orbax makes of them.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
WRITE = """
import sys, tensorstore as ts
store = ts.KvStore.open(sys.argv[1]).result()
for i in range(20):
    store.write(f"{sys.argv[2]}-{i}", (sys.argv[2] * i).encode()).result()
"""


def spec(side: Path, driver: str, name: str) -> dict:
    base = f"file://{side}/{name}/"
    return {"driver": driver, "kvstore": f"{base}|ocdbt:" if name == "ocdbt" else base}


for kind in ("", "|ocdbt:"):
    name = f"keys{len(kind)}"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE, f"file://{side}/{name}/{kind}", who])
        for side, who in ((HERE, "a"), (OTHER, "b"))
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    for side in (HERE, OTHER):
        store = ts.KvStore.open(f"file://{side}/{name}/{kind}").result()
        assert len(store.list().result()) == 40, (kind, side)
        assert store.read("b-19").result().value == b"b" * 19
for driver in ("zarr", "n5", "zarr3"):
    for name in (f"plain-{driver}", "ocdbt"):
        if name == "ocdbt" and driver != "zarr3":
            continue
        array = ts.open(
            spec(HERE, driver, name), create=True, dtype=ts.int64, shape=[300, 200]
        ).result()
        array[:150].write(np.arange(30000).reshape(150, 200)).result()
        there = ts.open(spec(OTHER, driver, name)).result()
        there[150:].write(np.arange(30000, 60000).reshape(150, 200)).result()
        afresh = ts.open(spec(HERE, driver, name)).result()
        assert (afresh.read().result() == np.arange(60000).reshape(300, 200)).all(), name
state = {f"w{i}": np.random.default_rng(i).random((256, 256)) for i in range(8)}
with ocp.CheckpointManager(
    HERE / "steps", options=ocp.CheckpointManagerOptions(max_to_keep=2)
) as manager:
    for step in range(4):
        manager.save(step, args=ocp.args.StandardSave({n: w + step for n, w in state.items()}))
    manager.wait_until_finished()
with ocp.CheckpointManager(OTHER / "steps") as manager:
    assert sorted(manager.all_steps()) == [2, 3]
    restored = manager.restore(3, args=ocp.args.StandardRestore())
assert all((restored[n] == w + 3).all() for n, w in state.items())
assert not [p for p in (HERE / "steps").iterdir() if "tmp" in p.name]
