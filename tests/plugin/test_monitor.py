"""The monitor outlives what nobody foresaw, and sees to the files of claims meanwhile."""

from __future__ import annotations

from dataclasses import replace

from polling import until
from tesela.plugin.monitor import Monitor
from tesela.plugin.recover import Recovery


class Odd:
    """A port that raises what is no error of ours at the first `times` calls of `method`, then works."""

    def __init__(self, inner, method, times=1):
        self._inner, self._method, self._left = inner, method, times

    def __getattr__(self, name):
        if name == self._method and self._left:
            self._left -= 1
            raise ValueError("nobody foresaw this")
        return getattr(self._inner, name)


def test_an_unforeseen_error_does_not_end_the_looks(world, ref):
    node = replace(world.node, records=Odd(world.node.records, "list", times=3))
    monitor = Monitor(node, Recovery(node), lambda _reason: None, files_period_s=0.01, machine_period_s=0.01)
    world.cdi_path(ref).unlink()

    monitor.start()

    assert until(world.cdi_path(ref).exists)
    assert monitor.stop(10)


def test_an_unforeseen_error_is_told_with_its_traceback(world, caplog):
    node = replace(world.node, records=Odd(world.node.records, "list", times=2))
    monitor = Monitor(node, Recovery(node), lambda _reason: None, files_period_s=0.01)

    monitor.start()

    assert until(lambda: "nobody foresaw this" in caplog.text)
    assert monitor.stop(10)


def test_an_unforeseen_error_with_one_claim_leaves_the_next_one_of_its_gpu_to_be_recovered(world, ref):
    other = world.claim("b", world.partition(0, "1g.5gb", 0))
    world.serve(other)
    for one in (ref, other):
        world.cdi_path(one).unlink()
    first, second = sorted((ref, other), key=lambda one: one.uid)

    world.node = world.build()
    world.node.lookout.refresh()
    world.node = replace(world.node, workload=Odd(world.node.workload, "write"))
    world.recover()

    assert (world.cdi_path(first).exists(), world.cdi_path(second).exists()) == (False, True)
    world.start()


def test_files_of_a_lost_claim_are_not_told_to_be_restored(world, ref, caplog):
    """Its partition went with a reset; recovering it is another's work, which may be under way."""
    world.reset(0)
    world.node.lookout.refresh()
    world.cdi_path(ref).unlink()

    Monitor(world.node, Recovery(world.node), lambda _reason: None).restore_files()

    assert "written again" not in caplog.text
    world.start()
