"""Runs scripts in forks of a process that has imported modules: MindSpore takes longer to import than a test to train.

    python warm.py serve ADDRESS module ...          until its standard input is closed; prints a line when it listens
    python warm.py run ADDRESS script.py argument    as `python script.py argument`

What is run has the files, environment and directory of who asked, hears SIGINT if he does, gets his SIGTERM and SIGINT,
ends if he is killed, and he as it does.
The server has one thread, and has done nothing with what it imported.
"""

# What is imported here is imported by whoever asks, some thousand times.
import marshal
import os
import signal
import socket
import sys

_STANDARD = (0, 1, 2)
_LENGTH = 8
_STATUS = 4
_PASSED_ON = (signal.SIGTERM, signal.SIGINT)


def run(address: str, command: list[str]) -> None:
    """Have a script run, and end as it ends."""
    asked = {"command": command, "environment": dict(os.environ), "directory": os.getcwd()}  # noqa: PTH109 — see above
    asked["hears"] = signal.getsignal(signal.SIGINT) != signal.SIG_IGN  # a job in the background of a shell ignores it
    request = marshal.dumps(asked)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [len(request).to_bytes(_LENGTH, "big")], list(_STANDARD))
        server.sendall(request)
        for signum in _PASSED_ON:
            signal.signal(signum, lambda got, _: server.send(bytes([got])))
        for descriptor in _STANDARD:  # whoever reads what it prints waits for all who could
            os.close(descriptor)
        status = server.recv(_STATUS, socket.MSG_WAITALL)
    code = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if code != -signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def serve(address: str, modules: list[str]) -> list[str]:
    """Wait for requests; returns in the fork that is to run one, with the script and its arguments.

    The modules are imported at the first one.
    """
    import gc
    import select
    from importlib import import_module

    del sys.path[0]  # there is a directory "mindspore" beside this file
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([sys.stdin, listener], [], [])
            if sys.stdin in ready:
                sys.exit()
            connection, _ = listener.accept()
            while modules:
                import_module(modules.pop(0))
            gc.freeze()  # else the first collection in a fork copies all of it
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return _supervise(connection)


def _supervise(connection: socket.socket) -> list[str]:
    """Run what is asked for in a fork, in which alone this returns."""
    import select
    import time

    size, files, _, _ = socket.recv_fds(connection, _LENGTH, len(_STANDARD))
    request = marshal.loads(connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))  # noqa: S302 — from `run`
    job = os.fork()
    if job == 0:
        connection.close()
        for descriptor, own in zip(files, _STANDARD, strict=True):
            os.dup2(descriptor, own)
            os.close(descriptor)
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        time.tzset()
        signal.signal(signal.SIGINT, signal.default_int_handler if request["hears"] else signal.SIG_IGN)
        command: list[str] = request["command"]
        return command
    for descriptor in (*files, *_STANDARD):
        os.close(descriptor)
    ended = os.pidfd_open(job)
    while connection in select.select([ended, connection], [], [])[0]:
        passed_on = connection.recv(1)
        os.kill(job, passed_on[0] if passed_on else signal.SIGKILL)
        if not passed_on:
            break
    _, status = os.waitpid(job, 0)
    connection.sendall(status.to_bytes(_STATUS, "big"))
    os._exit(0)


def become(command: list[str]) -> None:
    """Do what Python does with a script and its arguments."""
    from pathlib import Path
    from types import ModuleType

    script = Path(command[0])
    # With PYTHONUNBUFFERED, as in CI, print() writes piece by piece, and a thread's log line comes in between.
    sys.stdout.reconfigure(line_buffering=True, write_through=False)
    sys.argv = command
    sys.path.insert(0, str(script.parent))
    main = ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    code: object = None
    try:
        exec(compile(script.read_bytes(), script, "exec"), main.__dict__)  # noqa: S102 — as Python does
    except SystemExit as left:
        code = left.code
    except BaseException as error:  # noqa: BLE001 — as Python does
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    _end(code)


def _end(code: object) -> None:
    """End as Python does, but free no memory: in a fork, that copies first all that was imported."""
    import atexit
    import threading

    threading._shutdown()
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(sys.argv[2], sys.argv[3:])
    else:
        become(serve(sys.argv[2], sys.argv[3:]))
