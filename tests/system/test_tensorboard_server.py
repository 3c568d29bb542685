"""TensorBoard during a training: its link, its end, and the notice if it does not start."""

import re
import subprocess
import sys

import psutil

from ps_cluster.installation import environment_with_package
from ps_cluster.system.tensorboard_server import TensorBoardServer
from tests.helpers.processes import wait_until

ANSWERS = """
import http.server, sys
looks = []
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        looks.append(self.path)
        self.send_response(200 if len(looks) > 2 else 503)
        self.end_headers()
port = int(sys.argv[sys.argv.index('--port') + 1])
http.server.HTTPServer(('127.0.0.1', port), Page).serve_forever()
"""


def server(tmp_path, lines, program, **options):
    argv = (sys.executable, "-c", program)
    return TensorBoardServer(tmp_path / "logdir", tmp_path / "log", lines.append, argv=argv, **options)


def of_this_test(tmp_path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if str(tmp_path) in " ".join(process.info["cmdline"] or ()) and process.info["status"] != "zombie":
            found.append(process)
    return found


def test_link_is_told_once_it_answers_and_nothing_is_left_after_the_block(tmp_path):
    """It answers at the third look; before, it is there, but has an error."""
    lines = []
    with server(tmp_path, lines, ANSWERS):
        assert of_this_test(tmp_path)
        wait_until(lambda: lines)
    assert len(lines) == 1 and lines[0].startswith("TensorBoard: http://127.0.0.1:")
    answers = re.findall(r'" (\d+) -$', (tmp_path / "log").read_text(), re.MULTILINE)
    assert answers[:3] == ["503", "503", "200"]
    assert not of_this_test(tmp_path)


def test_program_that_fails_is_told_with_its_log_and_the_block_goes_on(tmp_path):
    lines = []
    with server(tmp_path, lines, "raise SystemExit(3)"):
        wait_until(lambda: lines)
    assert lines == [f"TensorBoard ended with exit code 3; training continues (log: {tmp_path / 'log'})"]


def test_program_that_never_answers_is_told_once_after_the_patience(tmp_path):
    lines = []
    with server(tmp_path, lines, "import time; time.sleep(60)", patience_s=0.3):
        wait_until(lambda: lines)
    assert lines == [f"TensorBoard does not answer after 0.3 s; training continues (log: {tmp_path / 'log'})"]
    assert not of_this_test(tmp_path)


def test_command_that_is_missing_is_one_notice(tmp_path):
    lines = []
    with TensorBoardServer(tmp_path, tmp_path / "log", lines.append, argv=(str(tmp_path / "missing"),)):
        pass
    assert len(lines) == 1 and lines[0].startswith("TensorBoard can't be started: ")


def test_tensorboard_ends_with_a_launcher_that_is_killed(tmp_path):
    code = (
        "import pathlib, sys, time\n"
        "from ps_cluster.system.tensorboard_server import TensorBoardServer\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "with TensorBoardServer(folder, folder / 'log', lambda line: print(line, flush=True)):\n"
        "    time.sleep(120)\n"
    )
    env = environment_with_package({})
    launcher = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert "http://127.0.0.1:" in launcher.stdout.readline()
        assert len(of_this_test(tmp_path)) == 2
    finally:
        launcher.kill()
        launcher.communicate()
    wait_until(lambda: not of_this_test(tmp_path))
