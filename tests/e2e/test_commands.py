"""The commands as a user types them, with real boxes."""

import http.server
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

TRIALYARD = [sys.executable, "-m", "trialyard.cli.main"]


class QuietHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


def trialyard(*argv: str, code: int = 0) -> str:
    done = subprocess.run([*TRIALYARD, *argv], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tasks")
    trialyard("tasks", "generate", "list-functions", str(root), "--count", "1")
    return root / "train-000000"


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_doctor_finds_this_machine_safe() -> None:
    [finding] = json_lines(trialyard("doctor", "--json"))
    assert finding["safe"] is True


def test_a_sandbox_runs_a_command_and_reports_every_field() -> None:
    [result] = json_lines(
        trialyard("sandbox", "run", "--json", "--", "python3", "-c", "print(6 * 7)")
    )
    assert result["status"] == "exited"
    assert result["exit_code"] == 0
    assert result["stdout"] == "42\n"
    assert set(result["usage"]) == {
        "wall_s", "cpu_s", "memory_peak_bytes", "pids_peak", "read_bytes", "written_bytes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--", "sh", "-c", "exit 7"], 7),
        (["--", "sh", "-c", "kill -9 $$"], 137),
        (["--timeout", "0.5", "--", "sleep", "60"], 124),
    ],
)
def test_without_json_the_exit_code_is_the_commands(argv: list[str], code: int) -> None:
    trialyard("sandbox", "run", *argv, code=code)


@pytest.mark.parametrize("backend", ["namespace", "oci"])
def test_a_command_runs_as_whom_its_flag_names(backend: str, tmp_path: Path) -> None:
    script = "id -u; chown 5:5 /work 2>/dev/null && echo chowned; cp /etc/hostname /results/name"
    for user, said in (("user", "1000\n"), ("root", "0\nchowned\n"), ("33", "33\n")):
        done = trialyard(
            "sandbox", "run", "--user", user, "--download", f"/results:{tmp_path}/{user}",
            "--backend", backend, "--allow-vulnerable-runtime", "--", "sh", "-c", script,
        )  # fmt: skip
        assert done == said
        assert (tmp_path / user / "name").read_text() == "box\n"


def test_a_sandbox_reaches_what_its_flag_names_and_no_more() -> None:
    code = (
        "import http.client as h, sys\n"
        "for port in sys.argv[1:]:\n"
        "    c = h.HTTPConnection('127.0.0.1', 3128)\n"
        "    c.request('GET', f'http://127.0.0.1:{port}/')\n"
        "    print(c.getresponse().status)"
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), QuietHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        said = trialyard(
            "sandbox", "run", "--network", f"allow-list:127.0.0.1:{port}", "--bandwidth", "1M",
            "--", "python3", "-c", code, str(port), str(port - 1),
        )  # fmt: skip
        server.shutdown()
    assert said == "204\n403\n"


def test_an_oci_runtime_with_known_escapes_is_refused_unless_allowed(tmp_path: Path) -> None:
    old = tmp_path / "runc"
    old.write_text("#!/bin/sh\necho runc version 1.1.5\n")
    old.chmod(0o755)
    run = ["sandbox", "run", "--backend", "oci"]
    trialyard(*run, "--runtime", str(old), "--", "true", code=2)
    assert trialyard(*run, "--allow-vulnerable-runtime", "--", "id", "-u") == "1000\n"


def test_files_go_in_and_come_out(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("hello")
    trialyard(
        "sandbox", "run", "--upload", f"{tmp_path}/in.txt:/work/in.txt",
        "--download", f"/out:{tmp_path}/out", "--", "sh", "-c", "cat in.txt in.txt > /out/twice",
    )  # fmt: skip
    assert (tmp_path / "out" / "twice").read_text() == "hellohello"


def test_a_user_that_the_box_does_not_know_is_refused() -> None:
    trialyard("sandbox", "run", "--user", "nosuch", "--", "true", code=2)


def test_what_will_come_out_has_a_place_before_the_command_starts(tmp_path: Path) -> None:
    trialyard(
        "sandbox", "run", "--download", f"/results/deep:{tmp_path}/folder",
        "--download", f"/made/one.txt:{tmp_path}/one.txt", "--",
        "sh", "-c", "echo a > /results/deep/a && echo b > /made/one.txt",
    )  # fmt: skip
    assert (tmp_path / "folder" / "a").read_text() == "a\n"
    assert (tmp_path / "one.txt").read_text() == "b\n"


def test_the_result_stands_when_nothing_can_come_out(tmp_path: Path) -> None:
    [result] = json_lines(
        trialyard(
            "sandbox",
            "run",
            "--json",
            "--memory",
            "64M",
            "--download",
            f"/out:{tmp_path}/out",
            "--",
            "python3",
            "-c",
            "x = b'x' * (1 << 30)",
        )
    )
    assert result["status"] == "oom"
    assert "gone" in result["downloads"][0]["error"]


def test_an_upload_to_where_nobody_writes_names_the_flag(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("x")
    trialyard("sandbox", "run", "--upload", f"{tmp_path}/in.txt:/usr/x", "--", "true", code=2)


def test_the_reference_is_worth_one_and_nothing_is_worth_less(task: Path) -> None:
    [gold] = json_lines(trialyard("grade", str(task), "--solution", "gold", "--json"))
    assert (gold["status"], gold["reward"], gold["passed"]) == ("graded", 1.0, True)
    assert gold["trust"] == "separated"
    [nothing] = json_lines(trialyard("grade", str(task), "--solution", "none", "--json"))
    assert nothing["reward"] < 0.5


def test_a_reference_rollout_is_stored_with_reward_one(task: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    [record] = json_lines(
        trialyard("rollout", str(task), "--policy", "reference", "--out", str(out), "--json")
    )
    assert record["reward"] == 1.0
    assert record["stop"] == "solved"
    program = (
        "import sys; from pathlib import Path;"
        "from trialyard.run.wiring.store import open_store\n"
        "with open_store(Path(sys.argv[1])) as store:"
        " print(store.get(sys.argv[2]).turns[0].output)"
    )
    stored = subprocess.run(
        [sys.executable, "-c", program, str(out), str(record["trajectory"])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert stored.stdout.strip()


def test_a_noop_rollout_fails_the_task(task: Path, tmp_path: Path) -> None:
    [record] = json_lines(
        trialyard("rollout", str(task), "--policy", "noop", "--out", str(tmp_path), "--json")
    )
    assert record["verdict"]["passed"] is False


def test_without_bubblewrap_nothing_runs_and_the_cure_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [*TRIALYARD, "sandbox", "run", "--", "true"],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
        timeout=60,
    )
    assert done.returncode == 2
    assert "bubblewrap" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
