"""Machines that are namespaces of Linux: network, processes, mounts and host name of their own, joined by a bridge.

They share the kernel, the code, and one folder (`Machines.shared`, as NFS would); `/tmp`, `/dev/shm` and the home of
root are their own. They need root and iproute2, and are for tests of what runs on clusters.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = "/mnt"
"""Where machines see the shared folder."""
UNSHARE = "setpriv --pdeathsig=KILL unshare --net --pid --mount --uts --ipc --fork --kill-child --mount-proc"
"""Makes the namespaces; all that runs in them ends with the test, however that ends."""
PREPARE = """
set -e
mount --make-rprivate /
mount --bind {shared} {seen}
mkdir -p {seen}/.root
mount --bind {prefix} {seen}/.root
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /root
mkdir -p {prefix}
mount --bind {seen}/.root {prefix}
mount --bind {seen}/hosts /etc/hosts
mount --bind {seen}/resolv.conf /etc/resolv.conf
hostname {name}
trap '' CHLD
exec sleep infinity
"""


HIDDEN = ("/tmp", "/dev/shm", "/root")
"""Folders that each machine has for itself."""


def require(root=ROOT):
    """Skip where namespaces cannot be made, or would not see the code."""
    for path in (root, Path(sys.prefix)):
        if any(path.is_relative_to(folder) for folder in HIDDEN) and path != Path(sys.base_prefix):
            pytest.skip(f"{path}: machines have their own {', '.join(HIDDEN)}; move checkout and environment elsewhere")
    missing = [program for program in ("unshare", "nsenter", "ip", "setpriv") if not shutil.which(program)]
    if os.getuid() or missing:
        pytest.skip(f"namespaces need root, util-linux and iproute2; missing: {', '.join(missing) or 'root'}")
    tried = subprocess.run(["unshare", "-n", "-p", "-m", "-u", "-f", "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no namespaces here: {tried.stderr.strip()}")


def run(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


class Machine:
    """One of them; its first process holds its namespaces, and ends all others when it ends."""

    def __init__(self, name, ip, shared):
        self.name, self.ip = name, ip
        script = PREPARE.format(shared=shared, seen=SHARED, name=name, prefix=sys.base_prefix)
        command = [*UNSHARE.split(), "sh", "-c", script]
        self.holder = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        self.pid = self._first()
        self.processes = []

    def _first(self):
        """Return the process id, here, of its first process, once that is ready."""
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.holder.poll() is None:
            for pid in children.read_text().split():
                if Path(f"/proc/{pid}/comm").read_text().strip() == "sleep":
                    return int(pid)
            time.sleep(0.05)
        raise AssertionError(f"the machine {self.name} does not start")

    def start(self, words, env, cwd="/", **options):
        """Start a command there, in a session of its own; without root's rights where `user` is given."""
        user = options.pop("user", None)
        enter = ["nsenter", f"--target={self.pid}", "--net", "--pid", "--mount", "--uts", "--ipc", f"--wdns={cwd}"]
        if user:
            enter += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
            enter += ["--bounding-set=-all", "--inh-caps=-all"]
        process = subprocess.Popen([*enter, *words], env=env, start_new_session=True, **options)
        self.processes.append(process)
        return process

    def call(self, *words, env=None, timeout=60, **options):
        """Run a command there; return its status and what it printed."""
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = self.start(words, env or os.environ, **options)
        said, _ = process.communicate(timeout=timeout)
        return process.returncode, said

    def lose(self):
        """End the machine with all that runs there, at once."""
        if self.holder.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        for process in (self.holder, *self.processes):
            process.wait(30)


class Machines:
    """Machines on one network, with the addresses 10.77.0.1 and up."""

    def __init__(self, shared):
        self.shared = shared
        self.key = uuid.uuid4().hex[:6]
        self.net, self.bridge = f"retable-{self.key}", "bridge"
        self.all = {}

    def add(self, name):
        """Start a machine."""
        ip = f"10.77.0.{len(self.all) + 1}"
        with (self.shared / "hosts").open("a") as hosts:  # one file for all, mounted
            hosts.write(f"{ip} {name}\n")
        made = self.all[name] = Machine(name, ip, self.shared)
        here, there = f"r{self.key}{len(self.all)}", "eth0"
        run("ip", "-n", self.net, "link", "add", here, "type", "veth", "peer", "name", there, "netns", str(made.pid))
        run("ip", "-n", self.net, "link", "set", here, "master", self.bridge, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("link", "set", there, "up"),
            ("addr", "add", f"{ip}/24", "dev", there),
        ):
            run("nsenter", f"--target={made.pid}", "--net", "ip", *words)
        run("nsenter", f"--target={made.pid}", "--net", "ip", "route", "add", "default", "via", "10.77.0.254")
        return made


@contextmanager
def machines():
    """Give a network of machines, and end all of it."""
    require()
    with tempfile.TemporaryDirectory(prefix="machines-") as folder:
        shared = Path(folder)
        shared.chmod(0o777)
        (shared / "hosts").write_text("127.0.0.1 localhost\n")
        (shared / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # refuses; gRPC waits for one that is silent
        made = Machines(shared)
        run("ip", "netns", "add", made.net)
        try:
            run("ip", "-n", made.net, "link", "add", made.bridge, "type", "bridge")
            run("ip", "-n", made.net, "addr", "add", "10.77.0.254/24", "dev", made.bridge)
            run("ip", "-n", made.net, "link", "set", made.bridge, "up")
            yield made
        finally:
            for each in made.all.values():
                each.lose()
            run("ip", "netns", "del", made.net)
