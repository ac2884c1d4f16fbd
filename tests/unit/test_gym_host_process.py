"""Output, memory counters, processes: what is around Gym in the host's container."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nhx_gym_operator.api.wire.endpoints import HOST_LOG_LIMIT_BYTES
from nhx_gym_operator.gym_host import facts
from nhx_gym_operator.gym_host.evaluator_client import EvaluatorError
from nhx_gym_operator.gym_host.launcher import failure_message
from nhx_gym_operator.gym_host.output import LINE_LIMIT, Kept, Output, secrets_in
from support import stuck

SOURCE = str(Path(facts.__file__).parents[2])


def run(script: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True, timeout=60
    )


def test_what_children_print_reaches_log_and_tail_with_secrets_masked() -> None:
    done = run("""
        import subprocess, sys
        from nhx_gym_operator.gym_host.output import Output
        output = Output(["very-secret-key", "two\\nline-secret"])
        output.install()
        print("mine very-secret-key")
        subprocess.run(["sh", "-c", "echo child very-secret-key line-secret >&2; printf unfinished"])
        output.close()
        print(output.tail())
    """)
    assert done.stdout.splitlines()[:2] == ["mine ***", "child *** ***"]
    assert "['mine ***', 'child *** ***', 'unfinished']" in done.stdout
    assert "secret" not in done.stdout


def test_a_secret_that_two_writes_split_is_masked() -> None:
    done = run("""
        import os, time
        from nhx_gym_operator.gym_host.output import Output
        output = Output(["very-secret-key"])
        output.install()
        os.write(1, b"a very-sec"); time.sleep(0.2); os.write(1, b"ret-key b\\n")
        output.close()
    """)
    assert done.stdout == "a *** b\n"


def test_the_tail_is_bounded_in_lines_and_width() -> None:
    done = run("""
        from nhx_gym_operator.gym_host.output import Output
        output = Output([])
        output.install()
        for number in range(500):
            print(number, "x" * 5000)
        output.close()
        print(len(output.tail()), max(map(len, output.tail())), output.tail()[-1].split()[0])
    """)
    assert done.stdout.splitlines()[-1] == f"80 {LINE_LIMIT} 499"


def test_all_output_is_kept_masked_and_of_too_much_the_end(tmp_path: Path) -> None:
    done = run(f"""
        from pathlib import Path
        from nhx_gym_operator.gym_host.output import Kept, Output
        kept = Kept(Path({str(tmp_path)!r}, "whole.log"))
        output = Output(["very-secret-key"], kept)
        output.install()
        print("first very-secret-key")
        for number in range(20000):
            print(number)
        output.close()
        whole = b"".join(kept.chunks()).decode().split()
        print(whole[:3], whole[-1], len(whole))
    """)
    assert done.stdout.splitlines()[-1] == "['first', '***', '0'] 19999 20002", done.stderr
    small = Kept(tmp_path / "small.log", limit_bytes=1000)
    for number in range(10_000):
        small.write(b"%d\n" % number)
    lines = b"".join(small.chunks()).decode().splitlines()
    lost = re.fullmatch(r"gym-host: the first (\d+) bytes are left out", lines[0])
    assert lost and lines[-1] == "9999" and len(lines) < 300
    assert int(lost[1]) + sum(len(line) + 1 for line in lines[1:]) == sum(len(str(n)) + 1 for n in range(10_000))


def test_output_without_a_lines_end_is_passed_on_in_lines_of_a_mebibyte() -> None:
    done = run("""
        import os
        from nhx_gym_operator.gym_host.output import Output
        output = Output([])
        output.install()
        for _ in range(5 * 1024):
            os.write(1, b"x" * 1024)
        output.close()
    """)
    lines = done.stdout.splitlines()
    assert sum(map(len, lines)) == 5 << 20
    # 64 KiB are read in one go, and a line is passed on once there is more than a mebibyte of it.
    assert max(map(len, lines)) <= (1 << 20) + (1 << 16)


def test_of_a_flood_so_much_is_kept_as_the_evaluator_takes(tmp_path: Path) -> None:
    kept, line = Kept(tmp_path / "flood.log"), b"x" * (1 << 20) + b"\n"
    for _ in range(HOST_LOG_LIMIT_BYTES // len(line) + 20):
        kept.write(line)
    sent = sum(map(len, kept.chunks()))
    assert HOST_LOG_LIMIT_BYTES // 2 < sent <= HOST_LOG_LIMIT_BYTES


def test_secrets_are_found_by_name_and_short_values_are_left_alone() -> None:
    environment = {"API_KEY": "12345678", "HOME": "/home/somebody", "PASS": "short", "PLAIN": "a-named-secret"}
    mask = Output(secrets_in(environment, ["PLAIN"])).mask
    assert mask("12345678 of /home/somebody, short, a-named-secret") == "*** of /home/somebody, short, ***"


def test_gym_gets_values_of_env_secrets_without_white_space_around_them_and_the_host_says_which() -> None:
    done = run("""
        import os
        from types import SimpleNamespace
        from nhx_gym_operator.gym_host import launcher
        class Seen:
            def __init__(self, plan, token, output, trimmed):
                self.trimmed = trimmed
            async def run(self):
                print(self.trimmed, [os.environ["TOOL"]], flush=True)
                return 0
        launcher.Launcher, launcher.Kept = Seen, lambda path: None
        launcher.read_secret = lambda file, field: SimpleNamespace(text="a-hosts-token")
        os.environ["TOOL"] = " [x]\\r\\n"
        target = SimpleNamespace(env_vars={}, env_secret_names=["TOOL", "CLEAN"])
        launcher.main(SimpleNamespace(target=target))
    """)
    assert done.stdout == "['TOOL'] ['[x]']\n", done.stderr


def test_processes_that_detached_themselves_are_ended_and_reaped() -> None:
    done = run("""
        import os, subprocess, sys, time
        from nhx_gym_operator.gym_host import processes
        processes.adopt_orphans()
        sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
        fork = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeper!r}], start_new_session=True)"
        subprocess.run([sys.executable, "-c", fork], stdout=subprocess.DEVNULL)
        subprocess.Popen(["sleep", "60"])
        time.sleep(0.5)
        before = processes.descendants()
        started = time.monotonic()
        killed = processes.end_descendants(grace_s=1.0)
        print(len(before), killed, processes.descendants(), time.monotonic() - started < 5)
        print([pid for pid in before if os.path.exists(f"/proc/{pid}")])
    """)
    assert done.stdout.splitlines() == ["2 1 [] True", "[]"], done.stderr


@pytest.mark.parametrize(
    "content", ["low 0\nhigh 0\noom 3\noom_kill 2\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"]
)
def test_kills_for_lack_of_memory_are_read_from_both_kinds_of_cgroup(tmp_path: Path, content: str) -> None:
    counters = tmp_path / "memory.events"
    counters.write_text(content)
    assert facts.out_of_memory_kills((tmp_path / "absent", counters)) == 2


def test_no_counter_is_no_kill(tmp_path: Path) -> None:
    assert facts.out_of_memory_kills((tmp_path / "absent",)) == 0


def test_a_failure_says_that_memory_ran_out_and_what_to_raise() -> None:
    message = failure_message(RuntimeError("Process `mcqa` finished unexpectedly!"), 2)
    assert message.startswith("a process of this pod was killed for lack of memory 2 times; raise resources.gymHost")
    assert "finished unexpectedly" in message
    stuck.assert_said("A child of the gym host runs out of memory", message)


def test_our_own_errors_are_shown_without_their_type() -> None:
    assert failure_message(EvaluatorError("the evaluator refused"), 0) == "the evaluator refused"
    assert failure_message(KeyError("x"), 0) == "Gym could not run: KeyError: 'x'"


def test_the_host_names_its_kernel_and_versions() -> None:
    assert os.uname().version in facts.kernel()
    assert facts.versions()["python"] == sys.version.split()[0]
