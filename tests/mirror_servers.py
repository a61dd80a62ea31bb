"""Places for mirrors: a folder, an S3 server and an SFTP server on the loopback address."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from random import Random

import pytest

from paddle_mnist.system.remote import RemoteFolder

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "a-name",
    "AWS_SECRET_ACCESS_KEY": "what-no-file-may-hold",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class FolderPlace:
    """Another disk, as far as a test has one."""

    def __init__(self, folder):
        self.folder, self._disk = folder / "mounted", folder / "disk"
        self._disk.mkdir()
        self.start()

    def url(self, name):
        return str(self.folder / name)

    def stop(self):
        self._replace(lambda path: path.write_text("a file, where the folder was"))

    def start(self):
        self._replace(lambda path: path.symlink_to(self._disk))

    def _replace(self, make):
        """At once: where there is nothing, another process might have moved the copy."""
        path = self.folder.with_name("new")
        make(path)
        path.replace(self.folder)

    def close(self):
        pass


class S3Place:
    """moto's server. delay: seconds before each answer. failing: the share of failing requests."""

    delay, failing = 0.0, 0.0

    def __init__(self, folder):
        pytest.importorskip("s3fs", reason="needs the extra mirror")
        pytest.importorskip("moto", reason="needs the extra test")
        self.port = free_port()
        os.environ.update(CREDENTIALS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{self.port}")
        self.start()
        import boto3

        boto3.client("s3").create_bucket(Bucket="runs")

    def url(self, name):
        return f"s3://runs/{name}"

    def start(self):
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        application, random = DomainDispatcherApplication(create_backend_app), Random(0)

        def answer(environ, start_response):
            time.sleep(self.delay)
            if random.random() < self.failing:
                start_response("503 Service Unavailable", [("Content-Length", "0")])
                return [b""]
            return application(environ, start_response)

        self._server = make_server("127.0.0.1", self.port, answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def close(self):
        self.stop()


class SftpPlace:
    """Debian's openssh-server."""

    def __init__(self, folder):
        pytest.importorskip("paramiko", reason="needs the extra test")
        self._sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
        if not self._sshd:
            pytest.skip("needs openssh-server")
        self.folder, self.port = folder, free_port()
        keys = Path(os.environ["HOME"], ".ssh")
        keys.mkdir(mode=0o700, exist_ok=True)
        for key in (folder / "host_key", keys / "id_ed25519"):
            if not key.exists():  # an earlier server of this process may have made the user's key
                subprocess.run(
                    ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True
                )
        with contextlib.suppress(OSError):
            os.mkdir("/run/sshd")
        self.config = folder / "sshd_config"
        self.config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {keys}/id_ed25519.pub\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nPermitRootLogin yes\nMaxStartups 100\n"
            f"PidFile none\nSubsystem sftp internal-sftp\n"
        )
        self.start()

    def url(self, name):
        import getpass

        return f"sftp://{getpass.getuser()}@127.0.0.1:{self.port}{self.folder}/{name}"

    def start(self):
        self._process = subprocess.Popen(
            [self._sshd, "-D", "-e", "-f", self.config], stderr=subprocess.DEVNULL
        )
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None
            time.sleep(0.05)

    def stop(self):
        import psutil

        for child in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()  # its connections
        self._process.kill()
        self._process.wait()

    def close(self):
        self.stop()


PLACES = {"folder": FolderPlace, "s3": S3Place, "sftp": SftpPlace}


def files(url):
    """Return the names of the files of a copy."""
    remote = RemoteFolder(url)
    return {*remote.sizes(), *(f"checkpoints/{name}" for name in remote.sizes("checkpoints"))}
