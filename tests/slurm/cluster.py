"""A Slurm of virtual nodes on this machine: real munged, slurmctld and slurmd, in one folder.

Nothing of the machine's own configuration is used or changed: configuration, key, sockets, state,
spool and logs lie in the folder, ports are free ones, and everything runs as the user who runs the
tests. Virtual nodes share one address and the machine's cores; SLURMD_NODENAME tells them apart.
Every daemon leads a session of its own, so that it is found and ended whole.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from bench.demo.fleet import free_ports
from bench.demo.processes import Session, read_stat, stop_sessions

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
START_SECONDS = 60.0
DOWN_SECONDS = 10
"""SlurmdTimeout: a silent node counts as down after it."""
KILL_WAIT_SECONDS = 20
"""Between SIGTERM and SIGKILL of what is cancelled."""

CONFIGURATION = """\
ClusterName=virtual
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin={binding}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout={down}
KillWait={kill_wait}
CompleteWait=0
SchedulerParameters=sched_interval=5,batch_sched_delay=0,requeue_setup_env_fail
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NO_BINDING = "task/none"
BINDING_TO_CORES = "task/affinity\nTaskPluginParam=Cores"
"""As many clusters do: a task gets the cores it asked for, and one without being asked."""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 Boards=1 "
    "SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN"
)


def missing_programs() -> list[str]:
    """The programs that are not installed; Debian has them in munge, slurmctld, slurmd and
    slurm-client."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


class ClusterError(Exception):
    """A daemon or a command failed; the message holds what it said."""


class Cluster:
    """Four virtual nodes n1 to n4. A context manager; not thread-safe."""

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str] = ("n1", "n2", "n3", "n4"),
        binding: str = NO_BINDING,
    ) -> None:
        self.folder, self.nodes, self._binding = folder, tuple(nodes), binding
        self._daemons: dict[str, tuple[subprocess.Popen[bytes], Session]] = {}
        self._killed: list[Session] = []

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the client commands: no job's around them, and this configuration."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        path = os.pathsep.join([clean.get("PATH", ""), "/usr/sbin", "/sbin"])
        return clean | {"PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir(exist_ok=True)
        self._configure()
        try:
            self._start_munge()
            self._start("slurmctld", ["slurmctld", "-D", "-c", "-f", self._conf])
            for name in self.nodes:
                self.start_node(name)
            self.wait(
                lambda: self.states() == dict.fromkeys(self.nodes, "idle"), "all nodes are idle"
            )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _conf(self) -> str:
        return str(self.folder / "slurm.conf")

    def _configure(self) -> None:
        host, user = socket.gethostname().split(".")[0], pwd.getpwuid(os.getuid()).pw_name
        first, *ports = free_ports(1 + len(self.nodes))
        lines = [
            NODE.format(name=name, host=host, port=port)
            for name, port in zip(self.nodes, ports, strict=True)
        ]
        text = CONFIGURATION.format(
            host=host,
            port=first,
            folder=self.folder,
            user=user,
            binding=self._binding,
            down=DOWN_SECONDS,
            kill_wait=KILL_WAIT_SECONDS,
            nodes="\n".join(lines),
        )
        (self.folder / "slurm.conf").write_text(text)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        here = str(self.folder)
        words = ["munged", "--foreground", "--force", f"--socket={here}/munge.socket"]
        words += [f"--key-file={key}", f"--pid-file={here}/munge.pid"]
        words += [f"--log-file={here}/munge.log", f"--seed-file={here}/munge.seed"]
        self._start("munged", words)
        self.wait((self.folder / "munge.socket").exists, "munged has its socket")

    def start_node(self, name: str) -> None:
        self._start(name, ["slurmd", "-D", "-N", name, "-f", self._conf])

    def _start(self, name: str, words: Sequence[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
                env=self.environment,
            )
        self._daemons[name] = (process, Session.led_by(process.pid))

    def run(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """What a client command prints. Raises ClusterError."""
        done = subprocess.run(
            words,
            env=self.environment | dict(environment or {}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise ClusterError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def states(self) -> dict[str, str]:
        """Node -> state in words: idle, alloc, mix, down, comp; with a star when it is silent."""
        try:
            rows = self.run("sinfo", "-h", "-N", "-o", "%N %t").split("\n")
        except ClusterError:
            return {}
        return dict(row.split() for row in rows if row)

    def job(self, job_id: int) -> dict[str, str]:
        """What scontrol says of a job, by name."""
        words = self.run("scontrol", "show", "job", "-o", str(job_id)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, done: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
        """Until `done`. Raises ClusterError, with the ends of the logs."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise ClusterError(f"not within {seconds:g} s: {what}\n{self._logs()}")
            time.sleep(0.2)

    def _logs(self) -> str:
        parts = []
        for path in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out")):
            with suppress(OSError):
                tail = path.read_text(errors="replace").splitlines()[-4:]
                parts.append(f"{path.name}:\n  " + "\n  ".join(tail))
        return "\n".join(parts)

    def kill_node(self, name: str) -> None:
        """The node is gone at once: its slurmd, and all that ran there, by SIGKILL."""
        process, session = self._daemons.pop(name)
        stop_sessions(
            [session, *sessions_on(self.folder, name)], grace_seconds=0.0, reap=process.poll
        )
        process.wait(10)

    def close(self) -> None:
        """Everything ends: nodes first, munged last; then what jobs still had."""
        order = [*self.nodes, "slurmctld", "munged"]
        for name in order:
            if name in self._daemons:
                process, session = self._daemons.pop(name)
                stop_sessions([session], grace_seconds=10.0, reap=process.poll)
                process.wait(10)
        stop_sessions(sessions_on(self.folder), grace_seconds=0.0)


def sessions_on(folder: Path, node: str = "") -> list[Session]:
    """Sessions of what runs on a node of this folder's cluster, or on all: Slurm's own processes
    (slurmd, and those of steps, which outlive it), what says so, and the descendants."""
    pids = processes_with(str(folder / "slurm.conf"), node or None)
    found: dict[int, Session] = {}
    for pid in with_descendants([*pids, *_daemons_on(folder, node)]):
        stat = read_stat(pid)
        if stat is not None and stat.session not in found:
            leader = read_stat(stat.session)
            found[stat.session] = Session(stat.session, leader.start_ticks if leader else 0)
    return list(found.values())


def _daemons_on(folder: Path, node: str) -> list[int]:
    """Slurm's own processes: they work in the folder, and write their node's log."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(entry / "cwd").split(" ")[0] != str(folder):
                continue
            files = {os.path.basename(os.readlink(fd)) for fd in (entry / "fd").iterdir()}
            if not node or f"slurmd-{node}.log" in files:
                found.append(int(entry.name))
    return found


def processes_with(conf: str, node: str | None = None, job_id: int = 0) -> list[int]:
    """Processes of a cluster's jobs, by what slurmd put into their environment."""
    wanted = f"SLURM_JOB_ID={job_id or ''}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with suppress(OSError):
            words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            on_node = f"SLURMD_NODENAME={node}".encode() in words if node else True
            is_job = any(word == wanted if job_id else word.startswith(wanted) for word in words)
            if f"SLURM_CONF={conf}".encode() in words and is_job and on_node:
                found.append(int(name))
    return found


def with_descendants(pids: Iterable[int]) -> set[int]:
    """These processes and all below them: engines overwrite the environment that would tell."""
    parents = {}
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit():
                text = Path(f"/proc/{name}/stat").read_text(errors="replace")
                parents[int(name)] = int(text.rsplit(") ", 1)[1].split()[1])
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found
