"""config/kubernetes.yaml as real containers: podman runs the pods of its DaemonSet and of its
trainer, with their mounts, users and limits, in namespaces of their own and without capabilities.
"""

import io
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile

import pytest
import yaml

from lib import BIN, REPO, TOKCTL, run, wait_for

BATCHES = 100
# Neither cgroups of version 1 nor a user who may not raise limits stop runc.
CONTAINERS_CONF = "[containers]\ndefault_ulimits = []\n"


def image_lines():
    """The instructions of the Containerfile, with continued lines joined."""
    text = (REPO / "config/Containerfile").read_text().replace("\\\n", "")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def web_uid():
    (useradd,) = (line for line in image_lines() if line.endswith(" tokend-web"))
    return int(re.search(r"--uid (\d+)", useradd).group(1))


def pack_root(path):
    """Writes a root with the programs and the libraries that they load."""
    files = {}
    for program in ("tokend", "tokctl"):
        files[f"usr/bin/{program}"] = os.path.realpath(BIN / program)
        listed = subprocess.run(["ldd", BIN / program], capture_output=True, text=True).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            folder, name = os.path.split(library)
            files[f"{os.path.realpath(folder)[1:]}/{name}"] = os.path.realpath(library)
    passwd = b"root:x:0:0::/:/bin/sh\ntokend-web:x:%d:%d::/:/bin/false\n" % (web_uid(), web_uid())
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(passwd)
        tar.addfile(entry, io.BytesIO(passwd))
        for link in ("bin", "lib", "lib64"):
            tar.add(f"/{link}", link)
        for name, file in files.items():
            tar.add(file, name)


class Podman:
    def __init__(self, directory):
        self.directory = directory
        conf = directory / "containers.conf"
        conf.write_text(CONTAINERS_CONF)
        self.environment = {**os.environ, "CONTAINERS_CONF": str(conf)}
        self.options = ["--root", directory / "images", "--runroot", directory / "running"]
        self.options += ["--runtime", shutil.which("runc"), "--cgroup-manager=cgroupfs"]

    def __call__(self, *arguments, fails=False):
        done = run("podman", *self.options, *arguments, env=self.environment, timeout=200)
        assert fails or done[0] == 0, done[2][-2000:]
        return done

    def play(self, name, *documents):
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump_all(documents))
        self("play", "kube", "--network=none", path)


@pytest.fixture(scope="module")
def podman():
    if os.getuid() != 0 or not all(map(shutil.which, ("podman", "runc", "catatonit"))):
        pytest.skip("needs root, podman, runc and catatonit")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="p"))  # podman wants at most 50 characters
    podman = Podman(directory)
    pack_root(directory / "root.tar")
    changes = ["ENV PATH=/usr/bin"]  # as Debian's image has
    changes += [line for line in image_lines() if re.match("ENTRYPOINT|CMD", line)]
    podman("import", *[f"--change={line}" for line in changes], directory / "root.tar", "tokend")
    probe = podman("run", "--rm", "--network=none", "tokend", "--version", fails=True)
    if probe[0] != 0:
        pytest.skip("podman cannot run a container here: " + probe[2][-200:])
    try:
        yield podman
    finally:
        podman("pod", "rm", "--all", "--force", "--time=0")
        shutil.rmtree(directory, ignore_errors=True)


def documents(node):
    """ConfigMap, the DaemonSet's pod and trainer, for a node whose files are below @node. Probes,
    ports and limits are left out: podman has no network or cgroup for them here.
    """
    config, daemon_set, trainer = yaml.safe_load_all((REPO / "config/kubernetes.yaml").read_text())
    template = daemon_set["spec"]["template"]
    daemon = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}
    daemon["metadata"] = {"name": "tokend", "labels": template["metadata"]["labels"]}
    for pod in (daemon, trainer):
        for volume in pod["spec"]["volumes"]:
            if "hostPath" in volume:
                volume["hostPath"]["path"] = f"{node}{volume['hostPath']['path']}"
        for container in pod["spec"]["containers"]:
            for key in ("livenessProbe", "readinessProbe", "ports", "resources"):
                container.pop(key, None)
    return config, daemon, trainer


def test_the_containerfile_installs_the_packages():
    copied = next(line for line in image_lines() if line.startswith("COPY"))
    control = (REPO / "systemd/debian/control").read_text()
    packages = re.findall(r"(\w+)_\*\.deb", copied)
    assert packages and {*packages} <= {*re.findall(r"^Package: (\w+)", control, re.M)}


def test_the_web_container_is_tokend_web_and_listens_in_its_pod_only():
    daemon_set = documents("")[1]
    (web,) = (c for c in daemon_set["spec"]["containers"] if c["name"] == "web")
    assert web["securityContext"]["runAsUser"] == web_uid()
    assert "127.0.0.1:9464" in web["command"]


def test_pods_of_two_users_share_only_the_socket(podman, place):
    node = place.path
    place.shard("data/web/0.bin", 2_000_000)
    config, daemon, trainer = documents(node)
    podman.play("daemon", config, daemon)
    socket = f"{node}/run/tokend/tokend.sock"
    ready = "ready at /run/tokend/tokend.sock"
    assert wait_for(lambda: ready in podman("logs", "tokend-tokend")[2])
    asked = podman("exec", "tokend-web", "tokctl", "metrics", "--socket", "/run/tokend/tokend.sock")
    assert asked[1].startswith(b"# HELP tokend_up")
    command = trainer["spec"]["containers"][0]["command"]
    command[command.index("--batches") + 1] = str(BATCHES)
    podman.play("trainer", trainer)
    assert podman("wait", "trainer-trainer")[1].strip() == b"0"
    code, expected, err = run(TOKCTL, *command[1:], "--socket", socket)
    assert (code, err) == (0, "")
    assert podman("logs", "trainer-trainer")[1] == expected
    assert len(expected) == BATCHES * 4 * 2049 * 2
    pid = int(podman("inspect", "--format={{.State.Pid}}", "tokend-tokend")[1])
    state = pathlib.Path(f"/proc/{pid}/status").read_text()
    assert re.search(r"^CapEff:\t0+$", state, re.M) and re.search(r"^NoNewPrivs:\t1$", state, re.M)
    assert os.stat(socket).st_uid == 0
