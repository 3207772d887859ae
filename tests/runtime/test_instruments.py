"""trio's instruments are told what they are told without our table,
by a loop that asks it without a call.
"""

import trio
from trio.abc import Instrument

from fs.runtime import readiness
from fs.runtime.instruments import PlainInstruments
from fs.runtime.readiness import RUN_CONTEXT


class Notes(Instrument):
    def __init__(self):
        self.told = []

    def task_scheduled(self, _task):
        self.told.append("scheduled")

    def before_task_step(self, _task):
        self.told.append("before")

    def after_task_step(self, _task):
        self.told.append("after")

    def before_io_wait(self, _timeout):
        self.told.append("wait")

    def after_io_wait(self, _timeout):
        self.told.append("waited")


class Failing(Instrument):
    def before_task_step(self, _task):
        raise ValueError("of an instrument")


async def some_turns():
    for _ in range(3):
        await trio.lowlevel.checkpoint()


def told(*, is_plain):
    notes = Notes()

    async def main():
        runner = RUN_CONTEXT.runner
        if is_plain:
            runner.instruments = PlainInstruments(runner.instruments.data)
        trio.lowlevel.add_instrument(notes)
        trio.lowlevel.add_instrument(notes)
        await some_turns()
        trio.lowlevel.remove_instrument(notes)
        count = len(notes.told)
        await some_turns()
        assert len(notes.told) == count

    trio.run(main)
    return notes.told


def test_they_are_told_of_the_same_with_it_and_without():
    everything = {"scheduled", "before", "after", "wait", "waited"}
    assert set(told(is_plain=True)) == set(told(is_plain=False)) == everything


def test_those_of_the_run_are_told_on_and_end():
    notes = Notes()

    async def main():
        await some_turns()
        readiness.install()
        assert type(RUN_CONTEXT.runner.instruments) is PlainInstruments
        count = len(notes.told)
        await some_turns()
        assert len(notes.told) > count
        trio.lowlevel.remove_instrument(notes)
        count = len(notes.told)
        await some_turns()
        assert len(notes.told) == count

    trio.run(main, instruments=[notes])


def test_one_that_fails_is_told_no_more(caplog):
    async def main():
        readiness.install()
        trio.lowlevel.add_instrument(Failing())
        await some_turns()
        assert "before_task_step" not in RUN_CONTEXT.runner.instruments

    trio.run(main)
    assert "of an instrument" in caplog.text
