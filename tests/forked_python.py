"""An interpreter whose imports are done: each start forks a process that has loaded torch and transformers already.

A model process of the small study imports for nine seconds and works for two. `interpreter()` gives an executable for
`PIPELINE_GPU_PYTHON`; it hands its arguments, folder, environment and streams to a server that forks. Only libraries are loaded
beforehand, nothing of the project, so every copy of the project runs its own code. Slurm's and Determined's studies start real ones.
"""

import array
import atexit
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

CLIENT = """\
#!{python} -SE
import array, json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
told = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
streams = array.array("i", [0, 1, 2])
server.sendmsg([len(told).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
server.sendall(told)
answers = server.makefile("r")
process = int(answers.readline())
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: os.kill(process, number))
code = int(answers.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@cache
def interpreter() -> str:
    """Start the server; the executable's path. Both are gone when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="forked-python-"))
    client, path = folder / "python", folder / "socket"
    client.write_text(CLIENT.format(python=sys.executable, path=str(path)), encoding="utf-8")
    client.chmod(0o755)
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, __file__, str(path)]
    server = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | one_thread,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.kill)
    return str(client)


def serve(path: str) -> None:
    """Import, then fork one process for each that connects, until stdin closes."""
    import peft  # noqa: F401 - each of them is imported for the processes to come
    import torch
    import trl.trainer.grpo_trainer  # noqa: F401
    from transformers.models.llama import modeling_llama  # noqa: F401
    from transformers.models.qwen3 import modeling_qwen3  # noqa: F401

    assert threading.active_count() == 1, (
        "a process of several threads must not fork"
    )  # jemalloc's own minds forks itself
    assert not torch.cuda.is_initialized()
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as waiting:
        listening.bind(path)
        listening.listen()
        print("ready", flush=True)
        waiting.register(listening, selectors.EVENT_READ)
        waiting.register(0, selectors.EVENT_READ)
        running: dict[int, tuple[socket.socket, int]] = {}
        while True:
            for key, _ in waiting.select():
                if key.fd == 0:
                    return
                if key.fileobj is listening:
                    connection, _ = listening.accept()
                    process = _start(connection, listening)
                    ended = os.pidfd_open(process)
                    running[ended] = (connection, process)
                    waiting.register(ended, selectors.EVENT_READ)
                    waiting.register(connection, selectors.EVENT_READ, process)
                elif (
                    key.data is not None
                ):  # the client is gone, killed perhaps; what it started goes as well
                    os.kill(key.data, signal.SIGKILL)
                    waiting.unregister(key.fileobj)
                elif key.fd in running:
                    connection, process = running.pop(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                    waiting.unregister(key.fd)
                    os.close(key.fd)
                    if connection in waiting.get_map():
                        waiting.unregister(connection)
                        connection.sendall(f"{code}\n".encode())
                    connection.close()


def _start(connection: socket.socket, listening: socket.socket) -> int:
    streams = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * streams.itemsize))
    for _, _, data in ancillary:
        streams.frombytes(data)
    told = connection.makefile("rb").read(int.from_bytes(head, "big"))
    process = os.fork()
    if process:
        for stream in streams:
            os.close(stream)
        connection.sendall(f"{process}\n".encode())
        return process
    listening.close()
    connection.close()
    _run(list(streams), *json.loads(told))
    raise AssertionError


def _run(
    streams: list[int], arguments: list[str], folder: str, environment: dict[str, str]
) -> None:
    """What `python ARGUMENTS` would do; never returns."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    code: object = 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as an interpreter: the trace, and exit status 1
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(sys.argv[1])
