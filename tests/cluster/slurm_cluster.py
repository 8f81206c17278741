"""A real Slurm of one node for tests: controller, node daemon and munge on this machine, as root, without cgroups and accounting.

Two GPUs are faked by device nodes, so that `--gpus` is scheduled and CUDA_VISIBLE_DEVICES set as on a real node; nothing computes on
them. Slurm drops SLURM_CONF inside jobs, hence its files are linked into /etc/slurm while the cluster runs. `stop` takes them away
again: with clients installed and a configuration but no controller every start of snakemake would wait 10 seconds for an answer.

    python tests/cluster/slurm_cluster.py start|stop      as root, Debian: apt-get install slurmctld slurmd slurm-client munge
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/tmp/agentrl-slurm")  # noqa: S108 (short: munge and Slurm bound the length of socket paths)
ETC = Path("/etc/slurm")
NEEDED = ("slurmctld", "slurmd", "squeue", "munged")
CPUS, GPUS, MEMORY_MB = 12, 6, 16000
"""What the node claims to have; more than the machine, so that tests do not wait for each other's cores."""
NULL_DEVICE = os.makedev(1, 3)
CLUSTER = "agentrl-test"

CONFIG = """\
ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill,UsePss
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
MinJobAge=300
KillWait=3
OverTimeLimit=0
SlurmctldTimeout=30
SlurmdTimeout=20
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:h200:{gpus} State=UNKNOWN
PartitionName=gpu Nodes={host} Default=YES MaxTime=60 DefaultTime=10 DefMemPerCPU=200 State=UP
"""


class ClusterError(RuntimeError):
    """The cluster cannot be started, or a part of it did not answer in time."""


def missing() -> list[str]:
    """What keeps this machine from running the cluster; empty where it can."""
    found = [f"{name} is not installed" for name in NEEDED if not shutil.which(name)]
    if os.geteuid() != 0:
        found.append("needs root")
    if (ETC / "slurm.conf").exists() and not ours():
        found.append(f"{ETC}/slurm.conf belongs to another cluster")
    return found


def ours() -> bool:
    """Whether /etc/slurm is linked to this module's folder."""
    return (ETC / "slurm.conf").is_symlink() and (ETC / "slurm.conf").readlink().parent == FOLDER


def start() -> None:
    """Bring the cluster up and wait until its node is idle. Raises `ClusterError` naming the log to read."""
    if reasons := missing():
        raise ClusterError(f"no test cluster here: {'; '.join(reasons)}")
    stop()
    configure()
    start_munge()
    start_controller()
    subprocess.run(["slurmd"], check=True)
    wait(
        "the node",
        lambda: answer("sinfo", "-h", "-o", "%t").strip() == "idle",
        FOLDER / "slurmd.log",
    )


def stop() -> None:
    """Cancel what runs, stop the daemons, take the configuration out of /etc/slurm."""
    if ours() and answer("squeue", "-h"):
        answer("scancel", "--user=root")
        wait("the end of cancelled jobs", lambda: not answer("squeue", "-h"), FOLDER / "slurmd.log")
    for daemon in ("slurmd", "slurmctld", "munged"):
        end(daemon)
    end_leftovers()
    for name in ("slurm.conf", "gres.conf", "cgroup.conf"):
        if (ETC / name).is_symlink():
            (ETC / name).unlink()
    shutil.rmtree(FOLDER, ignore_errors=True)


def configure() -> None:
    """Write the configuration and the fake GPUs, and link the files into /etc/slurm."""
    host = socket.gethostname().split(".")[0]
    for name in ("state", "spool"):
        (FOLDER / name).mkdir(parents=True)
    content = CONFIG.format(
        cluster=CLUSTER, host=host, folder=FOLDER, cpus=CPUS, memory=MEMORY_MB, gpus=GPUS
    )
    (FOLDER / "slurm.conf").write_text(content, encoding="utf-8")
    for number in range(GPUS):
        os.mknod(FOLDER / f"gpu{number}", 0o20666, NULL_DEVICE)
    line = (
        f"NodeName={host} Name=gpu Type=h200 File={FOLDER}/gpu[0-{GPUS - 1}] Flags=nvidia_gpu_env\n"
    )
    (FOLDER / "gres.conf").write_text(line, encoding="utf-8")
    (FOLDER / "cgroup.conf").write_text(
        "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n", encoding="utf-8"
    )
    ETC.mkdir(exist_ok=True)
    for name in ("slurm.conf", "gres.conf", "cgroup.conf"):
        (ETC / name).symlink_to(FOLDER / name)


def start_munge() -> None:
    """Start munged with a key and a socket folder that it accepts, unless one answers already."""
    if (
        subprocess.run(  # noqa: S602
            "munge -n </dev/null | unmunge", shell=True, capture_output=True, check=False
        ).returncode
        == 0
    ):
        return
    key = Path("/etc/munge/munge.key")
    if not key.exists():
        key.write_bytes(os.urandom(1024))
    for path in (
        key.parent,
        key,
        Path("/run/munge"),
        Path("/var/lib/munge"),
        Path("/var/log/munge"),
    ):
        if path != key:
            path.mkdir(parents=True, exist_ok=True)
        shutil.chown(path, "munge", "munge")
    key.chmod(0o400)
    Path("/run/munge").chmod(0o755)
    (FOLDER / "munged.pid").unlink(missing_ok=True)
    as_munge = ["setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups"]
    subprocess.run([*as_munge, "munged"], check=True)
    (FOLDER / "munged.pid").write_text(
        Path("/run/munge/munged.pid").read_text(encoding="ascii"), encoding="ascii"
    )


def start_controller() -> None:
    """Start slurmctld, keeping the jobs of an earlier one, and wait for its answer."""
    subprocess.run(["slurmctld"], check=True)
    wait("the controller", lambda: "is UP" in answer("scontrol", "ping"), FOLDER / "slurmctld.log")


def end(daemon: str) -> None:
    """Stop one daemon that this module started, and wait until it is gone."""
    path = FOLDER / f"{daemon}.pid"
    if not path.exists():
        return
    process = int(path.read_text(encoding="ascii"))
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        return
    wait(f"the end of {daemon}", lambda: not running(process), FOLDER / f"{daemon}.log")


def end_leftovers() -> None:
    """Kill what a job left behind: without cgroups a process that waits through SIGTERM outlives its job."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if f"SLURM_CLUSTER_NAME={CLUSTER}".encode() in (folder / "environ").read_bytes().split(
                b"\0"
            ):
                os.kill(int(folder.name), signal.SIGKILL)


def running(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            != "Z"
        )
    except OSError:
        return False


def answer(*command: str) -> str:
    """What a client prints; empty where it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout


def wait(what: str, condition: Callable[[], bool], log: Path, seconds: float = 60) -> None:
    """Wait for a condition. Raises `ClusterError` with the end of a log."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            last = (
                "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
                if log.exists()
                else "no log"
            )
            raise ClusterError(f"{what} did not come within {seconds:.0f} s; {log}:\n{last}")
        time.sleep(0.1)


if __name__ == "__main__":
    try:
        {"start": start, "stop": stop}[sys.argv[1]]()
    except ClusterError as error:
        sys.exit(f"error: {error}")
