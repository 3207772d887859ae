"""Random deeds on a small tree, so that those who do them meet:
few names, and the objects seen last.
"""

import random

from tests.meta.deeds import READERS, Deed
from tests.meta.harness import ROOT
from tests.meta.model import SUPERUSER, Person

NAMES = [b"a", b"b", b"c"]
LENGTHS = [0, 1, 10, 100]
MODES = [0o755, 0o777, 0o700, 0o1777, 0o2775, 0o644, 0o666, 0o000, 0o4755]
DIRECTORY_MODES = MODES[:5]
PEOPLE = [SUPERUSER, Person(1000, 1000, frozenset({2000})), Person(1001, 2000)]
KINDS = (
    ["create"] * 5
    + ["mkdir"] * 3
    + ["link", "unlink", "rmdir"] * 3
    + ["rename"] * 7
    + ["symlink", "truncate", "append", "append"]
    + ["lookup", "attr", "list"] * 4
)
RIGHTS = ["chmod"] * 3 + ["chown"]
RENAME_MODES = ["replace"] * 3 + ["no_replace", "exchange"]
RECENT_COUNT = 8


class Chooser:
    """Draws deeds; knows the objects that answers spoke of."""

    def __init__(self, source: random.Random, kinds: list[str]) -> None:
        self._source = source
        self._kinds = kinds
        self.directories = [ROOT]
        self.files: list[int] = []

    def deed(self, who: Person) -> Deed:
        choose = self._source.choice
        kind = choose(self._kinds)
        here, there = choose(self.directories), choose(self.directories)
        name, other = choose(NAMES), choose(NAMES)
        known = choose(self.files or [ROOT])
        args = {
            "create": (here, name, choose(MODES), choose([True, False]), choose([True, False])),
            "mkdir": (here, name, choose(DIRECTORY_MODES)),
            "symlink": (here, name, b"x"),
            "link": (known, there, other),
            "rename": (here, name, there, other, choose(RENAME_MODES)),
            "truncate": (known, choose(LENGTHS)),
            "append": (known, choose(LENGTHS[1:])),
            "attr": (choose([here, known]),),
            "list": (here,),
            "chmod": (choose([here, known]), choose(MODES)),
            "chown": (choose([here, known]), *choose([(1000, None), (0, 0), (None, 2000)])),
        }
        return Deed(kind, who, args.get(kind, (here, name)))

    def learn(self, deed: Deed, answer: object) -> None:
        """Remember the objects that an answer speaks of."""
        if not isinstance(answer, tuple) or len(answer) < 2:
            return
        for ident, kind in self._spoken_of(deed, answer):
            known = {"dir": self.directories, "file": self.files}.get(kind)
            if known is not None and ident not in known:
                known.append(ident)
                del known[1 : len(known) - RECENT_COUNT + 1]

    @staticmethod
    def _spoken_of(deed: Deed, answer: tuple) -> list[tuple]:
        if deed.kind == "list":
            return [(ident, facts and facts[0]) for _, ident, facts in answer[1]]
        if deed.kind in READERS:
            return [(answer[1], answer[2][0])]
        return [(answer[1], {"mkdir": "dir", "create": "file"}.get(deed.kind))]
