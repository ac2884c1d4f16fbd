"""Certificates and kubeconfigs of the cluster, made with openssl.

Python from 3.13 on checks certificates strictly: an authority needs a critical keyUsage, and a leaf has to name its
authority's key, or no Python client gets through.
"""

import base64
import dataclasses
import json
import os
import shutil
import subprocess
from pathlib import Path

from . import paths, report
from .settings import API_PORT, API_SERVICE_IP, CLUSTER_DOMAIN, NODE_IP, NODE_NAME

SERVER = f"https://{NODE_IP}:{API_PORT}"
RENEW_SECONDS = 7 * 24 * 3600
DAYS = "365"
KEY_OPTIONS = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
AUTHORITY_EXTENSIONS = (
    "basicConstraints=critical,CA:TRUE",
    "keyUsage=critical,keyCertSign,cRLSign",
    "subjectKeyIdentifier=hash",
)


@dataclasses.dataclass(frozen=True)
class Leaf:
    name: str
    subject: str
    alternative_names: str = ""
    has_kubeconfig: bool = True


ADMIN = "admin"
_API_NAMES = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{CLUSTER_DOMAIN}"]
LEAVES = (
    Leaf(
        "apiserver",
        "/CN=kube-apiserver",
        ",".join([f"IP:{NODE_IP}", f"IP:{API_SERVICE_IP}", *(f"DNS:{name}" for name in _API_NAMES)]),
        has_kubeconfig=False,
    ),
    Leaf("apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet", has_kubeconfig=False),
    Leaf("front-proxy", "/CN=front-proxy", has_kubeconfig=False),
    Leaf(ADMIN, "/O=system:masters/CN=devcluster-admin"),
    Leaf("kube-controller-manager", "/CN=system:kube-controller-manager"),
    Leaf("kube-scheduler", "/CN=system:kube-scheduler"),
    Leaf("kubelet", f"/O=system:nodes/CN=system:node:{NODE_NAME}", f"IP:{NODE_IP},DNS:{NODE_NAME}"),
    Leaf("kube-proxy", "/CN=system:kube-proxy"),
    Leaf("kube-router", "/CN=devcluster:kube-router"),
    Leaf("coredns", "/CN=devcluster:coredns"),
    Leaf("volumes", "/CN=devcluster:volumes"),
)


def file(name: str) -> Path:
    return paths.pki_dir() / name


def kubeconfig(name: str) -> str:
    return str(file(f"{name}.kubeconfig"))


def is_valid() -> bool:
    plan = file("plan")
    if not plan.is_file() or plan.read_text() != repr(LEAVES):
        return False
    check = ["openssl", "x509", "-noout", "-checkend", str(RENEW_SECONDS), "-in", str(file("apiserver.crt"))]
    return subprocess.run(check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def create() -> None:
    """All or nothing: the folder appears under its name when it is complete."""
    folder = paths.pki_dir().with_name("pki.new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    _authority(folder)
    for leaf in LEAVES:
        _issue(folder, leaf)
    _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "service-accounts.key")
    _openssl(folder, "ec", "-in", "service-accounts.key", "-pubout", "-out", "service-accounts.pub")
    for leaf in LEAVES:
        if leaf.has_kubeconfig:
            (folder / f"{leaf.name}.kubeconfig").write_text(render_kubeconfig(folder, leaf.name))
    (folder / "plan").write_text(repr(LEAVES))
    for path in folder.iterdir():
        path.chmod(0o600)
    shutil.rmtree(paths.pki_dir(), ignore_errors=True)
    os.rename(folder, paths.pki_dir())


def ensure_admin() -> None:
    """The kubeconfig that people use. It is there as long as the cluster is: without the cluster's routes, packets to
    the address in it would leave this machine."""
    path = paths.kubeconfig()
    if not path.exists():
        fresh = path.with_name(path.name + ".new")
        fresh.touch(mode=0o600)
        fresh.write_text(render_kubeconfig(paths.pki_dir(), ADMIN))
        fresh.rename(path)


def remove_admin() -> None:
    paths.kubeconfig().unlink(missing_ok=True)


def _authority(folder: Path) -> None:
    extensions = [part for extension in AUTHORITY_EXTENSIONS for part in ("-addext", extension)]
    names = ["-subj", "/CN=nhx-devcluster", "-keyout", "ca.key", "-out", "ca.crt"]
    _openssl(folder, "req", "-x509", "-config", _empty(folder), *KEY_OPTIONS, "-days", DAYS, *extensions, *names)


def _issue(folder: Path, leaf: Leaf) -> None:
    request = ["-subj", leaf.subject, "-keyout", f"{leaf.name}.key", "-out", f"{leaf.name}.csr"]
    _openssl(folder, "req", "-new", "-config", _empty(folder), *KEY_OPTIONS, *request)
    (folder / "extensions").write_text(leaf_extensions(leaf))
    signer = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", DAYS, "-extfile", "extensions"]
    _openssl(folder, "x509", "-req", "-in", f"{leaf.name}.csr", *signer, "-out", f"{leaf.name}.crt")
    (folder / f"{leaf.name}.csr").unlink()


def leaf_extensions(leaf: Leaf) -> str:
    lines = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        "extendedKeyUsage=clientAuth,serverAuth",
        "subjectKeyIdentifier=hash",
        "authorityKeyIdentifier=keyid",
    ]
    if leaf.alternative_names:
        lines.append(f"subjectAltName={leaf.alternative_names}")
    return "\n".join(lines) + "\n"


def _empty(folder: Path) -> str:
    """The machine's own openssl.cnf would add extensions of its own, twice over."""
    config = folder / "openssl.cnf"
    config.write_text("[req]\ndistinguished_name=dn\n[dn]\n")
    return config.name


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise report.DevclusterError(f"openssl {' '.join(arguments)} failed in {folder}:\n{done.stderr}")


def render_kubeconfig(folder: Path, name: str) -> str:
    def data(file_name: str) -> str:
        return base64.b64encode((folder / file_name).read_bytes()).decode()

    cluster = {"server": SERVER, "certificate-authority-data": data("ca.crt")}
    user = {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "nhx-devcluster", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "nhx-devcluster", "context": {"cluster": "nhx-devcluster", "user": name}}],
            "current-context": "nhx-devcluster",
        },
        indent=1,
    )
