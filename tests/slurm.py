"""As much of Slurm as a batch script calls, in Python: `sbatch`, `srun`, `scontrol` and `scancel`, over machines.

The programs on the PATH run this file: each sends its words to `Slurm`, in the process of a test, by a socket in
the folder that all machines see, and prints the answer. Written from Slurm's manual pages; it refuses unknown options.
"""

import itertools
import json
import os
import signal
import socket
import socketserver
import sys
import threading
from pathlib import Path

import psutil

NUMBER = 41
PROGRAMS = ("sbatch", "srun", "scontrol", "scancel")
KNOWN = {
    *("job-name", "nodes", "ntasks-per-node", "gpus-per-node", "exclusive", "mem", "time", "output", "open-mode"),
    *("requeue", "signal"),
}
"""Options of sbatch that a script may have."""


def call(program, *words):
    """Be one of the programs: send its words, pass SIGTERM on, print the answer; return the status."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["SLURM_SOCKET"])
        signal.signal(signal.SIGTERM, lambda *_: connection.sendall(b"TERM\n"))
        told = {"program": program, "words": words, "env": dict(os.environ), "cwd": os.getcwd()}
        connection.sendall(json.dumps(told).encode() + b"\n")
        answer = json.loads(connection.makefile().readline())
    print(answer["said"], end="")
    return answer["status"]


def options(words):
    """Return long options, and the words behind them."""
    found, rest = {}, list(words)
    while rest and rest[0].startswith("--"):
        name, given, value = rest.pop(0)[2:].partition("=")
        if not given and rest and name not in ("exclusive", "requeue"):
            value = rest.pop(0)
        assert name in KNOWN, f"sbatch: unrecognized option '--{name}'"
        found[name] = value
    return found, rest


def family(process):
    """Return what runs in a command on a machine, without `nsenter` before it."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def send(number, processes):
    for each in processes:
        try:
            each.send_signal(number)
        except psutil.NoSuchProcess:
            pass


class Slurm:
    """One job on all machines; the first one runs the batch script."""

    def __init__(self, machines, shared, seen, cpus=1):
        self.machines, self.shared, self.seen, self.cpus = machines, shared, seen, cpus
        self.batch, self.tasks, self.statuses, self.requeued, self.script = None, [], [], 0, None
        self.over = threading.Event()
        (shared / "bin").mkdir()
        for name in PROGRAMS:
            program = shared / "bin" / name
            program.write_text(f'#!/bin/bash\nexec {sys.executable} {__file__} {name} "$@"\n')
            program.chmod(0o755)
        slurm = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                told = json.loads(self.rfile.readline())
                status, said = getattr(slurm, told["program"])(told, self.rfile)
                self.wfile.write(json.dumps({"status": status, "said": said}).encode() + b"\n")

        self.server = socketserver.ThreadingUnixStreamServer(str(shared / "socket"), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def sbatch(self, told, _):
        """Take in a job, whose script is kept as it is now, and start it."""
        given, (script, *words) = options(told["words"])
        text = Path(told["cwd"], script).read_text()
        head = list(itertools.takewhile(lambda line: line.startswith("#"), text.splitlines()))
        written = [line.split(maxsplit=1)[1] for line in head if line.startswith("#SBATCH")]
        assert len(written) == text.count("\n#SBATCH"), "Slurm reads no options behind the first command"
        self.options = options(written)[0] | given
        assert int(self.options["nodes"]) == len(self.machines)
        (self.shared / "script").write_text(text)
        self.script = ["bash", f"{self.seen}/script", *words]
        self.env = {name: value.replace(str(self.shared), self.seen) for name, value in told["env"].items()}
        threading.Thread(target=self._run, daemon=True).start()
        return 0, f"Submitted batch job {NUMBER}\n"

    def _run(self):
        """Run the job until nobody asks to run it again."""
        first, names = self.machines[0], ",".join(machine.name for machine in self.machines)
        about = {
            "SLURM_JOB_ID": str(NUMBER),
            "SLURM_JOB_NAME": self.options["job-name"],
            "SLURM_JOB_NODELIST": names,
            "SLURM_JOB_NUM_NODES": str(len(self.machines)),
            "SLURM_CPUS_ON_NODE": str(self.cpus),
        }
        while len(self.statuses) <= self.requeued:
            with self.log().open("a") as log:
                env = self.env | about | {"SLURM_RESTART_COUNT": str(self.requeued)}
                self.batch = first.start(self.script, env, self.seen, stdout=log, stderr=log)
                status = self.batch.wait()
            send(signal.SIGKILL, [each for task in self.tasks for each in family(task)])
            self.statuses.append(status)
        self.over.set()

    def log(self):
        name = self.options["output"].replace("%x", self.options["job-name"]).replace("%j", str(NUMBER))
        return self.shared / name

    def srun(self, told, more):
        """Run a command on each machine; a signal goes to all its processes, as with cgroups."""
        words = told["words"]
        output = next(word.partition("=")[2] for word in words if word.startswith("--output="))
        command = [word for word in words if not word.startswith("--")]
        with (self.shared / output).open("a") as log:
            self.tasks = [
                machine.start(command, told["env"] | {"SLURM_NODEID": str(place)}, told["cwd"], stdout=log, stderr=log)
                for place, machine in enumerate(self.machines)
            ]

        def pass_on():
            for _ in more:
                self.end_tasks()

        threading.Thread(target=pass_on, daemon=True).start()
        return max(abs(task.wait()) for task in self.tasks), ""

    def end_tasks(self):
        send(signal.SIGTERM, [each for task in self.tasks for each in family(task)])

    def scontrol(self, told, _):
        if told["words"][:2] == ["show", "hostnames"]:
            return 0, told["words"][2].replace(",", "\n") + "\n"
        assert told["words"] == ["requeue", str(NUMBER)]
        self.requeued += 1
        return 0, ""

    def scancel(self, told, _):
        """End the job: SIGTERM to all of it."""
        assert told["words"] == [str(NUMBER)]
        self.end_tasks()
        send(signal.SIGTERM, family(self.batch)[:1])
        return 0, ""

    def warn(self):
        """Send the job's own signal, as `--signal` says: to the batch script (B) alone."""
        who, name = self.options["signal"].partition("@")[0].split(":")
        assert who == "B"
        send(signal.Signals[f"SIG{name}"], family(self.batch)[:1])

    def close(self):
        self.server.shutdown()
        self.server.server_close()


if __name__ == "__main__":
    sys.exit(call(*sys.argv[1:]))
