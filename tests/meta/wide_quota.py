"""The wide comparison with quotas: each refusal exactly where a limit would be exceeded,
usage of each directory after each deed.

What a file counts for, and where, is found by comparing all names before and after a
deed.  Which of several names outside of a removed tree becomes the home is for the
service to choose: that is learned.

python -m tests.meta.wide_quota --runs 200 --seed 1000      # by hand; each run is a seed of its own
"""

import sys
from collections import defaultdict

from fs.meta import records
from fs.meta.check import read_all
from fs.schema.status import FsError, Status
from tests.meta.deeds import QUIET
from tests.meta.wide import Company, main
from tests.meta.wide_deeds import WIDE_KINDS, WideChooser, WideExpectation, ask
from tests.meta.wide_model import WideModel

FREE = {"unlink", "rmdir", "remove_tree"}
"""Deeds that no limit stops: what they change where is no growth that anybody asked for."""

QUOTA_KINDS = [
    *WIDE_KINDS,
    *["quota"] * 12,
    *["truncate"] * 8,
    *["append"] * 4,
    *["rename"] * 14,
    *["link"] * 8,
    *["create"] * 8,
]
BYTES, INODES = [0, 0, 5, 50, 150], [0, 2, 4, 6]
NO_LIMITS = (0, 0)


class QuotaModel(WideModel):
    """A namespace whose directories have limits and whose other objects count at one
    of their names, their home.
    """

    def adopt(self, node, ident):
        before = node.ident
        super().adopt(node, ident)
        for other in self.nodes.values():
            home = getattr(other, "home", None)
            if home is not None and home[0] == before:
                other.home = (ident, home[1])

    def name_in_trash(self, directory, name, found):
        super().name_in_trash(directory, name, found)
        node = directory.entries[found]
        if getattr(node, "home", None) == (directory.ident, name):
            node.home = (directory.ident, found)

    def places(self):
        """Return the names of all that is no directory: ident -> {(ident of directory, name)}."""
        found = defaultdict(set)
        for directory in self.directories():
            for name, node in directory.entries.items():
                if node.kind != "dir":
                    found[node.ident].add((directory.ident, name))
        return found

    def settle(self, before, *, is_tree):
        """Find new homes after one deed; `before`: places then;
        `is_tree`: a tree went, so that some are unknown.

        A home was a name before the deed: a wrong one would be taken for one that
        has gone, and another guessed.
        """
        now = self.places()
        for ident, node in self.nodes.items():
            home = getattr(node, "home", None)
            here = now.get(ident, set())
            assert home is None or home in before.get(ident, set()), (node.kind, hex(ident), home)
            if home in here:
                continue
            gained, lost = here - before.get(ident, set()), before.get(ident, set()) - here
            if home in lost and gained:
                (node.home,) = gained
            elif here and home is not None and is_tree:
                node.home = None
                node.is_home_unknown = True
            else:
                node.home = min(here, key=_order, default=None)

    def clean(self):
        places = self.places()
        super().clean()
        self.settle(places, is_tree=True)

    def usage(self, directory):
        """Return (bytes, files, directories)."""
        inside = {node.ident for node in directory.below() if node.kind == "dir"}
        counted = [
            n for n in self.nodes.values() if (getattr(n, "home", None) or (None,))[0] in inside
        ]
        lengths = (node.length for node in counted if node.kind == "file")
        return sum(lengths), len(counted), len(inside) - 1

    def limit(self, directory, limits, who):
        if who.uid != 0:
            return Status.NOT_PERMITTED
        status = self._enter(directory, who)
        if status is None:
            directory.limits = limits
        return status

    def usages(self):
        return {directory.ident: self.usage(directory) for directory in self.directories()}

    def exceeded(self, before):
        """Whether anything that was there before, with these usages, holds more than a limit,
        and more than then.
        """
        for directory in self.directories():
            bytes_max, inodes_max = getattr(directory, "limits", NO_LIMITS)
            if directory.ident not in before or not (bytes_max or inodes_max):
                continue
            then, now = before[directory.ident], self.usage(directory)
            if bytes_max and now[0] > max(bytes_max, then[0]):
                return True
            if inodes_max and sum(now[1:]) > max(inodes_max, sum(then[1:])):
                return True
        return False


def _order(place):
    return place[0].to_bytes(8, "big", signed=True) + place[1]


class QuotaChooser(WideChooser):
    """Sets limits, too."""

    def _quota(self):
        choose = self._source.choice
        return choose(self.directories), choose(BYTES), choose(INODES)


class QuotaCompany(Company):
    """As Company, on a model with limits."""

    def __init__(self, world, source):
        super().__init__(world, source)
        self.model = QuotaModel()
        self.chooser = QuotaChooser(source, QUOTA_KINDS)
        self.refused_count = 0

    async def both(self, deed):
        if deed.kind in QUIET:
            await super().both(deed)
            return
        if deed.kind == "quota":
            await self._limit(deed)
        else:
            await self._judged(deed)

    async def _limit(self, deed):
        ident, *limits = deed.args
        who = deed.who
        expected = self.model.limit(self.model.nodes.get(ident), tuple(limits), who)
        user = self.world.user(who.uid, who.gid, tuple(who.groups), who.client)
        try:
            await user.set_quota(ident, *limits)
            answer = None
        except FsError as error:
            answer = error.status
        assert answer is expected, (str(deed), answer, expected)

    async def _judged(self, deed):
        """Do it in a copy of the model, which becomes the model unless a limit stops the deed."""
        usages, places = self.model.usages(), self.model.places()
        after = self.model.copy()
        expected = WideExpectation(after, deed)
        is_free, is_tree = deed.kind in FREE, deed.kind == "remove_tree"
        if deed.kind == "trash" and not isinstance(expected.answer, Status):
            _, moved, trash, _ = expected.answer
            is_free = trash.node is None  # what lay in the trash already is removed
            is_tree = is_free and moved.node.kind == "dir"
        after.settle(places, is_tree=is_tree)
        if not isinstance(expected.answer, Status):
            if is_free or not after.exceeded(usages):
                self.model = after
            else:
                expected.answer = Status.QUOTA_EXCEEDED
                self.refused_count += 1
        who = deed.who
        answer = await ask(self.world.user(who.uid, who.gid, tuple(who.groups), who.client), deed)
        assert expected.agrees(answer), (str(deed), answer, expected.answer)
        self.chooser.learn(deed, answer)
        if not is_tree:
            await self.compare_usage()

    def is_over_quota(self, node, length):
        usages = self.model.usages()
        before, node.length = node.length, length
        is_over, node.length = self.model.exceeded(usages), before
        return is_over

    async def collect(self):
        await super().collect()
        await self._learn_homes()
        await self.compare_usage()

    async def _learn_homes(self):
        places = self.model.places()
        for node in self.model.nodes.values():
            if not getattr(node, "is_home_unknown", False):
                continue
            node.is_home_unknown = False
            pairs = await read_all(self.world.engine, records.link_prefix(node.ident))
            (node.home,) = places[node.ident] - {records.link_place(key) for key, _ in pairs}

    async def compare_usage(self):
        """Every directory's numbers and limits; all homes are known,
        or nothing would be compared until the next collection.
        """
        unknown = [
            n.ident for n in self.model.nodes.values() if getattr(n, "is_home_unknown", False)
        ]
        assert not unknown, unknown
        for directory in self.model.directories():
            found = (await self.world.user().usage(directory.ident)).directory
            usage = found.usage.bytes, found.usage.files, found.usage.directories
            expected = self.model.usage(directory)
            assert usage == expected, (hex(directory.ident), usage, expected)
            limits = found.quota.bytes_max, found.quota.inodes_max
            assert limits == getattr(directory, "limits", NO_LIMITS), hex(directory.ident)


if __name__ == "__main__":
    sys.exit(main("python -m tests.meta.wide_quota", QuotaCompany))
