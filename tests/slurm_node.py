"""Debian's Slurm, with this machine as its only node: `slurm` starts it."""

import contextlib
import getpass
import os
import re
import shutil
import socket
import subprocess
import time

import pytest
from mirror_servers import free_port

# Who may do what is not looked at. A job is eligible again 5 s after it was requeued, not 120.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={folder}
SlurmdSpoolDir={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/linear
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """The daemons and the commands. environment: in which both find their configuration."""

    def __init__(self, folder):
        configuration = folder / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(
                folder=folder,
                host=socket.gethostname().partition(".")[0],
                user=getpass.getuser(),
                controller=free_port(),
                node=free_port(),
            )
        )
        path = f"{os.environ['PATH']}:/usr/sbin"
        self.environment = {**os.environ, "PATH": path, "SLURM_CONF": str(configuration)}

    def call(self, *words, **environment):
        return subprocess.run(
            words,
            env={**self.environment, **environment},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def submit(self, log, *words, **environment):
        """Submit a job of one processor; return its number."""
        options = ("--parsable", "--cpus-per-task=1", f"--output={log}")
        return self.call("sbatch", *options, *words, **environment).strip()

    def wait(self, number):
        """Wait for the end of a job; return its state."""
        while (job := self.job(number))["JobState"] in ("PENDING", "RUNNING", "COMPLETING"):
            time.sleep(0.5)
        return job

    def is_ready(self):
        with contextlib.suppress(subprocess.CalledProcessError):  # it does not answer yet
            return "idle" in self.call("sinfo", "--noheader")
        return False

    def job(self, number):
        """Return the state of a job: names and values."""
        return dict(re.findall(r"(\w+)=(\S+)", self.call("scontrol", "show", "job", number)))


@contextlib.contextmanager
def slurm(folder):
    """Start Slurm; skip the test where it is not installed."""
    for name in ("slurmctld", "slurmd", "sbatch"):
        if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin"):
            pytest.skip(f"needs {name}: on Debian, slurm-wlm")
    one = Slurm(folder)
    with contextlib.ExitStack() as stack:
        for daemon in (["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            log = stack.enter_context((folder / f"{daemon[0]}.log").open("w"))
            process = subprocess.Popen(daemon, env=one.environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        while not one.is_ready():
            assert process.poll() is None, (folder / "slurmd.log").read_text()
            time.sleep(0.5)
        yield one
