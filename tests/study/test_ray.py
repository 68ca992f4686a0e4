"""The same plan through a real Ray: same table, a killed worker loses its job alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweeps import plan, sweep_command, without_times

from recollect.cli import main

pytest.importorskip("ray")


def workers() -> list[int]:
    """Processes that carry out a task now, by the name that Ray gives them."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and b"ray::_attempt_in" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for workers in /proc")
def test_ray_with_a_killed_worker_gives_the_same_table(tmp_path: Path) -> None:
    path, here, cluster = plan(tmp_path), tmp_path / "here", tmp_path / "cluster"
    subprocess.run(sweep_command(path, here), check=True, capture_output=True)
    process = subprocess.Popen(
        sweep_command(path, cluster, "--engine", "ray", "--workers", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    killed = 0
    while process.poll() is None and not killed:
        for worker in workers()[:1]:
            os.kill(worker, signal.SIGKILL)
            killed += 1
        time.sleep(0.02)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output.decode()
    assert killed == 1
    for folder in (here, cluster):
        assert main(["export", str(folder), "--out", str(folder) + ".csv"]) == 0
    assert without_times(tmp_path / "here.csv") == without_times(tmp_path / "cluster.csv")
    assert len(without_times(tmp_path / "here.csv")) == 20
