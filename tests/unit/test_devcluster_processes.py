import os
import subprocess
import sys

from devcluster import processes
from devcluster.settings import OWNER_VARIABLE


def test_start_time_is_read_behind_a_hostile_command_name() -> None:
    after_name = ["S", *(str(number) for number in range(4, 60))]  # the state is field 3, the start time field 22
    assert processes.parse_start(f"42 (a) b) (c) {' '.join(after_name)}") == 22


def test_a_corpse_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    who = processes.identify(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.start_of(child.pid) is None
    assert who is None or not who.is_alive()
    child.wait()


def test_a_process_id_that_was_given_away_again_is_not_the_one_recorded() -> None:
    me = processes.identify(os.getpid())
    assert me.is_alive()
    assert not processes.Identity(me.pid, me.started - 1, me.boot).is_alive()
    assert not processes.Identity(me.pid, me.started, "another boot").is_alive()


def test_an_unrecorded_process_is_known_by_its_environment_and_ends(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("NHX_DEVCLUSTER_STATE", str(tmp_path))
    mark = {**os.environ, OWNER_VARIABLE: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=mark) as ours:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as foreign:
            found = processes.marked()
            assert [who.pid for who in found] == [ours.pid]
            processes.end(found, seconds=5)
            assert foreign.poll() is None
            foreign.kill()
        assert ours.wait() != 0


def test_a_changed_configuration_is_another_process(tmp_path) -> None:
    def daemon(argument: str, text: str) -> processes.Daemon:
        return processes.Daemon("d", ("/bin/d", argument), lambda: True, {tmp_path / "config": text})

    digests = {daemon("--a", "x").digest(), daemon("--b", "x").digest(), daemon("--a", "y").digest()}
    assert len(digests) == 3
    assert daemon("--a", "x").digest() in digests
