"""Tables of Hugging Face: caches that several processes make under locks, mapped Arrow files,
the same cache used by both mounts at once.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
os.environ["HF_HOME"] = str(HERE / "home")
os.environ["HF_HUB_OFFLINE"] = "1"

import datasets  # noqa: E402 - it reads the environment

ROWS = 2000
BOTH = """
import datasets, sys
datasets.disable_progress_bars()
lines = sys.argv[1] + "/lines.json"
rows = datasets.load_dataset("json", data_files=lines, cache_dir=sys.argv[2], split="train")
print(sum(rows["n"]))
"""


def generate(shards: list[int]):
    for shard in shards:
        for i in range(ROWS // 4):
            yield {"n": shard * ROWS // 4 + i, "text": f"row {i} " * 20}


if __name__ == "__main__":  # processes that these start read this file, too
    datasets.disable_progress_bars()
    table = datasets.Dataset.from_generator(
        generate, gen_kwargs={"shards": [0, 1, 2, 3]}, cache_dir=str(HERE / "cache"), num_proc=2
    )
    assert sorted(table["n"]) == list(range(ROWS))
    twice = table.map(lambda row: {"m": row["n"] * 2}, num_proc=2)
    assert sum(twice["m"]) == ROWS * (ROWS - 1)
    even = twice.filter(lambda row: row["n"] % 2 == 0).shuffle(seed=1).sort("n")
    even.save_to_disk(HERE / "saved", num_proc=2)
    mapped = datasets.load_from_disk(OTHER / "saved")
    assert mapped["n"][:3] == [0, 2, 4]
    assert len(mapped) == ROWS // 2
    even.to_parquet(HERE / "even.parquet")
    again = datasets.Dataset.from_parquet(
        str(OTHER / "even.parquet"), cache_dir=str(HERE / "again")
    )
    assert again["m"][:] == mapped["m"][:]
    table.to_json(HERE / "lines.json")
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", BOTH, HERE, side / "both"], stdout=subprocess.PIPE, text=True
        )
        for side in (HERE, OTHER)
    ]
    sums = [int(maker.communicate()[0]) for maker in makers]
    assert sums == [ROWS * (ROWS - 1) // 2] * 2
    assert len(list((HERE / "both").rglob("*.arrow"))) == 1
